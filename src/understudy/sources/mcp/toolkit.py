"""MCPToolkit: the tools of MCP servers, for one episode.

    async with MCPToolkit({"notes": MCPServerConfig(command=("my-notes",))}) as kit:
        kit.specs()
        await kit.call(ToolCall(name="add_note", arguments={"text": "milk"}))

A call that fails, or that is rejected here (unknown tool, bad arguments, limit reached), raises `ToolError`, which the
model sees. A server that dies, hangs, sends too many or invalid messages, has a schema that cannot be used, or changes
its tools raises `RolloutError` with fault `mcp`.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from understudy.core.errors import RolloutError, TaskError, ToolError
from understudy.core.messages import ToolCall, ToolSpec
from understudy.envs.validation_time import find_validation_problem, may_be_slow
from understudy.sources.mcp.cassette import EMPTY_HISTORY, TaskCassette, history_digest
from understudy.sources.mcp.catalog import CatalogEntry, ToolCatalog, ToolNaming, matches_any, sanitized_specs
from understudy.sources.mcp.config import MCPCall, MCPLimits, MCPServerConfig
from understudy.sources.mcp.pool import SessionPools
from understudy.sources.mcp.session import MCPSession
from understudy.sources.mcp.tool_result import ToolResult

CassetteMode = Literal["off", "record", "replay", "extend"]
ToolProgressCallback = Callable[[float, float | None, str], None]
"""Receives the progress of a call: done, total if known, and the server's message."""


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A call of the agent that was sent to a server."""

    server: str
    tool: str
    arguments: dict[str, Any]
    failed: bool
    """Whether the tool returned an error."""


class MCPToolkit:
    """The tools of one episode.

    Without a catalog, the tools are those that the servers list, and they change when a server changes its list. With
    a catalog, such a change is an error.
    """

    def __init__(
        self,
        servers: Mapping[str, MCPServerConfig],
        *,
        naming: ToolNaming = "flat",
        limits: MCPLimits | None = None,
        catalog: ToolCatalog | None = None,
        pools: SessionPools | None = None,
        cassette: TaskCassette | None = None,
        mode: CassetteMode = "off",
        on_progress: ToolProgressCallback | None = None,
    ) -> None:
        self.server_calls: list[ServerCall] = []
        """The agent's calls, in order."""
        self._servers, self._names, self._limits = servers, naming, limits or MCPLimits()
        self._catalog, self._follows = catalog or ToolCatalog({}, {}, naming), catalog is None
        self._pools, self._cassette, self._mode = pools or SessionPools(servers), cassette, mode
        self._on_progress = on_progress
        self._tools: set[tuple[str, str]] = set()
        self._sessions: dict[str, MCPSession] = {}
        self._ahead: set[str] = set()  # servers that have answered a call of this episode
        self._after = dict.fromkeys(servers, EMPTY_HISTORY)
        self._setup = dict(self._after)  # the histories after the setup calls
        self._is_set_up = False
        self._past: list[tuple[CatalogEntry, dict[str, Any], ToolResult]] = []
        self._spent = 0.0

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.close)  # if opening fails, return the sessions that it has
            await self.open()
            stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Get a session of each server, unless a cassette may answer."""
        if self._mode not in ("replay", "extend"):
            await self._take_all()

    async def set_up(self, calls: Sequence[MCPCall]) -> None:
        """Get the sessions and make the setup calls of a task. Raise `TaskError` if one fails.

        Calls are left out if a session has made them for an earlier episode of the task and nothing has changed since.
        """
        if self._cassette is None:
            for entry, call in ((self._catalog.get_any(call.tool), call) for call in calls):
                if self._may_change(entry):
                    after = self._setup[entry.server]
                    self._setup[entry.server] = history_digest(after, entry.tool, call.arguments)
        await self.open()
        ready = {name for name, session in self._sessions.items() if session.history != EMPTY_HISTORY}
        for name in ready:
            self._after[name] = self._setup[name]
        await self.run_calls([call for call in calls if self._catalog.get_any(call.tool).server not in ready])
        self._is_set_up = True

    async def run_calls(self, calls: Sequence[MCPCall]) -> list[ToolResult]:
        """Make calls of the environment that must succeed, and return their results. Raise `TaskError` if one fails."""
        results = list[ToolResult]()
        for call in calls:
            reply = await self.call_internal(call)
            if reply.is_error:
                raise TaskError(f"the call {call.tool}({call.arguments}) failed: {reply.text[:300]}")
            results.append(reply)
        return results

    async def close(self) -> None:
        """Return the sessions to their pools and write what was recorded."""
        for name in [*self._sessions]:
            self._return(name)
        if self._cassette is not None:
            self._cassette.save()

    def specs(self) -> tuple[ToolSpec, ...]:
        """The agent's tools."""
        return self._catalog.specs

    async def call(self, call: ToolCall) -> str:
        """Run one call of the agent and return the result."""
        if call.parse_error:
            raise ToolError(call.parse_error, "malformed")
        for name in [name for name, session in self._sessions.items() if session.tools_changed]:
            await self._look_again(name)
        entry = self._catalog.get(call.name)
        arguments = entry.spec.resolve_aliases(call.arguments)
        await self._validate_schema(entry, arguments)
        entry.validate_arguments(arguments)
        self._validate_limits(entry)
        reply = await self._answer(entry, arguments)
        self.server_calls.append(ServerCall(entry.server, entry.tool, arguments, reply.is_error))
        if reply.is_error:
            raise ToolError(reply.text or "the tool failed without a message")
        return reply.text

    async def call_internal(self, call: MCPCall) -> ToolResult:
        """Run a call of the environment. It counts for no limit and may use hidden tools."""
        return await self._answer(self._catalog.get_any(call.tool), call.arguments)

    async def _validate_schema(self, entry: CatalogEntry, arguments: Mapping[str, Any]) -> None:
        """Raise `RolloutError` if the tool's schema makes the validation of the arguments endless."""
        schema = entry.spec.parameters
        problem = await asyncio.to_thread(find_validation_problem, schema, arguments) if may_be_slow(schema) else ""
        if problem:
            raise RolloutError(
                f"the schema of {entry.tool!r} of the MCP server {entry.server!r} cannot be used: {problem}; correct "
                "it in the server, or deny the tool",
                "mcp",
            )

    def _validate_limits(self, entry: CatalogEntry) -> None:
        limits, tools = self._limits, self._tools | {(entry.server, entry.tool)}
        for what, used, most in (
            ("calls", len(self.server_calls) + 1, limits.max_calls),
            ("different tools", len(tools), limits.max_tools),
            ("different servers", len({server for server, _ in tools}), limits.max_servers),
        ):
            if most is not None and used > most:
                raise ToolError(f"not called: at most {most} {what} may be used for this task")
        self._tools = tools

    async def _answer(self, entry: CatalogEntry, arguments: Mapping[str, Any]) -> ToolResult:
        after = self._after[entry.server]
        reply = self._recorded(entry, after, arguments)
        if reply is None:
            reply = await self._live(entry, arguments)
            if self._cassette is not None:
                self._cassette.record(entry.server, after, entry.tool, arguments, reply)
        if self._may_change(entry):
            self._after[entry.server] = history_digest(after, entry.tool, arguments)
            self._past.append((entry, dict(arguments), reply))
        return reply

    def _may_change(self, entry: CatalogEntry) -> bool:
        """Return whether a call of the tool may change the state that a session's episode sees."""
        config = self._servers[entry.server]
        return config.isolation == "episode" and not matches_any(entry.tool, config.read_only_tools)

    def _recorded(self, entry: CatalogEntry, after: str, arguments: Mapping[str, Any]) -> ToolResult | None:
        """Return the cassette's answer.

        Return None if the answer must come from the server: there is no recording, or the server has already answered
        a call of this episode.
        """
        if self._cassette is None or self._mode not in ("replay", "extend") or entry.server in self._ahead:
            return None
        reply = self._cassette.find(entry.server, after, entry.tool, arguments)
        if reply is None and self._mode == "replay":
            raise RolloutError(
                f"the cassette {self._cassette.path} has no answer to {entry.spec.name}({arguments}) after the calls "
                "before it; record it, or set cassette.mode = 'extend' to ask the server",
                "mcp",
            )
        return reply

    async def _live(self, entry: CatalogEntry, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the server's answer.

        A failed read-only call is retried with a new session, if no earlier call of the episode may have changed the
        server's state.
        """
        config, left = self._servers[entry.server], 0
        if matches_any(entry.tool, config.read_only_tools):
            left = config.max_retries
        while True:
            try:
                return await self._ask(await self._session(entry.server), entry, arguments)
            except RolloutError:
                if not left or self._after[entry.server] != EMPTY_HISTORY:
                    raise
                left -= 1
                await self._renew(entry.server)

    async def _ask(self, session: MCPSession, entry: CatalogEntry, arguments: Mapping[str, Any]) -> ToolResult:
        config = session.config
        left = self._limits.max_seconds - self._spent
        if left <= 0:
            raise RolloutError(f"the MCP servers took more than limits.seconds = {self._limits.max_seconds:g}", "mcp")
        seconds = min(left, config.tool_timeouts.get(entry.tool, config.call_timeout))
        began = time.monotonic()
        try:
            late = session.abandoned_calls
            reply = await session.call(entry.tool, arguments, seconds, self._progress if self._on_progress else None)
            if reply.is_error and session.abandoned_calls == late:  # the server may have ended or changed its tools
                self._compare(session, await session.list_tools())
            return reply
        finally:
            self._spent += time.monotonic() - began

    async def _session(self, server: str) -> MCPSession:
        """Return the episode's session.

        If the cassette has answered earlier calls that may have changed the state, they are first repeated in the
        session.
        """
        await self._take_all()
        session = self._sessions[server]
        if server not in self._ahead:
            for entry, arguments, recorded in [past for past in self._past if past[0].server == server]:
                if await self._ask(session, entry, arguments) != recorded:
                    raise RolloutError(
                        f"the MCP server {server!r} answers {entry.tool}({arguments}) differently from the cassette; "
                        "record the task again",
                        "mcp",
                    )
            self._ahead.add(server)
        return session

    async def _take_all(self) -> None:
        """Get missing sessions in a fixed order, so that two episodes cannot deadlock."""
        for server in self._servers:
            if server not in self._sessions:
                self._sessions[server] = session = await self._pools[server].acquire(self._setup[server])
                self._compare(session, session.tools)

    async def _renew(self, server: str) -> None:
        """Replace a failed session. If the episode has no session of this server, the next call gets one."""
        if server in self._sessions:
            self._sessions[server] = session = await self._pools[server].replace(self._sessions.pop(server))
            self._compare(session, session.tools)

    def _return(self, server: str) -> None:
        after = self._after[server]
        reusable = after == EMPTY_HISTORY or (self._is_set_up and after == self._setup[server])
        self._pools[server].release(self._sessions.pop(server), after if reusable else None)

    async def _look_again(self, server: str) -> None:
        session = self._sessions[server]
        self._compare(session, await session.list_tools())

    def _compare(self, session: MCPSession, tools: Sequence[Any]) -> None:
        """Follow the tools that a server lists, or fail if they differ from those that the agent was shown."""
        specs = sanitized_specs(session.name, tools, session.sanitize)
        if self._follows:
            server_tools = {**self._catalog.server_tools, session.name: specs}
            self._catalog = ToolCatalog(server_tools, self._servers, self._names)
        elif changed := self._catalog.changed_tools(session.name, specs):
            session.broken = f"has changed its tools: {'; '.join(changed)}"[:1000]
            raise RolloutError(f"the MCP server {session.name!r} {session.broken}", "mcp")

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._on_progress:
            self._on_progress(progress, total, message or "")
