"""SkyRL's Tinker server on loopback, and the client library that the engine `tinker` talks to it by."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import skyrl_venv
from understudy.integrations import tinker_server
from understudy.models import cache_folder
from venvs import packages

PATIENCE = 120.0  # seconds
BACKEND = {"max_lora_adapters": 24, "max_lora_rank": 8, "train_micro_batch_size": 1, "sample_max_num_sequences": 16}
"""One shape for all batches, so that little is compiled."""
CLIENT = (
    "tinker==0.24.1",
    "distro==1.9.0",
    "h2==4.4.1",
    "hpack==4.2.0",
    "httpcore==1.0.9",
    "httpx==0.28.1",
    "hyperframe==6.1.0",
    "orjson==3.13.0",
    "protobuf==7.36.2",
    "pyqwest==0.12.0",
    "zstandard==0.25.0",
)
"""The library, and what it needs that the project does not have."""


@dataclass
class Serving:
    """A server that runs."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """End all of it at once, as a machine that loses its power."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def serving(model: Path, folder: Path, **backend: Any) -> Iterator[Serving]:
    """A server of `model` with JAX on the CPU; `folder` keeps what it writes, for the next one there."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [str(skyrl_venv.install()), str(tinker_server.__file__), "--base-model", str(model), "--port", str(port)]
    command += ["--folder", str(folder), "--backend-config", json.dumps(BACKEND | backend)]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True
        )
    server = Serving(f"http://127.0.0.1:{port}", process, folder / "server.log")
    try:
        _wait(server)
        yield server
    finally:
        server.kill()


def client() -> Path:
    """A folder with the client library and what it needs beside the project's own packages."""
    return packages(CLIENT[0], *CLIENT)


def _environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    jax = {"JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    compiled = {
        "JAX_COMPILATION_CACHE_DIR": str(cache_folder() / "tests" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    ray = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return own | jax | compiled | ray | {"HF_HUB_OFFLINE": "1"}


def _wait(server: Serving) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{server.url}/api/v1/healthz", timeout=5).close()
            return
        time.sleep(0.2)
    raise RuntimeError(f"SkyRL's server is not up:\n{server.log.read_text(errors='replace')[-4000:]}")
