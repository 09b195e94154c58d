"""Standard input and output as a connection to a server: one JSON-RPC message a line.

The SDK's `stdio_client` has no limit for a line, so a server that never ends its line would fill the memory. Here a
line beyond `max_line_bytes` is reported to the session once, as a `LineTooLongError` among the messages, and everything
after it is discarded. The end follows the SDK and the MCP specification: close standard input, wait, then kill the
process group.
"""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TextIO

import anyio
from anyio.abc import AsyncResource, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import StdioServerParameters
from mcp.client.stdio import get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

FLUSH_SECONDS = 0.5
"""Seconds that accepted messages have to be written before standard input is closed."""
KILLED_SECONDS = 10.0
"""Seconds in which the end of a killed process is noticed, also on a busy machine."""
EXIT_POLL_SECONDS = 0.01
"""Seconds between checks of an ending process."""
_ENDED = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)

Received = SessionMessage | Exception
"""A message of the server, or why a line is none."""


class LineTooLongError(Exception):
    """A line of a server exceeded the limit."""


@asynccontextmanager
async def open_stdio(
    server: StdioServerParameters, log: TextIO, *, max_line_bytes: int, grace_seconds: float
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Received], MemoryObjectSendStream[SessionMessage]]]:
    """Run a server while the context is open, and return the streams of its messages and of ours.

    Its standard error goes to `log`. At the end it has `grace_seconds` before it is killed.
    """
    process = await anyio.open_process(
        [server.command, *server.args],
        env=get_default_environment() | (server.env or {}),
        cwd=server.cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )
    received, incoming = anyio.create_memory_object_stream[Received](0)
    outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)
    flushed, drained = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_receive, process, received, max_line_bytes, drained)
        tasks.start_soon(_send, process, sent, received, flushed)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                incoming.close()  # so that the reader discards what comes, and the server can read its input
                outgoing.close()
                with anyio.move_on_after(FLUSH_SECONDS):
                    await flushed.wait()
                await _end(process, drained, grace_seconds)
                for stream in (received, sent):
                    stream.close()
            tasks.cancel_scope.cancel()


async def _receive(
    process: Process, received: MemoryObjectSendStream[Received], max_line_bytes: int, drained: anyio.Event
) -> None:
    """Send each line as a message, until the output ends, a line is too long, or nobody listens. Discard the rest."""
    assert process.stdout is not None
    begun: list[bytes] = []
    size = 0
    try:
        with suppress(*_ENDED):
            async with received:
                async for chunk in process.stdout:
                    *lines, rest = chunk.split(b"\n")
                    for line in lines:
                        await received.send(_message(b"".join([*begun, line])))
                        begun, size = [], 0
                    begun.append(rest)
                    size += len(rest)
                    if size > max_line_bytes:
                        begun, size = [], 0
                        await received.send(LineTooLongError(f"sent a line of more than {max_line_bytes} bytes"))
                        await _discard(process)
    finally:
        try:
            with anyio.CancelScope(shield=True):
                await _discard(process)
        finally:  # at the end of an event loop, asyncio cancels shielded tasks too
            drained.set()


async def _discard(process: Process) -> None:
    """Read the rest of the output, so that the server does not wait for a reader while it should end."""
    assert process.stdout is not None
    with suppress(*_ENDED):
        while True:
            await process.stdout.receive()


async def _send(
    process: Process,
    sent: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[Received],
    flushed: anyio.Event,
) -> None:
    """Write messages. If the server no longer reads, the connection ends, so that no request waits forever."""
    assert process.stdin is not None
    try:
        async with sent:
            async for message in sent:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(f"{text}\n".encode())
    except _ENDED:
        await received.aclose()
    finally:
        flushed.set()


def _message(line: bytes) -> Received:
    """Return the message of a line, or why it is none."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as e:
        return e


async def _end(process: Process, drained: anyio.Event, grace_seconds: float) -> None:
    """Close the server's input, wait for its end, and kill its process group if it does not come.

    asyncio closes the pipe of the output when all of it is read. A process outside the group may keep it open.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    await _close(process.stdin)
    if not await _has_ended(process, grace_seconds):
        await terminate_posix_process_tree(process, grace_seconds)
        await _has_ended(process, KILLED_SECONDS)
    with anyio.move_on_after(grace_seconds):
        await drained.wait()
        await _discard(process)
    await _close(process.stdout)


async def _has_ended(process: Process, seconds: float) -> bool:
    """Return whether the process ends in time. `process.wait` would also wait for children that hold its output."""
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110 (asyncio sets it without an event)
            await anyio.sleep(EXIT_POLL_SECONDS)
    return process.returncode is not None


async def _close(stream: AsyncResource) -> None:
    with suppress(*_ENDED):
        await stream.aclose()
