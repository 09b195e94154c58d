"""LLaMA-Factory on the CPU, in an environment of its own in the user's cache.

    python tests/llamafactory_cli.py      makes the environment (1.6 GB, a few minutes; once)

It pins versions that disagree with the project's, so it is a process and never an import. Its package is installed
without what it requires for pictures, sound and its web page; what training needs is named below, in versions that it
takes. It cannot do without importing torchaudio, whose compiled part is built for CUDA and is left out.
"""

import os
import platform
import sys
from pathlib import Path

from machine import ELSEWHERE
from venvs import Pip, environment, told

VERSION = "0.9.5"
PACKAGE = f"llamafactory=={VERSION}"
TORCH = "torch==2.13.0"
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


def unsupported() -> str:
    """Why it cannot run on this machine; empty where it can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"{ELSEWHERE}its environment is made on Linux on x86_64; this is {sys.platform} on {platform.machine()}"
    return ""


def install() -> Path:
    """The environment's folder of programs; the environment is made if it is not there whole."""
    return environment(f"llamafactory-{VERSION}", TORCH, *NEEDED, PACKAGE, fill=_fill) / "bin"


def _fill(python: Path, pip: Pip) -> None:
    pip(TORCH)
    pip(*NEEDED)
    pip("--no-deps", PACKAGE)
    for compiled in python.parents[1].glob("lib/python*/site-packages/torchaudio/lib/*.so"):
        compiled.unlink()


def run(*arguments: str, cwd: Path, timeout: float = 1500.0) -> str:
    """What a program of the environment prints; a RuntimeError with the end of it where it fails."""
    programs = install()
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | offline
    return told(str(programs / arguments[0]), *arguments[1:], cwd=cwd, env=environment, timeout=timeout)


if __name__ == "__main__":
    print(install())
