"""A vLLM server process that listens on a Unix socket in a folder that only this user can access."""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.engines.vllm.client import SERVED_MODEL_NAME, VllmHttpClient, VllmUnavailable
from understudy.engines.vllm.config import VllmConfig

SHUTDOWN_TIMEOUT = 20.0  # seconds from SIGTERM to SIGKILL
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Allowed values of vLLM's max_lora_rank."""
_LONGEST_SOCKET = 100  # characters in a socket's path; Linux allows 107
_TAIL = 15  # lines of the log to show if it does not start
_SERVING = ("--tokens-only", "--disable-uvicorn-access-log")
# On a CPU, compilation takes minutes, and chunked prefill of a seeded request crashes vLLM 0.32 ("CPU Generator does
# not use offset").
_ON_A_CPU = ("enforce-eager", "no-enable-chunked-prefill")
_GENERIC = "Engine core initialization failed"
# A thread kills the server's process group when its parent has ended, even if the parent was killed. A signal at the
# parent's death is not enough, because vLLM may catch it while it starts.
_PROGRAM = """
import os, runpy, signal, sys, threading, time
def end_with(parent):
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=end_with, args=(int(sys.argv.pop(1)),), daemon=True).start()
runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
"""


def vllm_installed(python: str) -> bool:
    """Return True if the given Python can import vLLM. An empty string is the running Python."""
    path = _path(python)
    if path == sys.executable:
        return importlib.util.find_spec("vllm") is not None
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        return subprocess.run([path, "-c", code], env=_environment(path), check=False).returncode == 0
    except OSError as e:
        raise ConfigError(f"engine.vllm.python = {python!r} cannot be run: {e.strerror}") from e


def _lora_rank(rank: int) -> int:
    """Return the smallest limit of vLLM for adapters of a rank."""
    if rank > max(LORA_RANKS):
        raise ConfigError(
            f"engine.lora.rank = {rank}: vLLM takes at most {max(LORA_RANKS)}; lower it, or set engine.sampler=torch"
        )
    return min(most for most in LORA_RANKS if most >= rank)


def server_args(config: VllmConfig, *, dtype: str, max_num_seqs: int, lora_rank: int, on_cpu: bool) -> list[str]:
    """Return the arguments of `vllm serve` for an engine's sampler. `lora_rank` is 0 without LoRA adapters."""
    values = {"dtype": dtype, "max-num-seqs": max_num_seqs, "gpu-memory-utilization": config.gpu_memory_utilization}
    values |= {"logprobs-mode": "processed_logprobs", "generation-config": "vllm"}
    if config.max_model_len:
        values["max-model-len"] = config.max_model_len
    if lora_rank:
        values |= {
            "max-lora-rank": _lora_rank(lora_rank),
            "max-loras": 1,
            "max-cpu-loras": 2,
        }
    flags = ["enable-prefix-caching", *(["enable-lora"] if lora_rank else []), *(_ON_A_CPU if on_cpu else ())]
    return [f"--{flag}" for flag in flags] + [text for key, v in values.items() for text in (f"--{key}", str(v))]


class VllmServer(VllmHttpClient):
    """A `VllmBackend` that starts its own server. `folder` holds the socket and the logs."""

    is_owned = True

    def __init__(self, model: Path, server_args: Sequence[str], config: VllmConfig, folder: Path) -> None:
        """`model` is a folder of weights, and `server_args` are arguments of `vllm serve`."""
        socket = folder / "vllm.sock"
        if len(str(socket)) > _LONGEST_SOCKET:
            raise ConfigError(f"the path {socket} is too long for a socket; set TMPDIR to a folder with a shorter path")
        super().__init__(config, "http://vllm", socket)
        python = _path(config.python)
        self._command = [
            python,
            "-c",
            _PROGRAM,
            str(os.getpid()),
            "--model",
            str(model),
            "--served-model-name",
            SERVED_MODEL_NAME,
        ]
        self._command += ["--uds", str(socket), *_SERVING, *server_args, *config.server_args]
        self._environment = _environment(python)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder, self._starts = folder, 0
        self.log_path = folder / "vllm-1.log"

    async def start(self) -> None:
        """Start or restart the process and wait until it answers."""
        self.stop()
        self._launch()
        await super().start()

    async def is_healthy(self) -> bool:
        """Return True if the process runs and reports that it is healthy."""
        return self._process is not None and self._process.poll() is None and await super().is_healthy()

    def stop(self) -> None:
        """End the process and its subprocesses."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(SHUTDOWN_TIMEOUT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _launch(self) -> None:
        """Start the process with a new log file."""
        assert self._socket is not None
        self._socket.unlink(missing_ok=True)  # a killed server leaves its socket file behind
        self._starts += 1
        self.log_path = self._folder / f"vllm-{self._starts}.log"
        # In its own session, so that Ctrl-C reaches only the training process, which then stops the server.
        with self.log_path.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=self._environment, start_new_session=True
            )

    def __str__(self) -> str:
        return "vLLM's server"

    def _look(self) -> None:
        if self._process is not None and (status := self._process.poll()) is not None:
            raise VllmUnavailable(f"{self} ended with status {status}: {self._log_summary()}")

    def _log_summary(self) -> str:
        """Return the last error in the log, and the end of the log."""
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if re.search(r"\b\w*[Ee]rror: ", line) and _GENERIC not in line]
        cause = re.sub(r"^\(\w+ pid=\d+\)( ERROR [^\]]*\])?\s*", "", (errors or lines or [""])[-1])
        return "\n".join([f"{cause} (full log: {self.log_path})", *lines[-_TAIL:]])


def _path(python: str) -> str:
    """Return the path of a Python. An empty string is the running Python."""
    return str(Path(os.path.expanduser(python))) if python else sys.executable


def _environment(python: str) -> dict[str, str]:
    own = () if python == sys.executable else ("PYTHONPATH", "PYTHONHOME")  # our packages would shadow vLLM's
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    switches = ("VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_NO_USAGE_STATS", "HF_HUB_OFFLINE")
    return inherited | dict.fromkeys(switches, "1")
