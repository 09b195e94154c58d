"""RecordedServers: the MCP servers of one episode behind a cassette, which records their answers or replaces them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from understudy.core.errors import RolloutError
from understudy.sources.mcp.cassette import TaskCassette
from understudy.sources.mcp.catalog import CatalogEntry
from understudy.sources.mcp.config import MCPCall
from understudy.sources.mcp.live import LiveServers
from understudy.sources.mcp.tool_result import ToolResult

CassetteMode = Literal["off", "record", "replay", "extend"]


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call that may have changed the state of its server, and its recorded answer."""

    entry: CatalogEntry
    arguments: dict[str, Any]
    result: ToolResult


class RecordedServers:
    """Answers of a cassette, and of `live` servers where the mode allows that.

    `record` asks the servers and records. `replay` asks only the cassette. `extend` asks the cassette first, and the
    server once the cassette has no answer. Then the calls that the cassette has answered are first repeated.
    """

    def __init__(self, live: LiveServers, cassette: TaskCassette, mode: CassetteMode) -> None:
        self._live, self._cassette, self._mode = live, cassette, mode
        self._replayed: list[AnsweredCall] = []
        self._servers_in_use: set[str] = set()  # those that have answered a call of this episode

    async def open(self) -> None:
        """Get a session of each server, unless the cassette may answer."""
        if self._mode == "record":
            await self._live.open()

    async def prepare(self, setup: Sequence[MCPCall]) -> list[MCPCall]:
        """Return the setup calls that are to be made: all of them, because each is recorded."""
        await self.open()
        return list(setup)

    async def call(self, entry: CatalogEntry, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the recorded answer or the server's, which is then recorded."""
        history = self._live.history[entry.server]
        recorded = self._find(entry, history, arguments)
        if recorded is not None:
            if self._live.history.add(entry, arguments):
                self._replayed.append(AnsweredCall(entry, dict(arguments), recorded))
            return recorded
        await self._repeat_replayed(entry.server)
        reply = await self._live.call(entry, arguments)
        self._cassette.record(entry.server, history, entry.tool, arguments, reply)
        return reply

    async def close(self) -> None:
        """Return the sessions, and write what was recorded."""
        await self._live.close()
        self._cassette.save()

    def _find(self, entry: CatalogEntry, history: str, arguments: Mapping[str, Any]) -> ToolResult | None:
        """Return the cassette's answer, or None if the answer must come from the server."""
        if self._mode == "record" or entry.server in self._servers_in_use:
            return None
        reply = self._cassette.find(entry.server, history, entry.tool, arguments)
        if reply is None and self._mode == "replay":
            raise RolloutError(
                f"the cassette {self._cassette.path} has no answer to {entry.spec.name}({arguments}) after the calls "
                "before it; record it, or set cassette.mode = 'extend' to ask the server",
                "mcp",
            )
        return reply

    async def _repeat_replayed(self, server: str) -> None:
        """Bring the server's session to the state that the cassette's answers suppose."""
        if server in self._servers_in_use:
            return
        for past in self._replayed:
            if past.entry.server != server:
                continue
            if await self._live.ask(past.entry, past.arguments) != past.result:
                raise RolloutError(
                    f"the MCP server {server!r} answers {past.entry.tool}({past.arguments}) differently from the "
                    "cassette; record the task again",
                    "mcp",
                )
        self._servers_in_use.add(server)
