"""Session: one connection to one server, from its start to its end.

A connection is opened and closed by a task of its own, which the SDK requires of whoever uses it from several episodes.
When the event loop ends, that task is cancelled like all others, and the server's processes end with it.
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import CONNECTION_CLOSED, CallToolResult, TextContent, Tool, ToolListChangedNotification
from pydantic import ValidationError

from understudy.errors import ConfigError, RolloutError
from understudy.mcp.reply import Reply, harmless, reply_of
from understudy.mcp.secret import Secrets
from understudy.mcp.settings import ServerConfig
from understudy.mcp.transport import GRACE, Fill, ServerLog, connect

FOLDER = "/episode"
"""What the agent sees of `{folder}`, which is another one each time."""
MOST_MESSAGES = 5000
"""Notifications, and lines that are no messages, that a server may send during one call."""
MOST_PAGES = 100
"""Pages of a list of tools."""
CLOSED = "Connection closed"
"""What the SDK says when the connection ends; a server may use the same code for errors of its own."""

# The SDK logs a traceback for each line that is no message. A flood of them is a fault here, and told once.
logging.getLogger("mcp").addHandler(logging.NullHandler())
logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)


class Session:
    """A server of one's own, or a connection to one. What fails is a `RolloutError` by the fault of `mcp`."""

    def __init__(self, name: str, config: ServerConfig) -> None:
        self.name, self.config = name, config
        self.tools: tuple[Tool, ...] = ()
        """What the server offers, as of the last time it was asked."""
        self.used = False
        """Whether a tool was called."""
        self.changed = False
        """Whether the server says that its tools have changed since."""
        self.broken = ""
        """Why the session can no longer be used."""
        self.late = 0
        """Calls that were given up and that the server may still be at: what they do yet must meet no other episode."""
        self._secrets = Secrets()
        self._log: ServerLog | None = None
        self._folder = ""
        self._client: Client | None = None
        self._ready, self._closing = asyncio.Event(), asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._leash: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._noise = self._garbage = 0

    async def open(self) -> None:
        """Start the server, shake hands and list its tools, in `start_timeout` seconds."""
        self._owner = asyncio.create_task(self._hold(), name=f"mcp {self.name}")
        self._owner.add_done_callback(self._ended)
        self._leash = asyncio.create_task(self._watch_the_end(), name=f"end of mcp {self.name}")
        ready = asyncio.ensure_future(self._ready.wait())
        limit = self.config.start_timeout
        try:
            await asyncio.wait({self._owner, ready}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            if not self._ready.is_set():
                self._closing.set()
                self._owner.cancel()
                await self.closed()
        if not self._ready.is_set():
            if isinstance(self._error, ConfigError):
                raise self._error
            late = f"it was not ready after start_timeout = {limit:g} s"
            raise self._fault(f"does not start: {self.broken if self._error else late}{self._said()}")

    async def call(
        self, tool: str, arguments: Mapping[str, Any], seconds: float, on_progress: ProgressFnT | None = None
    ) -> Reply:
        """One call, of `seconds` at most. An error that the server answers with is a reply."""
        if self.broken or self._client is None:
            raise self._fault(self.broken or "is closed")
        self.used, self._noise, self._garbage = True, 0, 0
        inside = self._inside(dict(arguments))
        try:
            async with asyncio.timeout(seconds):
                result = await self._client.call_tool(tool, inside, progress_callback=on_progress)
        except asyncio.CancelledError:
            if self.config.isolation == "episode":  # what the call does yet must not meet the next episode
                self.broken = self.broken or f"was left in the middle of {tool}"
            raise
        except TimeoutError:
            result = await self._late(tool, seconds)
        except MCPError as e:
            result = self._refusal(tool, e)
        except (ValidationError, RuntimeError, OSError, httpx2.HTTPError, anyio.BrokenResourceError) as e:
            raise await self._failed(f"answered {tool} with what is no result: {self.clean(str(e))[:300]}") from e
        return reply_of(result, self.clean, self.config.result_characters)

    async def list(self) -> tuple[Tool, ...]:
        """Ask what the server offers now."""
        if self.broken or self._client is None:
            raise self._fault(self.broken or "is closed")
        self.changed = False
        try:
            async with asyncio.timeout(self.config.call_timeout):
                self.tools = await _listed(self._client)
        except (MCPError, ValidationError, TimeoutError, RuntimeError, OSError, httpx2.HTTPError) as e:
            raise self._fault(f"does not list its tools: {self.clean(str(e))[:300] or 'too slow'}", ends=True) from e
        return self.tools

    def close(self) -> None:
        """Let the server end; nobody has to wait for it."""
        self.broken = self.broken or "is closed"
        self._closing.set()

    async def closed(self) -> None:
        """Wait until the server has ended."""
        if self._owner is not None:
            await asyncio.wait({self._owner})

    def clean(self, text: str) -> str:
        """A text of the server's without secrets, without this session's folder, and harmless to read."""
        text = self._secrets.hide(text)
        return harmless(text.replace(self._folder, FOLDER) if self._folder else text)

    async def _hold(self) -> None:
        """Hold the connection open until somebody closes it."""
        async with AsyncExitStack() as stack:
            self._log = ServerLog()
            transport = await stack.enter_async_context(connect(self.config, self._filled(stack), self._log))
            protocol = "legacy" if self.config.per_session else self.config.protocol
            client = await stack.enter_async_context(Client(transport, mode=protocol, message_handler=self._heard))
            self.tools, self._client = await _listed(client), client
            await self._listen(client, stack)
            self._ready.set()
            await self._closing.wait()

    async def _watch_the_end(self) -> None:
        """Hold the server to an end. The SDK waits for it without one where the loop ends while it is being closed."""
        try:
            await self._closing.wait()
        finally:
            if self._log:
                self._log.end_within(2 * GRACE)

    async def _listen(self, client: Client, stack: AsyncExitStack) -> None:
        """Since 2026-07-28, a server tells of changed tools only those who ask for it; what it tells is `_heard`."""
        tools = client.server_capabilities.tools
        if tools and tools.list_changed and client.session.discover_result is not None:
            with suppress(MCPError, RuntimeError):
                await stack.enter_async_context(client.listen(tools_list_changed=True))

    def _filled(self, stack: AsyncExitStack) -> Fill:
        """What stands in braces in the settings; the session's folder goes when the session ends."""
        if self.config.mentions("{folder}"):
            self._folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            if self.config.files:
                shutil.copytree(self.config.files, self._folder, dirs_exist_ok=True)
        return Fill(self.config, self._folder, self._secrets)

    async def _heard(self, message: object) -> None:
        """Everything that comes unasked: notifications, requests, and lines that could not be read."""
        self.changed = self.changed or isinstance(message, ToolListChangedNotification)
        self._noise += 1
        self._garbage += isinstance(message, Exception)
        if self._noise > MOST_MESSAGES and not self.broken:
            self.broken = f"floods: {self._noise} messages during one call, {self._garbage} of them unreadable"
            if self._owner is not None:
                self._owner.cancel()

    def _refusal(self, tool: str, error: MCPError) -> CallToolResult:
        """A server's error as a result, unless it is the connection that has ended."""
        if error.code == CONNECTION_CLOSED and error.message == CLOSED:
            raise self._fault(self.broken or f"died during {tool}{self._said()}", ends=True) from error
        return _failure(error.message)

    async def _late(self, tool: str, seconds: float) -> CallToolResult:
        """A call that took too long: an error for the agent, or a fault."""
        self.late += 1
        if self.config.on_timeout == "error":
            return _failure(f"{tool} did not answer in {seconds:g} seconds")
        garbage = f"; {self._garbage} lines of it were no messages" if self._garbage else ""
        raise await self._failed(f"did not answer {tool} in {seconds:g} s{garbage}")

    async def _failed(self, what: str) -> RolloutError:
        """The fault of one call, which ends the session, unless others use it and the server still answers."""
        if self.config.isolation == "shared":
            changed = self.changed
            await self.list()
            self.changed = self.changed or changed
        return self._fault(what, ends=self.config.isolation == "episode")

    def _fault(self, what: str, *, ends: bool = False) -> RolloutError:
        if ends and not self.broken:
            self.broken = what
            self.close()
        return RolloutError(f"the MCP server {self.name!r} {what}", "mcp")

    def _said(self) -> str:
        """The last that the server has written to its log."""
        text = self.clean(self._log.tail) if self._log else ""
        return f"; it says: {text[-400:]}" if text else ""

    def _inside(self, value: Any) -> Any:
        """Arguments with the session's folder in place of the agent's name for it."""
        if isinstance(value, str) and self._folder:
            return value.replace(FOLDER, self._folder)
        if isinstance(value, list):
            return [self._inside(item) for item in value]
        return {key: self._inside(item) for key, item in value.items()} if isinstance(value, dict) else value

    def _ended(self, owner: "asyncio.Task[None]") -> None:
        self._closing.set()
        self._error = None if owner.cancelled() else _first(owner.exception())
        if not self.broken:
            self.broken = self.clean(str(self._error) or type(self._error).__name__) if self._error else "is closed"


def _failure(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


async def _listed(client: Client) -> tuple[Tool, ...]:
    """All pages of the list of tools, from the server and not from the SDK's memory."""
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tuple(tools)
    raise RolloutError(f"its list of tools has more than {MOST_PAGES} pages", "mcp")


def _first(error: BaseException | None) -> BaseException | None:
    """What went wrong in the task that holds a connection: the first of what a group holds."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
