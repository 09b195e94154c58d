"""Session: one connection to one server, from start to end.

The SDK requires that the same asyncio task opens and closes a connection, so each session has its own asyncio task.
When the event loop ends, that asyncio task is cancelled and the server's processes end.
"""

import asyncio
import logging
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import httpx2
from jsonschema import SchemaError
from jsonschema.validators import validator_for
from mcp import Client, MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import (
    METHOD_NOT_FOUND,
    CallToolResult,
    TextContent,
    TextResourceContents,
    Tool,
    ToolListChangedNotification,
)
from pydantic import ValidationError
from referencing import Registry

from understudy.core.errors import ConfigError, RolloutError
from understudy.envs.schemas import schema_error
from understudy.envs.validation_time import find_validation_problem, may_be_slow
from understudy.sources.mcp.cassette import EMPTY_HISTORY
from understudy.sources.mcp.catalog import without_unreadable_patterns
from understudy.sources.mcp.config import MCPServerConfig
from understudy.sources.mcp.secrets import Secrets
from understudy.sources.mcp.stdio import LineTooLongError
from understudy.sources.mcp.tool_result import ToolResult, result_size, sanitize_text, to_tool_result
from understudy.sources.mcp.transport import (
    KILL_GRACE_SECONDS,
    MAX_MESSAGE_BYTES,
    PlaceholderResolver,
    ServerLog,
    open_transport,
)

SESSION_FOLDER = "/episode"
"""The agent's name for `{folder}`, which differs in each session."""
_FOLDER_PATH = re.compile(rf"(?:(?<![\w./%~$)}}-])|(?<=://)|(?<=:///)){SESSION_FOLDER}(?![\w-]|\.\w)")
"""The name where it begins a path, as in `file:///episode/a.txt`, but not within a URL or another path."""
MAX_MESSAGES = 5000
"""Notifications and invalid lines that a server may send during one call."""
MAX_PAGES = 100
"""The largest number of pages in a list of tools."""
CONNECTION_ERRORS = re.compile(
    "Connection closed$|SSE stream (failed|ended)|Failed to parse (SSE message|JSON response)|Unexpected content type"
    "|Server returned an error response$|Connection to .* failed: |Session terminated$|Redirect to .* not followed"
    "|server answered a request with 202 Accepted$"
)
"""The SDK's messages when a connection or an answer over HTTP fails. Servers use its codes for their own errors too."""
CLOSED_MESSAGE = "Connection closed"
"""The SDK's message when the connection has ended."""
_CREDENTIALS = "check the key in headers, such as headers = {Authorization = 'Bearer ${NAME}'}"
_ADDRESS = "check the url: it must be the server's address for streamable HTTP, often /mcp; SSE is not supported"
START_ADVICE = {401: _CREDENTIALS, 403: _CREDENTIALS, 404: _ADDRESS, 405: _ADDRESS}
"""What a user should do if a server answers the first request with this status."""
END_NOTICE_SECONDS = 1.0
"""Seconds until the end of a process is noticed after its connection failed."""
CONNECTION_ENDS = (
    RolloutError,
    MCPError,
    ValidationError,
    RuntimeError,
    OSError,
    httpx2.HTTPError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    BaseExceptionGroup,
)
"""The errors that end a connection."""

logging.getLogger("mcp").addHandler(logging.NullHandler())


