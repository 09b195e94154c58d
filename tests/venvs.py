"""Environments of their own in the user's cache, for what pins versions that disagree with the project's."""

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from understudy.models import cache_folder

Pip = Callable[..., object]
"""Installs what its arguments name, as pip does."""


def environment(name: str, fill: Callable[[Path, Pip], None]) -> Path:
    """The environment of that name; it is made anew, and filled, if it is not there whole."""
    folder = cache_folder() / name
    python, whole = folder / "bin" / "python", folder / "whole"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another checkout's tests may be at it
        if not whole.exists():
            told(sys.executable, "-m", "venv", "--clear", str(folder))
            fill(python, lambda *what: told(str(python), "-m", "pip", "install", "-q", *what))
            whole.touch()
    return folder


def told(*command: str, **how: object) -> str:
    """What a command prints; a RuntimeError with the end of it where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return str(done.stdout)
