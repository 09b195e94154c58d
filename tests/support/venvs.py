"""Folders in the user's cache that are created once, such as virtual environments for packages whose pinned versions
conflict with the project's.
"""

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy.engines.models import cache_folder

Pip = Callable[..., object]
"""Function that installs the given requirements, like pip."""


def make_venv(name: str, *holds: str, fill: Callable[[Path, Pip], object] | None = None) -> Path:
    """Return the virtual environment `name` with the packages `holds`, given as pip requirements. `fill` installs them
    in another way.
    """

    def make(folder: Path) -> None:
        run_command(sys.executable, "-m", "venv", "--without-pip", str(folder))  # to install pip takes five seconds
        python = folder / "bin" / "python"

        def pip(*what: str) -> None:
            # Compiling all modules takes longer than installing them, and few are ever imported.
            run_command(sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-compile", *what)

        if fill:
            fill(python, pip)
        else:
            pip(*holds)

    return make_cached_folder(name, make, *holds)


def install_packages(name: str, *holds: str) -> Path:
    """Return a folder with the packages `holds`, without their requirements, for this Python's import path."""
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--no-deps", "--target")
    return make_cached_folder(f"tests/{name}", lambda folder: run_command(*pip, str(folder), *holds), *holds)


def make_cached_folder(name: str, make: Callable[[Path], object], *holds: str) -> Path:
    """Return the folder `name` in the cache. `make` fills it if it is missing, incomplete, or has other contents than
    `holds`.
    """
    folder = cache_folder() / name
    whole, wanted = folder / "whole", "\n".join((f"Python {sys.version_info.major}.{sys.version_info.minor}", *holds))
    with locked(folder):
        if not whole.exists() or whole.read_text(encoding="utf-8") != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            whole.write_text(wanted, encoding="utf-8")
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock beside `path`. Another suite, or tests of another checkout, may be creating the same path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_command(*command: str, **how: object) -> str:
    """Return the output of a command. Raise RuntimeError with the end of the output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(
            f"exit code {done.returncode} of {' '.join(command)[:200]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    return str(done.stdout)
