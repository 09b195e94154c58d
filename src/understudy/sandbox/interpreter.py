"""Interpreter: one Python for one episode, and the watch over it.

What comes out of the process is never trusted to be more than text. Between calls the process is stopped, so that
nothing goes on that no call waits for. One that is ended takes its variables and files along; the next call begins anew
and says so.
"""

import asyncio
import contextlib
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

from understudy.errors import ConfigError, ToolError
from understudy.sandbox.confine import Limits
from understudy.sandbox.guest import TOKEN

_GUEST = "understudy.sandbox.guest"
_ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONHASHSEED": "0"}
"""All that the process is told; the guest forgets it before it runs anything."""
_STARTING = 30.0
_GLANCE = 0.1
"""Seconds between two looks at the clock and the files."""
MOST_OUTPUT = 20_000
"""Characters of output that a call gives back."""
FLOOD = 1_000_000
"""Bytes of output at which a call is ended."""
MOST_FILES = 200
MOST_ON_DISK = 64 << 20
USUAL = Limits()
_GONE = "variables and files are gone, and the next call begins with a new interpreter"
_ANEW = "(a new interpreter: variables and files of earlier calls are gone)\n"


class Interpreter:
    """Runs code, keeping variables and files between calls. Nothing is started before the first call."""

    def __init__(self, seconds: float = 10.0, limits: Limits = USUAL) -> None:
        """`seconds` is how long one call may take, `limits` what the process may use."""
        self._seconds, self.limits = seconds, limits
        self._process: asyncio.subprocess.Process | None = None
        self._folder: Path | None = None
        self._token = b""
        self._lost = False
        self._turn = asyncio.Lock()

    async def run(self, code: str) -> str:
        """What the code prints, and the value of an expression that stands last. Ended code is a `ToolError`."""
        async with self._turn:
            ended = True
            try:
                output = await self._run(self._process or await self._start(), code)
                ended = False
            finally:  # also where the caller has left: nothing may go on, or be left to be read
                if ended:
                    self._lost = self._lost or self._process is not None
                    await self._end()
            note, self._lost = _ANEW if self._lost else "", False
            return note + _shown(output)

    async def close(self) -> None:
        """End the process, and remove its files. A call that is running is ended."""
        if self._process and self._process.returncode is None:
            self._process.kill()
        async with self._turn:
            await self._end()

    async def _run(self, process: asyncio.subprocess.Process, code: str) -> bytes:
        self._token = secrets.token_hex(TOKEN // 2).encode()
        source = code.encode(errors="replace")
        assert process.stdin
        with contextlib.suppress(ProcessLookupError, ConnectionError):  # it has ended since, which listening finds out
            process.send_signal(signal.SIGCONT)
            process.stdin.write(self._token + len(source).to_bytes(8, "big") + source)
        late = f"the code ran longer than {self._seconds:g} s and was stopped"
        output, trouble = await self._listen(process, self._seconds, late)
        if trouble:
            raise ToolError(f"{_shown(output)}\n{trouble}; {_GONE}".strip())
        with contextlib.suppress(ProcessLookupError):  # it has ended since, which the next call finds out
            process.send_signal(signal.SIGSTOP)
        return output

    async def _start(self) -> asyncio.subprocess.Process:
        """A process that has confined itself; where it cannot, its reason is a `ConfigError`."""
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
        self._token = secrets.token_hex(TOKEN // 2).encode()
        assert process.stdin
        process.stdin.write(self._token)
        output, trouble = await self._listen(process, _STARTING, _late())
        if trouble:
            raise ConfigError(_shown(output) or f"the sandbox does not begin: {trouble}")
        return process

    async def _listen(self, process: asyncio.subprocess.Process, seconds: float, late: str) -> tuple[bytes, str]:
        """What the process writes before its token, and what is wrong, if anything; after `seconds` that is `late`."""
        assert process.stdout
        output, until = bytearray(), time.monotonic() + seconds
        while not output.endswith(self._token):
            if time.monotonic() > until:
                return bytes(output), late
            if trouble := self._trouble(output):
                return bytes(output), trouble
            try:
                more = await asyncio.wait_for(process.stdout.read(65536), _GLANCE)
            except TimeoutError:
                continue
            if not more:
                return bytes(output), _epitaph(await process.wait(), self.limits)
            output += more
        trouble = self._overflow()
        return bytes(output[: -len(self._token)]), trouble

    def _trouble(self, output: bytearray) -> str:
        if len(output) > FLOOD:
            return f"the code printed more than {FLOOD:,} bytes and was stopped; print less"
        return self._overflow()

    def _overflow(self) -> str:
        """Whether the scratch folder, which is flat, holds too much."""
        assert self._folder
        files = size = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                files += 1
                size += _size(entry)
                if files > MOST_FILES or size > MOST_ON_DISK:
                    return f"the code left more than {MOST_FILES} files or {MOST_ON_DISK >> 20} MB and was stopped"
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
            while await process.stdout.read(65536):  # asyncio waits for the end of a pipe that nobody reads without end
                pass
            await process.wait()


def prove(limits: Limits = USUAL) -> None:
    """Confine a process that has nothing to do. Where this machine cannot, a `ConfigError` says what is missing."""
    token = secrets.token_hex(TOKEN // 2).encode()
    with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
        try:
            tried = subprocess.run(
                _command(limits),
                input=token,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=_ENVIRONMENT,
                timeout=_STARTING,
                check=False,
            )
        except subprocess.TimeoutExpired as e:
            raise ConfigError(f"the sandbox does not begin: {_late()}") from e
    if tried.stdout != token:
        raise ConfigError(_shown(tried.stdout) or _epitaph(tried.returncode, limits))


def _late() -> str:
    return f"it took longer than {_STARTING:g} s"


def _command(limits: Limits) -> tuple[str, ...]:
    return (sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", "-m", _GUEST, json.dumps(asdict(limits)))


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:  # removed a moment ago
        return 0


def _epitaph(status: int, limits: Limits) -> str:
    """Why the process has ended, as far as its status tells."""
    if status == -signal.SIGKILL:
        return f"the interpreter was killed: its {limits.cpu_seconds} s of processor time are used up"
    if status < 0:
        return f"the interpreter has crashed with {signal.Signals(-status).name}"
    return f"the interpreter has ended with status {status}"


def _shown(output: bytes) -> str:
    """The output as text, cut in the middle where it is long."""
    text = output.decode(errors="replace").rstrip("\n")
    if len(text) <= MOST_OUTPUT:
        return text
    half = MOST_OUTPUT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
