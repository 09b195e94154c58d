"""Interpreter: one sandboxed Python process per episode, and its limits.

Output of the process is treated as untrusted text. Between calls the process is stopped, so no code runs in the
background. When a process is killed, its variables and files are lost; the next call starts a new one and says so.
"""

import asyncio
import contextlib
import functools
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from understudy.core.errors import ConfigError, ToolError
from understudy.sources.sandbox.confine import SandboxLimits
from understudy.sources.sandbox.guest import TOKEN_BYTES

_GUEST = "understudy.sources.sandbox.guest"
_ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONHASHSEED": "0"}
"""Environment variables of the process. The guest clears them before it runs any code."""
_START_TIMEOUT = 30.0
_POLL_INTERVAL = 0.1
"""Seconds between checks of the time and the files."""
MAX_OUTPUT_CHARACTERS = 20_000
"""Characters of output that a call returns; longer output is cut in the middle."""
MAX_OUTPUT_BYTES = 1_000_000
"""Bytes of output; a call that prints more is stopped."""
_EXIT_TIMEOUT = 1.0
"""Seconds that a process has to end after it has closed its output."""
PACKAGES = ("numpy", "pandas", "dateutil", "pytz", "six", "tzdata")
"""Packages outside Python's library that code may import where they are installed: numpy and pandas, and what they
import."""
DEFAULT_LIMITS = SandboxLimits()
_GONE = "its variables and files are lost, and the next call starts a new interpreter"
_ANEW = "(new interpreter: the variables and files of earlier calls are lost)\n"


