"""Transport: the SDK's connection to a server, opened as the server's settings require."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.abc import Process
from mcp import StdioServerParameters
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.os.posix.utilities import terminate_posix_process_tree

from understudy.clients.endpoint import validate_proxies
from understudy.core.errors import ConfigError, RolloutError
from understudy.sources.mcp.config import MCPServerConfig
from understudy.sources.mcp.http_tools import http_tools_server
from understudy.sources.mcp.secrets import Secrets
from understudy.sources.mcp.stdio import open_stdio

KILL_GRACE_SECONDS = 2.0
"""Seconds that a server process has to end before it is killed."""
CONNECT_SECONDS = 5.0
"""Seconds in which a server that does not speak MCP must accept a connection."""
CONNECT_POLL_SECONDS = 0.05
"""Seconds between checks whether a server listens."""
EXIT_POLL_SECONDS = 0.01
"""Seconds between checks of a killed process."""
LOG_CHUNK_BYTES = 4096
"""Bytes of a server's log that are read at a time."""
_GIVEN = deque[int](maxlen=100)
"""Recently assigned ports, whose servers may not listen yet."""
LAUNCHER_SCRIPT = 'echo $$ >&2; exec "$@"'
"""Launcher that reports the server's process id, which the SDK does not expose."""
HTTP_LAUNCHER_SCRIPT = 'exec 3<&0 </dev/null; (trap "" TERM; cat <&3; kill -KILL -$$) >/dev/null 2>&1 & ' + (
    'exec 3<&-; echo $$ >&2; exec "$@"'
)
"""Launcher of a server that listens on a port. It kills the server's process group when standard input ends, which is
when this process ends, even if it was killed. A server over standard input and output reads that end itself."""
MAX_MESSAGE_BYTES = 32 << 20
"""Largest message of a server, in bytes. A larger one is the server's fault, over HTTP and over standard output."""
_DIRECT: Mapping[str, httpx2.AsyncBaseTransport | None] = {
    f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")
}
"""The hosts of this machine, which no proxy of the environment can reach."""


class PlaceholderResolver:
    """Fills placeholders in a setting: `{folder}`, `{python}`, `{port}`, `${NAME}`."""

    def __init__(self, config: MCPServerConfig, folder: str, secrets: Secrets) -> None:
        self._places = {"{folder}": folder, "{python}": sys.executable}
        self._secrets = secrets
        if config.uses_placeholder("{port}"):
            self._places["{port}"] = str(_free_port())

    def __call__(self, text: str) -> str:
        """Return the text with all placeholders filled."""
        for place, value in self._places.items():
            text = text.replace(place, value)
        return self._secrets.expand(text)

    def resolve_all(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Return a mapping with its values filled."""
        return {key: self(value) for key, value in texts.items()}


class ServerLog:
    """The standard error of a server's process: first its id, written by the launcher, then its log."""

    def __init__(self) -> None:
        self.process = 0
        """The process id, which is also the id of its group."""
        self.http_status = 0
        """The status of the last HTTP response to a message; 0 if there was none."""
        self.has_ended, self.end_reason = asyncio.Event(), ""
        """Whether and how a process that serves HTTP ended on its own."""
        self._tail = deque[bytes](maxlen=8)
        self._reading, writing = os.pipe()
        self.file = os.fdopen(writing, "w")
        os.set_blocking(self._reading, False)
        asyncio.get_running_loop().add_reader(self._reading, self._read)
        self._limit: asyncio.TimerHandle | None = None

    @property
    def tail(self) -> str:
        """Return the end of the log."""
        return b"".join(self._tail).decode(errors="replace").strip()

    async def note_status(self, response: httpx2.Response) -> None:
        """Remember the status of a response to a message."""
        if response.request.method == "POST":
            self.http_status = response.status_code

    def end_within(self, seconds: float) -> None:
        """Kill the process after a grace period, even if the waiting task was cancelled."""
        if not self.file.closed:
            self._limit = self._limit or asyncio.get_running_loop().call_later(seconds, self._kill)

    async def end(self) -> None:
        """Kill the remaining processes of the group, even if the task that should end them was cancelled."""
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
        """Wait until the event loop has noticed the end of the process; otherwise its transport stays open."""
        with suppress(TimeoutError, ProcessLookupError):
            async with asyncio.timeout(KILL_GRACE_SECONDS):
                while self.process:
                    os.kill(self.process, 0)
                    await asyncio.sleep(EXIT_POLL_SECONDS)
        await asyncio.sleep(EXIT_POLL_SECONDS)

    def _read(self) -> None:
        written = os.read(self._reading, LOG_CHUNK_BYTES)
        if not self.process:
            process, _, written = written.partition(b"\n")
            self.process = int(process or 0)
        self._tail.append(written)


@asynccontextmanager
async def open_transport(config: MCPServerConfig, fill: PlaceholderResolver, log: ServerLog) -> AsyncIterator[Any]:
    """Return a transport for the SDK's client to open, or a server in this process."""
    try:
        if not config.url:
            yield open_stdio(
                _launched(config, fill), log.file, max_line_bytes=MAX_MESSAGE_BYTES, grace_seconds=KILL_GRACE_SECONDS
            )
            return
        async with AsyncExitStack() as stack:
            url = fill(config.url)
            if config.command:
                process = await stack.enter_async_context(_started(_launched(config, fill), log))
                await _listening(process, url)
                await stack.enter_async_context(_watched(process, log))
            validate_proxies()
            timeout = httpx2.Timeout(30.0, read=None)  # how long a call may take is the session's matter
            headers = {"accept-encoding": "identity"} | fill.resolve_all(config.headers)
            hooks: dict[str, list[Callable[..., Awaitable[None]]]] = {"response": [_limit_body, log.note_status]}
            client = await stack.enter_async_context(
                httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks, mounts=_DIRECT)
            )
            if config.http_tools:
                server = http_tools_server(url, client, Path(config.http_tools), config.http_arguments_key)
                await _reach(client, url)
                yield server
                return
            yield streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES)
    finally:
        await log.end()


