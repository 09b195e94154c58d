"""Folders in the user's cache, made once: environments for what pins versions that disagree with the project's."""

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from understudy.models import cache_folder

Pip = Callable[..., object]
"""Installs what its arguments name, as pip does."""


def environment(name: str, *holds: str, fill: Callable[[Path, Pip], object] | None = None) -> Path:
    """The environment of that name with what it holds, by pip's names, which `fill` may install in a way of its own."""

    def make(folder: Path) -> None:
        told(sys.executable, "-m", "venv", str(folder))
        python = folder / "bin" / "python"

        def pip(*what: str) -> None:
            told(str(python), "-m", "pip", "install", "-q", *what)

        if fill:
            fill(python, pip)
        else:
            pip(*holds)

    return kept(name, make, *holds)


def packages(name: str, *holds: str) -> Path:
    """A folder of packages that this Python can import from, without what they require."""
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target")
    return kept(f"tests/{name}", lambda folder: told(*pip, str(folder), *holds), *holds)


def kept(name: str, make: Callable[[Path], object], *holds: str) -> Path:
    """The folder of that name; it is made anew where it is not there whole, or was made to hold something else."""
    folder = cache_folder() / name
    whole, wanted = folder / "whole", "\n".join((f"Python {sys.version_info.major}.{sys.version_info.minor}", *holds))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another checkout's tests may be at it
        if not whole.exists() or whole.read_text(encoding="utf-8") != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            whole.write_text(wanted, encoding="utf-8")
    return folder


def told(*command: str, **how: object) -> str:
    """What a command prints; a RuntimeError with the end of it where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return str(done.stdout)