class Interpreter:
    """Python interpreter whose variables and files persist between calls. The process starts at the first call."""

    def __init__(self, timeout: float = 10.0, limits: SandboxLimits = DEFAULT_LIMITS) -> None:
        """Set the seconds that one call may take (`timeout`) and the resource limits of the process."""
        self._timeout = timeout
        self.limits = limits
        self._process: asyncio.subprocess.Process | None = None
        self._folder: Path | None = None
        self._token = b""
        self._lost = False
        self._turn = asyncio.Lock()

    async def run(self, code: str) -> str:
        """Return what the code prints and the value of a last expression. Raise `ToolError` if it was stopped."""
        async with self._turn:
            ended = True
            try:
                output = await self._run(self._process or await self._start(), code)
                ended = False
            finally:  # also if the caller is cancelled: the code must stop, and no output may remain
                if ended:
                    self._lost = self._lost or self._process is not None
                    await self._end()
            note, self._lost = _ANEW if self._lost else "", False
            return note + decode_output(output)

    async def close(self) -> None:
        """End the process and remove its files. A running call is stopped."""
        if self._process and self._process.returncode is None:
            self._process.kill()
        async with self._turn:
            await self._end()

    async def _run(self, process: asyncio.subprocess.Process, code: str) -> bytes:
        self._token = secrets.token_hex(TOKEN_BYTES // 2).encode()
        source = code.encode(errors="replace")
        assert process.stdin
        with contextlib.suppress(ProcessLookupError, ConnectionError):  # the process has ended; `_listen` reports it
            process.send_signal(signal.SIGCONT)
            process.stdin.write(self._token + len(source).to_bytes(8, "big") + source)
        late = f"the code ran longer than {self._timeout:g} s and was stopped"
        output, trouble = await self._listen(process, self._timeout, late)
        if trouble:
            raise ToolError(f"{decode_output(output)}\n{trouble}; {_GONE}".strip())
        with contextlib.suppress(ProcessLookupError):  # the process has ended; the next call reports it
            process.send_signal(signal.SIGSTOP)
        return output

    async def _start(self) -> asyncio.subprocess.Process:
        """Return a confined process. Raise `ConfigError` with the reason if it cannot be confined."""
        self._folder = Path(tempfile.mkdtemp(prefix="understudy-"))
        self._process = process = await asyncio.create_subprocess_exec(
            *_command(self.limits),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self._folder,
            env=_ENVIRONMENT,
            start_new_session=True,
        )
        self._token = secrets.token_hex(TOKEN_BYTES // 2).encode()
        assert process.stdin
        process.stdin.write(self._token)
        output, trouble = await self._listen(process, _START_TIMEOUT, _start_timeout_text())
        if trouble:
            raise ConfigError(decode_output(output) or f"the sandbox does not start: {trouble}")
        return process

    async def _listen(self, process: asyncio.subprocess.Process, seconds: float, late: str) -> tuple[bytes, str]:
        """Return the output before the token, and a problem or "".

        The text `late` is the problem if the process takes longer than `seconds`.
        """
        assert process.stdout
        output, until = bytearray(), time.monotonic() + seconds
        while not output.endswith(self._token):
            if time.monotonic() > until:
                return bytes(output), late
            if trouble := self._trouble(output):
                return bytes(output), trouble
            try:
                more = await asyncio.wait_for(process.stdout.read(65536), _POLL_INTERVAL)
            except TimeoutError:
                continue
            if not more:
                return bytes(output), await self._end_of_output(process)
            output += more
        trouble = self._overflow()
        return bytes(output[: -len(self._token)]), trouble

    async def _end_of_output(self, process: asyncio.subprocess.Process) -> str:
        """Return why a process has closed its output: it ended, or the code closed it and could run for ever."""
        try:
            return _exit_reason(await asyncio.wait_for(process.wait(), _EXIT_TIMEOUT), self.limits)
        except TimeoutError:
            return "the code closed its output and was stopped"

    def _trouble(self, output: bytearray) -> str:
        if len(output) > MAX_OUTPUT_BYTES:
            return f"the code printed more than {MAX_OUTPUT_BYTES:,} bytes and was stopped; print less"
        return self._overflow()

    def _overflow(self) -> str:
        """Return the problem if the scratch folder, which is flat, exceeds its limits, else "".

        A file system of limited size is not visible here, and the code sees its errors.
        """
        assert self._folder
        files = size = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                files += 1
                size += _size(entry)
                if files > self.limits.max_files or size > self.limits.max_disk_bytes:
                    limit = f"{self.limits.max_files} files or {self.limits.max_disk_bytes >> 20} MB"
                    return f"the code stored more than {limit} and was stopped"
        return ""

    async def _end(self) -> None:
        process, self._process = self._process, None
        folder, self._folder = self._folder, None
        if process and process.returncode is None:
            process.kill()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        if process:
            assert process.stdin
            assert process.stdout
            process.stdin.close()
            while await process.stdout.read(65536):  # `wait` blocks for ever if the pipe is not read to its end
                pass
            await process.wait()


def verify_sandbox(limits: SandboxLimits = DEFAULT_LIMITS) -> None:
    """Confine an idle process as a test. Raise `ConfigError`, saying what is missing, if this machine cannot."""
    token = secrets.token_hex(TOKEN_BYTES // 2).encode()
    with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
        try:
            tried = subprocess.run(
                _command(limits),
                input=token,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=_ENVIRONMENT,
                timeout=_START_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as e:
            raise ConfigError(f"the sandbox does not start: {_start_timeout_text()}") from e
    if tried.stdout != token:
        raise ConfigError(decode_output(tried.stdout) or _exit_reason(tried.returncode, limits))


def _start_timeout_text() -> str:
    return f"it took longer than {_START_TIMEOUT:g} s"


def _command(limits: SandboxLimits) -> tuple[str, ...]:
    settings = json.dumps(asdict(limits)), json.dumps(_installed_packages())
    return (sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", "-m", _GUEST, *settings)


@functools.cache
def _installed_packages() -> dict[str, str]:
    """Return the files of the packages that the code may import, by name, if they are installed."""
    found = {name: importlib.util.find_spec(name) for name in PACKAGES}
    return {name: spec.origin for name, spec in found.items() if spec and spec.origin}


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:  # removed since the listing
        return 0


def _exit_reason(status: int, limits: SandboxLimits) -> str:
    """Return why the process ended, from its exit status."""
    if status == -signal.SIGKILL:
        return f"the interpreter was killed: it used all of its {limits.cpu_seconds} s of CPU time"
    if status < 0:
        return f"the interpreter crashed with {signal.Signals(-status).name}"
    return f"the interpreter ended with status {status}"


def decode_output(output: bytes) -> str:
    """Return the output as text, cut in the middle if it is longer than `MAX_OUTPUT_CHARACTERS`."""
    text = output.decode(errors="replace").rstrip("\n")
    if len(text) <= MAX_OUTPUT_CHARACTERS:
        return text
    half = MAX_OUTPUT_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
