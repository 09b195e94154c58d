"""SkyRL's Tinker server on loopback, and the client library of the engine `tinker`."""

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

from support import skyrl_venv
from support.venvs import install_packages
from understudy.engines.models import cache_folder
from understudy.engines.tinker import skyrl_server

PATIENCE = 600.0  # seconds
BACKEND = {"max_lora_adapters": 24, "max_lora_rank": 8, "train_micro_batch_size": 1, "sample_max_num_sequences": 16}
"""One shape for all batches, to reduce compilation."""
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
"""The library and its requirements beyond the project's."""


@dataclass
class SkyRLServer:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """Kill the server with all its processes, like a power failure."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def serve_skyrl(model: Path, folder: Path, **backend: Any) -> Iterator[SkyRLServer]:
    """Yield a server of `model` with JAX on the CPU. It stores its files in `folder`, for the next server with that
    folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [str(skyrl_venv.install()), str(skyrl_server.__file__), "--base-model", str(model), "--port", str(port)]
    command += ["--folder", str(folder), "--backend-config", json.dumps(BACKEND | backend)]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True
        )
    server = SkyRLServer(f"http://127.0.0.1:{port}", process, folder / "server.log")
    try:
        _wait(server)
        yield server
    finally:
        server.kill()


def client_packages() -> Path:
    """Return a folder with the client library and its requirements beyond the project's own packages."""
    return install_packages(CLIENT[0], *CLIENT)


def _environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    jax = {"JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    compiled = {
        "JAX_COMPILATION_CACHE_DIR": str(cache_folder() / "tests" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    ray = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return own | jax | compiled | ray | {"HF_HUB_OFFLINE": "1"}


def _wait(server: SkyRLServer) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{server.url}/api/v1/healthz", timeout=5).close()
            return
        time.sleep(0.2)
    raise RuntimeError(
        f"SkyRL's server did not start within {PATIENCE:.0f} s:\n{server.log.read_text(errors='replace')[-4000:]}"
    )
