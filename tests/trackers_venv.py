"""The real client libraries of trackers, in an environment of their own in the user's cache.

python tests/trackers_venv.py      makes the environment (500 MB, a minute or two; once)
"""

import fcntl
import subprocess
import sys
from pathlib import Path

from understudy.models import cache_folder

PACKAGES = (
    "pydantic==2.14.3",
    "wandb==0.31.0",
    "tensorboardX==2.6.5",
    "tensorboard==2.21.0",
    "mlflow-skinny==3.17.2",
    "trackio==0.43.0",
)


def folder() -> Path:
    """Where the environment is."""
    return cache_folder() / "trackers-2"


def install() -> Path:
    """The environment's Python; the environment is made if it is not there whole."""
    python, whole = folder() / "bin" / "python", folder() / "whole"
    folder().parent.mkdir(parents=True, exist_ok=True)
    with folder().with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another checkout's tests may be at it
        if not whole.exists():
            _run(sys.executable, "-m", "venv", "--clear", str(folder()))
            _run(str(python), "-m", "pip", "install", "-q", *PACKAGES)
            whole.touch()
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]} failed:\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    print(install())
