"""Transport: the SDK's connection to a server, over what its settings name."""

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.abc import Process
from mcp import StdioServerParameters, stdio_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.os.posix.utilities import terminate_posix_process_tree

from understudy.errors import ConfigError, RolloutError
from understudy.mcp.secret import Secrets
from understudy.mcp.settings import ServerConfig

GRACE = 2.0
"""Seconds that a server of ours has to end before it is killed."""
POLL = 0.05
"""Seconds between looks at a server that is about to listen."""
REAPING = 0.01
"""Seconds between looks at a process that has been killed."""
CHUNK = 4096
"""Bytes of a server's log that are read at a time."""
_GIVEN = deque[int](maxlen=100)
"""Ports that servers were given last, and may not listen at yet."""
LAUNCH = 'echo $$ >&2; exec "$@"'
"""What tells the id of a server's process: the SDK does not."""


class Fill:
    """Fills in a text of the settings: `{folder}`, `{python}`, `{port}`, `${NAME}`."""

    def __init__(self, config: ServerConfig, folder: str, secrets: Secrets) -> None:
        self._places = {"{folder}": folder, "{python}": sys.executable}
        self._secrets = secrets
        if config.mentions("{port}"):
            self._places["{port}"] = str(_free_port())

    def __call__(self, text: str) -> str:
        """The text with everything in its place."""
        for place, value in self._places.items():
            text = text.replace(place, value)
        return self._secrets.fill(text)

    def all(self, texts: Mapping[str, str]) -> dict[str, str]:
        """The values of a mapping filled in."""
        return {key: self(value) for key, value in texts.items()}


class ServerLog:
    """What a server's process writes beside the protocol: first its id, told by its launcher, and its last words."""

    def __init__(self) -> None:
        self.process = 0
        """The process's id, which is also its group's."""
        self._tail = deque[bytes](maxlen=8)
        self._reading, writing = os.pipe()
        self.file = os.fdopen(writing, "w")
        os.set_blocking(self._reading, False)
        asyncio.get_running_loop().add_reader(self._reading, self._read)
        self._limit: asyncio.TimerHandle | None = None

    @property
    def tail(self) -> str:
        """The end of it."""
        return b"".join(self._tail).decode(errors="replace").strip()

    def end_within(self, seconds: float) -> None:
        """Kill the process if it has not ended by then: whoever waits for it may have been kept from killing it."""
        if not self.file.closed:
            self._limit = self._limit or asyncio.get_running_loop().call_later(seconds, self._kill)

    async def end(self) -> None:
        """Kill what is left of the process and its children: even where the task that should end it was cancelled."""
        if self._limit:
            self._limit.cancel()
        self._kill()
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        self.file.close()
        await self._reaped()

    def _kill(self) -> None:
        with suppress(BlockingIOError):
            self._read()
        if self.process:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process, signal.SIGKILL)

    async def _reaped(self) -> None:
        """Wait until the event loop has heard of the process's end: one that closes before leaves it unclosed."""
        with suppress(TimeoutError, ProcessLookupError):
            async with asyncio.timeout(GRACE):
                while self.process:
                    os.kill(self.process, 0)
                    await asyncio.sleep(REAPING)
        await asyncio.sleep(REAPING)

    def _read(self) -> None:
        written = os.read(self._reading, CHUNK)
        if not self.process:
            process, _, written = written.partition(b"\n")
            self.process = int(process or 0)
        self._tail.append(written)


@asynccontextmanager
async def connect(config: ServerConfig, fill: Fill, log: ServerLog) -> AsyncIterator[Any]:
    """A transport for `mcp.Client` to open."""
    try:
        if not config.url:
            yield stdio_client(_launched(config, fill), errlog=log.file)
            return
        async with AsyncExitStack() as stack:
            url = fill(config.url)
            if config.command:
                process = await stack.enter_async_context(_started(_launched(config, fill), log.file))
                await _listening(process, url)
                await stack.enter_async_context(_watched(process))
            timeout = httpx2.Timeout(30.0, read=None)  # how long a call may take is the session's matter
            headers = fill.all(config.headers)
            client = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
            yield streamable_http_client(url, http_client=client)
    finally:
        await log.end()


def _launched(config: ServerConfig, fill: Fill) -> StdioServerParameters:
    """The server's process, which tells its id before it becomes the server."""
    env, cwd = fill.all(config.env), fill(config.cwd)
    words = [*map(fill, config.command)]
    path = (get_default_environment() | env).get("PATH")
    if not shutil.which(str(Path(cwd, words[0])) if "/" in words[0] else words[0], path=path):
        raise ConfigError(
            f"there is no program {words[0]!r} to start an MCP server with; install it, or write its path"
        )
    return StdioServerParameters(command="/bin/sh", args=["-c", LAUNCH, "sh", *words], env=env, cwd=cwd or None)


@asynccontextmanager
async def _started(server: StdioServerParameters, log: TextIO) -> AsyncIterator[Process]:
    """A server that listens on a port, as long as it is needed."""
    environment = get_default_environment() | (server.env or {})
    process = await anyio.open_process(
        [server.command, *server.args],
        env=environment,
        cwd=server.cwd,
        stdin=None,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            await terminate_posix_process_tree(process, GRACE)
            await process.wait()


async def _listening(process: Process, url: str) -> None:
    """Wait until somebody listens at the address."""
    where = urlsplit(url)
    while process.returncode is None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(where.hostname, where.port or 80)
            writer.close()
            return
        await asyncio.sleep(POLL)
    raise RolloutError(f"it ended with code {process.returncode} before it listened at {url}", "mcp")


@asynccontextmanager
async def _watched(process: Process) -> AsyncIterator[None]:
    """Fail when the server ends: who answers at its address from then on is another one, or was from the beginning."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_outlive, process)
        yield
        tasks.cancel_scope.cancel()


async def _outlive(process: Process) -> None:
    raise RolloutError(f"ended with code {await process.wait()}", "mcp")


def _free_port() -> int:
    """One that no server of ours is about to listen at: until one does, the kernel gives it again."""
    while True:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = int(found.getsockname()[1])
        if port not in _GIVEN:
            _GIVEN.append(port)
            return port
