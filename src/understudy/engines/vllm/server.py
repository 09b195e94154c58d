"""A vLLM server of our own: a process that listens on a Unix socket in a folder that only this user can enter."""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from understudy.engines.vllm.config import VllmConfig
from understudy.engines.vllm.endpoint import MODEL, Endpoint, Lost
from understudy.errors import ConfigError

SHUTDOWN = 20.0  # seconds from the request to end until it is killed
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM's max_lora_rank may be."""
_LONGEST_SOCKET = 100  # characters; Linux allows 107
_TAIL = 15  # lines of its log that are shown when it cannot start
_SERVING = ("--tokens-only", "--disable-uvicorn-access-log")
# Compiling for a CPU takes minutes; and there vLLM 0.32 dies of a prompt that has a seed and is prefilled in parts
# ("CPU Generator does not use offset").
_ON_A_CPU = ("enforce-eager", "no-enable-chunked-prefill")
_GENERIC = "Engine core initialization failed"
# A thread ends the server, and all that it has started, when its parent is gone, even where that was killed. (A signal
# at the parent's death is not enough: while vLLM starts, it may take it for an interruption of what it just does.)
_PROGRAM = """
import os, runpy, signal, sys, threading, time
def leash(parent):
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=leash, args=(int(sys.argv.pop(1)),), daemon=True).start()
runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
"""


def installed(python: str) -> bool:
    """Whether vLLM can be imported by a Python; empty is this one."""
    path = _path(python)
    if path == sys.executable:
        return importlib.util.find_spec("vllm") is not None
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        return subprocess.run([path, "-c", code], env=_environment(path), check=False).returncode == 0
    except OSError as e:
        raise ConfigError(f"engine.vllm.python = {python!r} cannot be run: {e.strerror}") from e


def options(config: VllmConfig, *, dtype: str, sequences: int, rank: int, cpu: bool) -> list[str]:
    """Arguments of `vllm serve` for an engine's sampler. `rank` is that of LoRA adapters, 0 without them."""
    values = {"dtype": dtype, "max-num-seqs": sequences, "gpu-memory-utilization": config.gpu_memory_utilization}
    values |= {"logprobs-mode": "processed_logprobs", "generation-config": "vllm"}
    if config.max_model_len:
        values["max-model-len"] = config.max_model_len
    if rank:
        values |= {"max-lora-rank": next(most for most in RANKS if most >= rank), "max-loras": 1, "max-cpu-loras": 2}
    flags = ["enable-prefix-caching", *(["enable-lora"] if rank else []), *(_ON_A_CPU if cpu else ())]
    return [f"--{flag}" for flag in flags] + [text for key, v in values.items() for text in (f"--{key}", str(v))]


class Server(Endpoint):
    """See `endpoint.Vllm`. `folder` gets the socket and the log."""

    owned = True

    def __init__(self, model: Path, options: Sequence[str], config: VllmConfig, folder: Path) -> None:
        """`model` is a folder of weights, `options` are of `vllm serve`."""
        socket = folder / "vllm.sock"
        if len(str(socket)) > _LONGEST_SOCKET:
            raise ConfigError(f"{socket} is too long a name for a socket; set TMPDIR to a shorter folder")
        super().__init__(config, "http://vllm", socket)
        python = _path(config.python)
        self._command = [python, "-c", _PROGRAM, str(os.getpid()), "--model", str(model), "--served-model-name", MODEL]
        self._command += ["--uds", str(socket), *_SERVING, *options, *config.arguments]
        self._environment = _environment(python)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder, self._starts = folder, 0
        self.log = folder / "vllm-1.log"

    async def start(self) -> None:
        """Start the process, anew if it runs, and wait until it answers."""
        self.stop()
        self._launch()
        await super().start()

    async def healthy(self) -> bool:
        """Whether the process runs and says so."""
        return self._process is not None and self._process.poll() is None and await super().healthy()

    def stop(self) -> None:
        """End the process and all that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(SHUTDOWN)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _launch(self) -> None:
        """Start the process, with a log of its own."""
        assert self._socket is not None
        self._socket.unlink(missing_ok=True)  # a killed server leaves it, and the next one would find it taken
        self._starts += 1
        self.log = self._folder / f"vllm-{self._starts}.log"
        # In a session of its own, so that Ctrl-C at the terminal reaches the training only, which ends it in time.
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=self._environment, start_new_session=True
            )

    def __str__(self) -> str:
        return "vLLM's server"

    def _look(self) -> None:
        if self._process is not None and (status := self._process.poll()) is not None:
            raise Lost(f"{self} ended with status {status}: {self._last_words()}")

    def _last_words(self) -> str:
        """The last error in its log, and the end of the log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if re.search(r"\b\w*[Ee]rror: ", line) and _GENERIC not in line]
        cause = re.sub(r"^\(\w+ pid=\d+\)( ERROR [^\]]*\])?\s*", "", (errors or lines or [""])[-1])
        return "\n".join([f"{cause} (all of it: {self.log})", *lines[-_TAIL:]])


def _path(python: str) -> str:
    """The path of a Python; empty is this one."""
    return str(Path(python).expanduser()) if python else sys.executable


def _environment(python: str) -> dict[str, str]:
    own = () if python == sys.executable else ("PYTHONPATH", "PYTHONHOME")  # its packages clash with vLLM's
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    switches = ("VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_NO_USAGE_STATS", "HF_HUB_OFFLINE")
    return inherited | dict.fromkeys(switches, "1")
