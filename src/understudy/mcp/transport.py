"""Transport: the SDK's connection to a server, over what its settings name."""

import asyncio
import os
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, TextIO
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.abc import Process
from mcp import StdioServerParameters, stdio_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.os.posix.utilities import terminate_posix_process_tree

from understudy.errors import ConfigError
from understudy.mcp.secret import Secrets
from understudy.mcp.settings import ServerConfig

GRACE = 2.0
"""Seconds that a server of ours has to end before it is killed."""
POLL = 0.05
"""Seconds between looks at a server that is about to listen."""
STDERR = 4096
"""Bytes of a server's log that are kept at a time."""


class Fill:
    """Fills in a text of the settings: `{folder}`, `{python}`, `{port}`, `${NAME}`."""

    def __init__(self, config: ServerConfig, folder: str, secrets: Secrets) -> None:
        self._places = {"{folder}": folder, "{python}": sys.executable}
        self._secrets = secrets
        if config.mentions("{port}"):
            self._places["{port}"] = str(_free_port())

    def __call__(self, text: str) -> str:
        for place, value in self._places.items():
            text = text.replace(place, value)
        return self._secrets.fill(text)

    def all(self, texts: Mapping[str, str]) -> dict[str, str]:
        """The values of a mapping filled in."""
        return {key: self(value) for key, value in texts.items()}


@asynccontextmanager
async def connect(config: ServerConfig, fill: Fill, stderr: deque[bytes]) -> AsyncIterator[Any]:
    """A transport for `mcp.Client` to open. The end of the server's log goes into `stderr`."""
    with _kept(stderr) as log:
        if not config.url:
            yield stdio_client(_parameters(config, fill), errlog=log)
            return
        async with AsyncExitStack() as stack:
            url = fill(config.url)
            if config.command:
                process = await stack.enter_async_context(_started(_parameters(config, fill), log))
                await _listening(process, url)
            timeout = httpx2.Timeout(30.0, read=None)  # how long a call may take is the session's matter
            headers = fill.all(config.headers)
            client = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
            yield streamable_http_client(url, http_client=client)


def _parameters(config: ServerConfig, fill: Fill) -> StdioServerParameters:
    program, *arguments = map(fill, config.command)
    return StdioServerParameters(
        command=program, args=arguments, env=fill.all(config.env), cwd=fill(config.cwd) or None
    )


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
    """Wait until somebody listens at the address; its end is an `OSError`."""
    where = urlsplit(url)
    while process.returncode is None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(where.hostname, where.port or 80)
            writer.close()
            return
        await asyncio.sleep(POLL)
    raise OSError(f"it ended with code {process.returncode} before it listened at {url}")


@contextmanager
def _kept(stderr: deque[bytes]) -> Iterator[TextIO]:
    """A file for a process to write to, of which the end is kept in memory."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    loop = asyncio.get_running_loop()

    def read() -> None:
        stderr.append(os.read(reading, STDERR))

    loop.add_reader(reading, read)
    try:
        with os.fdopen(writing, "w") as log:
            yield log
    finally:
        loop.remove_reader(reading)
        os.close(reading)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