class MCPSession:
    """A server process, or a connection to a server. Failures are `RolloutError` with fault `mcp`."""

    def __init__(self, name: str, config: MCPServerConfig) -> None:
        self.name, self.config = name, config
        self.tools: tuple[Tool, ...] = ()
        """The server's tools when last listed."""
        self.used = False
        """Whether a tool was called."""
        self.history = EMPTY_HISTORY
        """The digest of the setup calls that an episode made and changed nothing after, if the session was kept."""
        self.tools_changed = False
        """Whether the server has announced that its tools changed."""
        self.broken = ""
        """Why the session can no longer be used."""
        self.abandoned_calls = 0
        """Calls that timed out and may still be running in the server. They must not affect another episode."""
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
        """Start the server, shake hands and list its tools, within `start_timeout` seconds."""
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
                await self.wait_closed()
        if not self._ready.is_set():
            if isinstance(self._error, ConfigError):
                raise self._error
            why = self.broken if self._error else f"it was not ready within start_timeout = {limit:g} s"
            if why == CLOSED_MESSAGE and not self.config.url:
                why = "its process ended, or closed its output"
            elif self._error and self._log and self._log.http_status in START_ADVICE:
                why = f"status {self._log.http_status}; {START_ADVICE[self._log.http_status]}"
            place = self.config.url or shlex.join(self.config.command)
            raise self._fault(f"did not start ({place}): {why}{self._said()}")

    async def call(
        self, tool: str, arguments: Mapping[str, Any], seconds: float, on_progress: ProgressFnT | None = None
    ) -> ToolResult:
        """Call a tool, within `seconds`. An error returned by the server is a result."""
        if self.broken or self._client is None:
            raise self._fault(self.broken or "is closed")
        self.used, self._noise, self._garbage = True, 0, 0
        inside = self._inside(dict(arguments))
        try:
            async with asyncio.timeout(seconds):
                result = await self._client.call_tool(tool, inside, progress_callback=on_progress)
        except asyncio.CancelledError:
            if self.config.isolation == "episode":  # what the call does yet must not meet the next episode
                self.broken = self.broken or f"was abandoned during {tool}"
            raise
        except TimeoutError:
            result = await self._late(tool, seconds)
        except MCPError as e:
            result = await self._refusal(tool, e)
        except (ValidationError, RuntimeError, OSError, httpx2.HTTPError, anyio.BrokenResourceError) as e:
            raise await self._failed(f"answered {tool} with an invalid result: {self._reason(e)}") from e
        if result_size(result) > MAX_MESSAGE_BYTES:
            raise await self._failed(f"answered {tool} with more than {MAX_MESSAGE_BYTES} bytes")
        return to_tool_result(result, self.sanitize, self.config.max_result_characters)

    async def list_tools(self) -> tuple[Tool, ...]:
        """List the server's tools again."""
        if self.broken or self._client is None:
            raise self._fault(self.broken or "is closed")
        self.tools_changed = False
        try:
            async with asyncio.timeout(self.config.call_timeout):
                self.tools = await _list_tools(self._client)
        except (MCPError, ValidationError, TimeoutError, RuntimeError, OSError, httpx2.HTTPError) as e:
            ended = await self._process_end() or self.broken
            why = ended or f"failed to list its tools: {self._reason(e)}"
            raise self._fault(why, ends=True) from e
        return self.tools

    async def read_resources(self, limit: int) -> list[str]:
        """Return the sanitized texts of the first `limit` resources. A server that refuses to list any has none."""
        if self.broken or self._client is None:
            raise self._fault(self.broken or "is closed")
        if not self._client.server_capabilities.resources:
            return []
        texts: list[str] = []
        try:
            async with asyncio.timeout(self.config.call_timeout):
                for resource in (await self._client.list_resources()).resources[:limit]:
                    read = await self._client.read_resource(resource.uri)
                    texts += [part.text for part in read.contents if isinstance(part, TextResourceContents)]
        except (MCPError, ValidationError, TimeoutError, RuntimeError, OSError, httpx2.HTTPError) as e:
            raise self._fault(f"failed to give its resources: {self._reason(e)}") from e
        return [self.sanitize(text)[: self.config.max_result_characters] for text in texts]

    def close(self) -> None:
        """Let the server end, without waiting."""
        self.broken = self.broken or "is closed"
        self._closing.set()

    async def wait_closed(self) -> None:
        """Wait until the server has ended."""
        if self._owner is not None:
            await asyncio.wait({self._owner})

    def sanitize(self, text: str) -> str:
        """Return a text of the server sanitized, without secrets and without this session's folder."""
        text = self._secrets.redact(text)
        return sanitize_text(text.replace(self._folder, SESSION_FOLDER) if self._folder else text)

    async def _hold(self) -> None:
        """Keep the connection open until `close`. Keep the error that ends it, which asyncio would print otherwise."""
        try:
            await self._connected()
        except (ConfigError, *CONNECTION_ENDS) as e:
            self._error = _first(e)

    async def _connected(self) -> None:
        async with AsyncExitStack() as stack:
            fill = self._fill_placeholders(stack)
            self._log = ServerLog()
            transport = await stack.enter_async_context(open_transport(self.config, fill, self._log))
            protocol = "legacy" if self.config.state_per_session else self.config.protocol
            client = await stack.enter_async_context(Client(transport, mode=protocol, message_handler=self._heard))
            self.tools, self._client = await _list_tools(client), client
            self._limit_result_validation(client)
            await self._listen(client, stack)
            self._ready.set()
            await self._closing.wait()

    def _limit_result_validation(self, client: Client) -> None:
        """Let the validation of structured results end, whatever the output schema is.

        The SDK validates in the event loop without a limit, and fails at patterns that Python does not read. Results
        are not compared with these. A RuntimeError marks the result as invalid.
        """
        validate = client.session.validate_tool_result

        async def validate_within_limit(name: str, result: CallToolResult) -> None:
            schema = next((tool.output_schema for tool in self.tools if tool.name == name), None) or {}
            readable = without_unreadable_patterns(schema)
            if may_be_slow(readable):
                problem = await asyncio.to_thread(find_validation_problem, readable, result.structured_content)
                if problem:
                    raise RuntimeError(f"the output schema of {name} cannot be used: {problem}")
            if readable == schema or result.structured_content is None:
                await validate(name, result)
                return
            try:
                validator_for(readable).check_schema(readable)
            except SchemaError as e:
                raise RuntimeError(f"the output schema of {name} is invalid: {e.message}") from e
            if error := schema_error(validator_for(readable)(readable, registry=Registry()), result.structured_content):
                raise RuntimeError(f"invalid structured content of {name}: {error}")

        client.session.validate_tool_result = validate_within_limit  # type: ignore[method-assign]

    async def _watch_the_end(self) -> None:
        """Limit the time that the server may take to end. The SDK waits without a limit if the loop ends during
        closing."""
        try:
            await self._closing.wait()
        finally:
            if self._log:
                self._log.end_within(2 * KILL_GRACE_SECONDS)

    async def _listen(self, client: Client, stack: AsyncExitStack) -> None:
        """Subscribe to changes of the tools, which servers since 2026-07-28 only send on request. `_heard` handles
        them."""
        tools = client.server_capabilities.tools
        if tools and tools.list_changed and client.session.discover_result is not None:
            with suppress(MCPError, RuntimeError):
                await stack.enter_async_context(client.listen(tools_list_changed=True))

    def _fill_placeholders(self, stack: AsyncExitStack) -> PlaceholderResolver:
        """Return the values of placeholders in the settings. The session's folder is deleted when the session ends."""
        if self.config.uses_placeholder("{folder}"):
            self._folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            if self.config.initial_files:
                shutil.copytree(self.config.initial_files, self._folder, dirs_exist_ok=True)
        return PlaceholderResolver(self.config, self._folder, self._secrets)

    async def _heard(self, message: object) -> None:
        """Handle unsolicited messages: notifications, requests and invalid lines."""
        self.tools_changed = self.tools_changed or isinstance(message, ToolListChangedNotification)
        self._noise += 1
        self._garbage += isinstance(message, Exception)
        if isinstance(message, LineTooLongError):
            wrong = str(message)
        elif self._noise > MAX_MESSAGES:
            wrong = f"sent too many messages: {self._noise} during one call, {self._garbage} of them unreadable"
        else:
            return
        if not self.broken:
            self.broken = wrong
            if self._owner is not None:
                self._owner.cancel()

    async def _refusal(self, tool: str, error: MCPError) -> CallToolResult:
        """Convert a server's error into a result, unless the connection has failed."""
        is_unknown_page = error.code == METHOD_NOT_FOUND and error.message == "Not Found"  # HTTP 404
        known = CONNECTION_ERRORS.match(error.message) if self.config.url else error.message == CLOSED_MESSAGE
        if not is_unknown_page and not known:
            return _failure(error.message)
        if error.message == CLOSED_MESSAGE and not self.broken and await self._answers():
            return _failure(error.message)  # the server's own text
        if ended := await self._process_end() or (self._error and self.broken):
            raise self._fault(f"died during {tool} ({ended}){self._said()}", ends=True) from error
        if self.broken:
            raise self._fault(self.broken) from error
        if error.message == CLOSED_MESSAGE:
            raise self._fault(f"died during {tool}{self._said()}", ends=True) from error
        raise await self._failed(f"failed to answer {tool}: {self._reason(error)}") from error

    async def _answers(self) -> bool:
        """Return whether the connection still works. After the SDK has closed it, no request is sent."""
        assert self._client is not None
        try:
            async with asyncio.timeout(self.config.call_timeout):
                self.tools = await _list_tools(self._client)
        except (MCPError, ValidationError, TimeoutError, RuntimeError, OSError, httpx2.HTTPError):
            return False
        return True

    async def _process_end(self) -> str:
        """Return how a process that serves HTTP ended, or "". It tells more than the end of the connection."""
        if self._log is not None and self.config.url and self.config.command:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_NOTICE_SECONDS):
                    await self._log.has_ended.wait()
        return self._log.end_reason if self._log else ""

    async def _late(self, tool: str, seconds: float) -> CallToolResult:
        """Handle a timeout: an error for the agent, or a fault."""
        self.abandoned_calls += 1
        if self.config.on_timeout == "error":
            return _failure(f"{tool} did not answer in {seconds:g} seconds")
        garbage = f"; {self._garbage} of its lines were not messages" if self._garbage else ""
        raise await self._failed(f"did not answer {tool} in {seconds:g} s{garbage}")

    async def _failed(self, what: str) -> RolloutError:
        """Return the error of one failed call.

        The failure ends the session, unless the session is shared and the server still answers.
        """
        if self.config.isolation == "shared":
            changed = self.tools_changed
            try:
                await self.list_tools()
            except RolloutError:
                self.broken = f"{what}, and has not answered since"
                return self._fault(self.broken)
            self.tools_changed = self.tools_changed or changed
        return self._fault(what, ends=self.config.isolation == "episode")

    def _fault(self, what: str, *, ends: bool = False) -> RolloutError:
        if ends and not self.broken:
            self.broken = what
            self.close()
        return RolloutError(f"the MCP server {self.name!r} {what}", "mcp")

    def _reason(self, error: BaseException) -> str:
        """Return an error of the connection in one line."""
        if isinstance(error, TimeoutError):
            return "too slow"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        else:
            text = str(error) or type(error).__name__
        return " ".join(self.sanitize(text).split())[:300]

    def _said(self) -> str:
        """Return the end of the server's log."""
        text = " ".join(self.sanitize(self._log.tail).split()) if self._log else ""
        return f"; its log ends with: {text[-400:]}" if text else ""

    def _inside(self, value: Any) -> Any:
        """Replace the agent's name for the session's folder in the arguments."""
        if isinstance(value, str) and self._folder:
            return insert_folder(value, self._folder)
        if isinstance(value, list):
            return [self._inside(item) for item in value]
        return {key: self._inside(item) for key, item in value.items()} if isinstance(value, dict) else value

    def _ended(self, owner: "asyncio.Task[None]") -> None:
        self._closing.set()
        if not owner.cancelled() and owner.exception():
            self._error = _first(owner.exception())
        if not self.broken:
            self.broken = self._reason(self._error) if self._error else "is closed"


def insert_folder(text: str, folder: str) -> str:
    """Return a text with the folder in place of the agent's name for it."""
    return _FOLDER_PATH.sub(lambda _: folder, text)


def _failure(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


async def _list_tools(client: Client) -> tuple[Tool, ...]:
    """List all pages of tools from the server, not from the SDK's cache."""
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:  # some servers end the list with an empty one
            return tuple(tools)
    raise RolloutError(f"its list of tools has more than {MAX_PAGES} pages", "mcp")


def _first(error: BaseException | None) -> BaseException | None:
    """Return the first error in the exception group of a connection's task."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
