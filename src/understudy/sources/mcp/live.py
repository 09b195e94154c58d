"""LiveServers: the MCP servers of one episode, through sessions from their pools."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from understudy.core.errors import RolloutError
from understudy.sources.mcp.cassette import EMPTY_HISTORY, history_digest
from understudy.sources.mcp.catalog import CatalogEntry, ToolCatalog, ToolNaming, matches_any, sanitized_specs
from understudy.sources.mcp.config import MCPCall, MCPServerConfig
from understudy.sources.mcp.pool import SessionPools
from understudy.sources.mcp.session import MCPSession
from understudy.sources.mcp.tool_result import ToolResult

ToolProgressCallback = Callable[[float, float | None, str], None]
"""Receives the progress of a call: done, total if known, and the server's message."""


class EpisodeHistory:
    """For each server, a digest of the episode's calls that may have changed the state that the episode sees."""

    def __init__(self, servers: Mapping[str, MCPServerConfig]) -> None:
        self._servers = servers
        self._digests = dict.fromkeys(servers, EMPTY_HISTORY)

    def __getitem__(self, server: str) -> str:
        return self._digests[server]

    def __setitem__(self, server: str, digest: str) -> None:
        self._digests[server] = digest

    def add(self, entry: CatalogEntry, arguments: Mapping[str, Any]) -> bool:
        """Add a call. Return False if it cannot have changed the state."""
        config = self._servers[entry.server]
        if config.isolation == "shared" or matches_any(entry.tool, config.read_only_tools):
            return False
        self._digests[entry.server] = history_digest(self._digests[entry.server], entry.tool, arguments)
        return True


class LiveServers:
    """The sessions of one episode, one for each server. They are taken from the pools when they are needed.

    Without a catalog, the tools are those that the servers list, and they change when a server changes its list. With
    a catalog, such a change is an error. The calls of an episode may take `max_seconds` in all.
    """

    def __init__(
        self,
        servers: Mapping[str, MCPServerConfig],
        naming: ToolNaming,
        catalog: ToolCatalog | None,
        pools: SessionPools | None,
        max_seconds: float,
        on_progress: ToolProgressCallback | None,
    ) -> None:
        self.configs, self.history = servers, EpisodeHistory(servers)
        self.catalog = catalog or ToolCatalog({}, {}, naming)
        self._naming, self._follows_changes = naming, catalog is None
        self._pools = pools or SessionPools(servers)
        self._owns_pools = pools is None
        self._max_seconds, self._seconds_spent = max_seconds, 0.0
        self._on_progress = on_progress
        self._sessions: dict[str, MCPSession] = {}
        self._setup_history = EpisodeHistory(servers)
        self._is_set_up = False

    async def open(self) -> None:
        """Get the missing sessions in a fixed order, so that two episodes cannot deadlock."""
        for server in self.configs:
            if server not in self._sessions:
                session = await self._pools[server].acquire(self._setup_history[server])
                self._sessions[server] = session
                self._compare_tools(session, session.tools)

    async def prepare(self, setup: Sequence[MCPCall]) -> list[MCPCall]:
        """Get the sessions for a task, and return those of its setup calls that are still to be made.

        A session may have made them for an earlier episode of the task, and nothing has changed since.
        """
        for call in setup:
            self._setup_history.add(self.catalog.get_any(call.tool), call.arguments)
        await self.open()
        ready = {server for server, session in self._sessions.items() if session.history != EMPTY_HISTORY}
        for server in ready:
            self.history[server] = self._setup_history[server]
        return [call for call in setup if self.catalog.get_any(call.tool).server not in ready]

    def complete_setup(self) -> None:
        """Say that all setup calls have succeeded. Sessions in this state can serve further episodes of the task."""
        self._is_set_up = True

    async def refresh_tools(self) -> None:
        """List the tools again of each server that has announced a change."""
        for session in [session for session in self._sessions.values() if session.tools_changed]:
            self._compare_tools(session, await session.list_tools())

    async def call(self, entry: CatalogEntry, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the server's answer.

        A failed read-only call is retried with a new session, if no earlier call of the episode may have changed the
        server's state.
        """
        config = self.configs[entry.server]
        retries = config.max_retries if matches_any(entry.tool, config.read_only_tools) else 0
        while True:
            try:
                reply = await self.ask(entry, arguments)
            except RolloutError:
                if not retries or self.history[entry.server] != EMPTY_HISTORY:
                    raise
                retries -= 1
                await self._renew(entry.server)
            else:
                self.history.add(entry, arguments)
                return reply

    async def ask(self, entry: CatalogEntry, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the server's answer without a retry. The history stays as it is."""
        await self.open()
        session = self._sessions[entry.server]
        seconds_left = self._max_seconds - self._seconds_spent
        if seconds_left <= 0:
            raise RolloutError(f"the MCP servers took more than limits.seconds = {self._max_seconds:g}", "mcp")
        seconds = min(seconds_left, session.config.tool_timeouts.get(entry.tool, session.config.call_timeout))
        began = time.monotonic()
        try:
            abandoned = session.abandoned_calls
            reply = await session.call(entry.tool, arguments, seconds, self._progress if self._on_progress else None)
            if reply.is_error and session.abandoned_calls == abandoned:
                # The server may have ended or changed its tools.
                self._compare_tools(session, await session.list_tools())
            return reply
        finally:
            self._seconds_spent += time.monotonic() - began

    async def close(self) -> None:
        """Return the sessions to their pools. Pools that no other episode uses are closed."""
        for server in [*self._sessions]:
            history = self.history[server]
            reusable = history == EMPTY_HISTORY or (self._is_set_up and history == self._setup_history[server])
            self._pools[server].release(self._sessions.pop(server), history if reusable else None)
        if self._owns_pools:
            await self._pools.close()

    async def _renew(self, server: str) -> None:
        """Replace a failed session. If the episode has no session of this server, the next call gets one."""
        if server in self._sessions:
            session = await self._pools[server].replace(self._sessions.pop(server))
            self._sessions[server] = session
            self._compare_tools(session, session.tools)

    def _compare_tools(self, session: MCPSession, tools: Sequence[Any]) -> None:
        """Follow the tools that a server lists, or fail if they differ from those that the agent was shown."""
        specs = sanitized_specs(session.name, tools, session.sanitize)
        if self._follows_changes:
            server_tools = {**self.catalog.server_tools, session.name: specs}
            self.catalog = ToolCatalog(server_tools, self.configs, self._naming)
        elif changed := self.catalog.changed_tools(session.name, specs):
            session.broken = f"has changed its tools: {'; '.join(changed)}"[:1000]
            raise RolloutError(f"the MCP server {session.name!r} {session.broken}", "mcp")

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._on_progress:
            self._on_progress(progress, total, message or "")