async def _reach(client: httpx2.AsyncClient, url: str) -> None:
    """Raise `RolloutError` if nothing listens at the address. Any answer, also an error, is enough."""
    try:
        await client.head(url, timeout=CONNECT_SECONDS)
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as e:
        raise RolloutError("nothing answers at this address; start the server, or correct the url", "mcp") from e
    except httpx2.HTTPError:
        return  # a server without HEAD


class LimitedBody(httpx2.AsyncByteStream):
    """The body of a response that is no event stream, up to `MAX_MESSAGE_BYTES`. The SDK would read it without a limit.

    A compressed body is refused: it was not asked for, and its size is unknown.
    """

    def __init__(self, body: httpx2.AsyncByteStream, encoding: str) -> None:
        self._body, self._encoding = body, encoding

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body. Raise `StreamError` if it is too large or compressed."""
        if self._encoding not in ("", "identity"):
            raise httpx2.StreamError(f"it is compressed ({self._encoding}), which was not asked for")
        size = 0
        async for part in self._body:
            size += len(part)
            if size > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(f"it exceeded the {MAX_MESSAGE_BYTES} byte limit")
            yield part

    async def aclose(self) -> None:
        """Close the connection's stream."""
        await self._body.aclose()


async def _limit_body(response: httpx2.Response) -> None:
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = LimitedBody(response.stream, response.headers.get("content-encoding", ""))


def _launched(config: MCPServerConfig, fill: PlaceholderResolver) -> StdioServerParameters:
    """Return the command, environment and folder of the server's process, which the launcher starts.

    Raise `ConfigError` if the program does not exist.
    """
    env, cwd = fill.resolve_all(config.env), fill(config.cwd)
    words = [*map(fill, config.command)]
    path = (get_default_environment() | env).get("PATH")
    if not shutil.which(str(Path(cwd, words[0])) if "/" in words[0] else words[0], path=path):
        raise ConfigError(f"the program {words[0]!r} of an MCP server does not exist; install it, or give its path")
    script = HTTP_LAUNCHER_SCRIPT if config.url else LAUNCHER_SCRIPT
    return StdioServerParameters(command="/bin/sh", args=["-c", script, "sh", *words], env=env, cwd=cwd or None)


@asynccontextmanager
async def _started(server: StdioServerParameters, log: ServerLog) -> AsyncIterator[Process]:
    """Run a server that listens on a port while the context is open. It ends with this process."""
    environment = get_default_environment() | (server.env or {})
    process = await anyio.open_process(
        [server.command, *server.args],
        env=environment,
        cwd=server.cwd,
        stdin=subprocess.PIPE,
        stdout=log.file,
        stderr=log.file,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            await terminate_posix_process_tree(process, KILL_GRACE_SECONDS)
            await process.wait()


async def _listening(process: Process, url: str) -> None:
    """Wait until a server listens at the address."""
    where = urlsplit(url)
    while process.returncode is None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(where.hostname, where.port or 80)
            writer.close()
            return
        await asyncio.sleep(CONNECT_POLL_SECONDS)
    raise RolloutError(f"it ended with code {process.returncode} before it listened at {url}", "mcp")


@asynccontextmanager
async def _watched(process: Process, log: ServerLog) -> AsyncIterator[None]:
    """Raise `RolloutError` in the block if the server's process ends, because another process may then use its
    address.
    """
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_outlive, process, log)
        yield
        tasks.cancel_scope.cancel()


async def _outlive(process: Process, log: ServerLog) -> None:
    log.end_reason = f"ended with code {await process.wait()}"
    log.has_ended.set()
    raise RolloutError(log.end_reason, "mcp")


def _free_port() -> int:
    """Return a free port that was not assigned recently, because the kernel may return the same one again."""
    while True:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = int(found.getsockname()[1])
        if port not in _GIVEN:
            _GIVEN.append(port)
            return port
