"""LLaMA-Factory on the CPU, in its own environment in the user's cache.

    PYTHONPATH=tests python -m support.llamafactory_cli      creates the environment (1.6 GB, a few minutes; once)

LLaMA-Factory pins versions that conflict with the project's, so it runs as a process and is never imported. It is
installed without its requirements for images, audio and its web page. The requirements of training are listed below,
in compatible versions. LLaMA-Factory always imports torchaudio, whose compiled part is built for CUDA and is left out.
"""

import os
import platform
import sys
from pathlib import Path

from support.machine import ELSEWHERE
from support.venvs import Pip, make_venv, run_command

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


def unsupported_reason() -> str:
    """Return why LLaMA-Factory cannot run on this machine; empty if it can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"{ELSEWHERE}LLaMA-Factory is tested on Linux on x86_64; this is {sys.platform} on {platform.machine()}"
    return ""


def install() -> Path:
    """Return the environment's folder of programs. The environment is created if it is missing or incomplete."""
    return make_venv(f"llamafactory-{VERSION}", TORCH, *NEEDED, PACKAGE, fill=_fill) / "bin"


def _fill(python: Path, pip: Pip) -> None:
    pip(TORCH)
    pip(*NEEDED)
    pip("--no-deps", PACKAGE)
    for compiled in python.parents[1].glob("lib/python*/site-packages/torchaudio/lib/*.so"):
        compiled.unlink()


def run_llamafactory(*arguments: str, cwd: Path, timeout: float = 1500.0) -> str:
    """Return the output of a program of the environment. Raise RuntimeError with the end of the output if it fails."""
    programs = install()
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | offline
    return run_command(str(programs / arguments[0]), *arguments[1:], cwd=cwd, env=environment, timeout=timeout)


if __name__ == "__main__":
    print(install())
