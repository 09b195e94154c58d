"""LLaMA-Factory on the CPU, in an environment of its own in the user's cache.

    python tests/llamafactory_cli.py      makes the environment (1.6 GB, a few minutes; once)

It pins versions that disagree with the project's, so it is a process and never an import. Its package is installed
without what it requires for pictures, sound and its web page; what training needs is named below, in versions that it
takes. It cannot do without importing torchaudio, whose compiled part is built for CUDA and is left out.
"""

import fcntl
import os
import platform
import subprocess
import sys
from pathlib import Path

from understudy.models import cache_folder

VERSION = "0.9.5"
TORCH = "2.13.0"
NEEDED = (
    "transformers==5.6.0",
    "peft==0.18.1",
    "trl==0.24.0",
    "accelerate==1.11.0",
    "datasets==4.0.0",
    "torchaudio==2.11.0",
    "omegaconf",
    "pandas",
    "psutil",
    "scipy",
    "sentencepiece",
)


def folder() -> Path:
    """Where the environment is."""
    return cache_folder() / f"llamafactory-{VERSION}"


def unsupported() -> str:
    """Why it cannot run on this machine; empty where it can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"its environment is made on Linux on x86_64; this is {sys.platform} on {platform.machine()}"
    return ""


def install() -> Path:
    """The environment's folder of programs; the environment is made if it is not there whole."""
    programs, whole = folder() / "bin", folder() / "whole"
    folder().parent.mkdir(parents=True, exist_ok=True)
    with folder().with_name(f"{folder().name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another checkout's tests may be at it
        if not whole.exists():
            pip = (str(programs / "python"), "-m", "pip", "install", "-q")
            _run(sys.executable, "-m", "venv", "--clear", str(folder()))
            _run(*pip, f"torch=={TORCH}")
            _run(*pip, *NEEDED)
            _run(*pip, "--no-deps", f"llamafactory=={VERSION}")
            for compiled in folder().glob("lib/python*/site-packages/torchaudio/lib/*.so"):
                compiled.unlink()
            whole.touch()
    return programs


def run(*arguments: str, cwd: Path, timeout: float = 1500.0) -> str:
    """What a program of the environment prints; a RuntimeError with the end of it where it fails."""
    programs = install()
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | offline
    return _run(str(programs / arguments[0]), *arguments[1:], cwd=cwd, env=environment, timeout=timeout)


def _run(*command: str, **how: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return str(done.stdout)


if __name__ == "__main__":
    print(install())
