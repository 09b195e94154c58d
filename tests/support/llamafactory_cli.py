"""LLaMA-Factory on the CPU, in its own environment in the user's cache.

    PYTHONPATH=tests python -m support.llamafactory_cli      creates the environment (1.9 GB, a few minutes; once)

LLaMA-Factory pins versions that conflict with the project's, so it runs as a process and is never imported. It is
installed without its requirements for images, audio and video. The requirements of training, the API server and the web
UI are listed below, in compatible versions. LLaMA-Factory always imports torchaudio, whose compiled part is built for
CUDA and is left out.
"""

import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from support.machine import ELSEWHERE
from support.venvs import Pip, make_venv, run_command
from support.warm_program import warm_python

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
    "fastapi",
    "sse-starlette",
    "uvicorn",
    "gradio==5.50.0",
    "matplotlib",
)
_PRELOADED = (
    "llamafactory.launcher",
    "llamafactory.train.tuner",
    "llamafactory.api.app",
    "transformers.models.llama.modeling_llama",
)


def unsupported_reason() -> str:
    """Return why LLaMA-Factory cannot run on this machine; empty if it can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"{ELSEWHERE}LLaMA-Factory is tested on Linux on x86_64; this is {sys.platform} on {platform.machine()}"
    return ""


def install() -> Path:
    """Return the environment's folder of programs. The environment is created if it is missing or incomplete."""
    return make_venv(f"llamafactory-{VERSION}-2", TORCH, *NEEDED, PACKAGE, fill=_fill) / "bin"


def _fill(python: Path, pip: Pip) -> None:
    pip(TORCH)
    pip(*NEEDED)
    pip("--no-deps", PACKAGE)
    for compiled in python.parents[1].glob("lib/python*/site-packages/torchaudio/lib/*.so"):
        compiled.unlink()


@contextmanager
def loaded_programs(folder: Path) -> Iterator[Path]:
    """Yield a folder with the environment's programs `llamafactory-cli` and `python`.

    They are forked from a Python that has loaded LLaMA-Factory, which takes 15 seconds.
    """
    folder.mkdir()
    with warm_python(folder / "socket", str(install() / "python"), _PRELOADED, _environment()) as command:
        for name, program in (("llamafactory-cli", "llamafactory.cli"), ("python", "")):
            (folder / name).write_text(f'#!/bin/sh\n{command} {program} "$@"\n')
            (folder / name).chmod(0o755)
        yield folder


def run_llamafactory(programs: Path, *arguments: str, cwd: Path, timeout: float = 1500.0) -> str:
    """Return the output of a program. Raise RuntimeError with the end of the output if it fails."""
    program = str(programs / arguments[0])
    return run_command(program, *arguments[1:], cwd=cwd, env=_environment(), timeout=timeout)


def chat(programs: Path, *arguments: str, cwd: Path, stdin: str, timeout: float = 600.0) -> str:
    """Return what a chat in the terminal printed.

    Its exit code is not looked at: now and then the process aborts after its last output, while the interpreter ends
    ("terminate called without an active exception").
    """
    program = str(programs / arguments[0])
    done = subprocess.run(
        [program, *arguments[1:]],
        cwd=cwd,
        env=_environment(),
        input=stdin,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


@contextmanager
def serve_llamafactory(programs: Path, command: str, path: str, cwd: Path, timeout: float = 600.0) -> Iterator[str]:
    """Yield the address of a server that a shell command of docs/llamafactory.md starts, once it answers at `path`.

    `{port}` in the command stands for a free port. Fail with the server's output if it ends or does not answer.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    log = cwd / "server.log"
    environment = _environment() | {"PATH": f"{programs}:{os.environ['PATH']}", "BROWSER": "true"}
    with log.open("w") as output:
        server = subprocess.Popen(
            ["bash", "-c", f"exec env {command.format(port=port)}"],
            cwd=cwd,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + timeout
        while not _answers(address + path):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no answer from {command}\n{log.read_text()[-4000:]}")
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


def _environment() -> dict[str, str]:
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1"}
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | offline


if __name__ == "__main__":
    print(install())
