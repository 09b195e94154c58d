"""A shell in which the program `understudy` is this checkout."""

import os
import sys
from pathlib import Path

from support.paths import ROOT

UNDERSTUDY = f'PYTHONPATH="{ROOT / "src"}:$PYTHONPATH" exec "{sys.executable}" -m understudy'
"""The program, without arguments."""


def shell_environment(folder: Path, **programs: str) -> dict[str, str]:
    """Return an environment with `understudy`, `python` and further programs, each the text of a shell script."""
    python = f'PYTHONPATH="{ROOT / "src"}:$PYTHONPATH" exec "{sys.executable}" "$@"'
    scripts = {"understudy": f'{UNDERSTUDY} "$@"', "python": python, **programs}
    (folder / "bin").mkdir()
    for name, text in scripts.items():
        script = folder / "bin" / name
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
