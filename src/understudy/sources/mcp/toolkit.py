"""MCPToolkit: the tools of MCP servers, for one episode.

    async with MCPToolkit({"notes": MCPServerConfig(command=("my-notes",))}) as kit:
        kit.specs()
        await kit.call(ToolCall(name="add_note", arguments={"text": "milk"}))

A call that fails, or that is rejected here (unknown tool, bad arguments, limit reached), raises `ToolError`, which the
model sees. A server that dies, hangs, sends too many or invalid messages, has a schema that cannot be used, or changes
its tools raises `RolloutError` with fault `mcp`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from understudy.core.errors import RolloutError, TaskError, ToolError
from understudy.core.messages import ToolCall, ToolSpec
from understudy.envs.validation_time import find_validation_problem, may_be_slow
from understudy.sources.mcp.cassette import TaskCassette
from understudy.sources.mcp.catalog import CatalogEntry, ToolCatalog, ToolNaming
from understudy.sources.mcp.config import MCPCall, MCPLimits, MCPServerConfig
from understudy.sources.mcp.live import LiveServers, ToolProgressCallback
from understudy.sources.mcp.pool import SessionPools
from understudy.sources.mcp.recorded import CassetteMode, RecordedServers
from understudy.sources.mcp.tool_result import ToolResult


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A call of the agent that was sent to a server."""

    server: str
    tool: str
    arguments: dict[str, Any]
    failed: bool
    """Whether the tool returned an error."""
    aliases: tuple[str, ...] = ()
    """Aliases of the tool."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which a pattern may refer to the tool."""
        return (self.tool, f"{self.server}.{self.tool}", *self.aliases)


class MCPToolkit:
    """The tools of one episode: arguments and limits are checked here, and `LiveServers` or a cassette answers.

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
        self._limits = limits or MCPLimits()
        self._live = LiveServers(servers, naming, catalog, pools, self._limits.max_seconds, on_progress)
        self._servers = RecordedServers(self._live, cassette, mode) if cassette and mode != "off" else self._live
        self._tools_used: set[tuple[str, str]] = set()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.close)  # if opening fails, return the sessions that it has
            await self._servers.open()
            stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def set_up(self, calls: Sequence[MCPCall]) -> None:
        """Get the sessions and make the setup calls of a task. Raise `TaskError` if one fails.

        Calls are left out if a session has made them for an earlier episode of the task and nothing has changed since.
        """
        await self.run_calls(await self._servers.prepare(calls))
        self._live.complete_setup()

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
        await self._servers.close()

    def specs(self) -> tuple[ToolSpec, ...]:
        """The agent's tools."""
        return self._live.catalog.specs

    @property
    def notes(self) -> tuple[str, ...]:
        """Which tools of the servers are left out and why, and what is not checked of arguments."""
        return self._live.catalog.notes

    async def call(self, call: ToolCall) -> str:
        """Run one call of the agent and return the result."""
        if call.parse_error:
            raise ToolError(call.parse_error, "malformed")
        await self._live.refresh_tools()
        entry = self._live.catalog.get(call.name)
        arguments = entry.spec.resolve_aliases(call.arguments)
        await _check_schema(entry, arguments)
        entry.validate_arguments(arguments)
        self._count(entry)
        reply = await self._servers.call(entry, arguments)
        self.server_calls.append(ServerCall(entry.server, entry.tool, arguments, reply.is_error, entry.aliases))
        if reply.is_error:
            raise ToolError(reply.text or "the tool failed without a message")
        return reply.text

    async def call_internal(self, call: MCPCall) -> ToolResult:
        """Run a call of the environment. It counts for no limit and may use hidden tools."""
        entry = self._live.catalog.get_any(call.tool)
        return await self._servers.call(entry, entry.spec.resolve_aliases(call.arguments))

    def _count(self, entry: CatalogEntry) -> None:
        """Count a call of the agent. Raise `ToolError` if a limit of the task is reached."""
        limits, tools = self._limits, self._tools_used | {(entry.server, entry.tool)}
        for what, used, most in (
            ("calls", len(self.server_calls) + 1, limits.max_calls),
            ("different tools", len(tools), limits.max_tools),
            ("different servers", len({server for server, _ in tools}), limits.max_servers),
        ):
            if most is not None and used > most:
                raise ToolError(f"not called: at most {most} {what} may be used for this task")
        self._tools_used = tools


async def _check_schema(entry: CatalogEntry, arguments: Mapping[str, Any]) -> None:
    """Raise `RolloutError` if the tool's schema makes the validation of the arguments endless."""
    schema = entry.validator.schema  # without patterns that Python does not read
    problem = await asyncio.to_thread(find_validation_problem, schema, arguments) if may_be_slow(schema) else ""
    if problem:
        raise RolloutError(
            f"the schema of {entry.tool!r} of the MCP server {entry.server!r} cannot be used: {problem}; correct "
            "it in the server, or deny the tool",
            "mcp",
        )
