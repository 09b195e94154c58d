"""A shell with programs of its own."""

import os
import sys
from pathlib import Path

from support.paths import ROOT


def shell_environment(folder: Path, **programs: str) -> dict[str, str]:
    """Return an environment with `python` and further programs, each the text of a shell script."""
    python = f'PYTHONPATH="{ROOT / "src"}:$PYTHONPATH" exec "{sys.executable}" "$@"'
    scripts = {"python": python, **programs}
    (folder / "bin").mkdir()
    for name, text in scripts.items():
        script = folder / "bin" / name
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
