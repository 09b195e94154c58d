"""MCPToolkit: the tools of MCP servers, for one episode.

    async with MCPToolkit({"notes": ServerConfig(command=("my-notes",))}) as kit:
        kit.specs()
        await kit.call(ToolCall(name="add_note", arguments={"text": "milk"}))

A call that the tool refuses, or that is refused here (unknown, bad arguments, beyond a limit), is a `ToolError`, which
the model sees. A server that dies, hangs, floods, changes its tools or makes no sense is a `RolloutError`, by the fault
of `mcp`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from understudy.errors import RolloutError, ToolError
from understudy.mcp.cassette import BEGINNING, Cassette, digest
from understudy.mcp.catalogue import Catalogue, Entry, Names, matches, specs_of
from understudy.mcp.pool import Pools
from understudy.mcp.reply import Reply
from understudy.mcp.session import Session
from understudy.mcp.settings import Call, Limits, ServerConfig
from understudy.messages import ToolCall, ToolSpec

Mode = Literal["off", "record", "replay", "extend"]
OnProgress = Callable[[float, float | None, str], None]
"""Told how far a call is: done, of how much if that is known, and what the server says of it."""


@dataclass(frozen=True, slots=True)
class Made:
    """A call of the agent's that a server was asked."""

    server: str
    tool: str
    arguments: dict[str, Any]
    refused: bool
    """Whether the tool answered with an error."""


class MCPToolkit:
    """One episode's tools. Without a catalogue they are what the servers list, and follow them when they change."""

    def __init__(
        self,
        servers: Mapping[str, ServerConfig],
        *,
        names: Names = "flat",
        limits: Limits | None = None,
        catalogue: Catalogue | None = None,
        pools: Pools | None = None,
        cassette: Cassette | None = None,
        mode: Mode = "off",
        on_progress: OnProgress | None = None,
    ) -> None:
        self.made: list[Made] = []
        """The agent's calls, in order."""
        self._servers, self._names, self._limits = servers, names, limits or Limits()
        self._catalogue, self._follows = catalogue or Catalogue({}, {}, names), catalogue is None
        self._pools, self._cassette, self._mode = pools or Pools(servers), cassette, mode
        self._on_progress = on_progress
        self._tools: set[tuple[str, str]] = set()
        self._sessions: dict[str, Session] = {}
        self._ahead: set[str] = set()  # servers that were asked something: only they know what follows from it
        self._after = dict.fromkeys(servers, BEGINNING)
        self._past: list[tuple[Entry, dict[str, Any], Reply]] = []
        self._spent = 0.0

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.close)  # where it fails half-way, nobody else gives back what it has taken
            await self.open()
            stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Get a session of each server, unless a cassette may do."""
        if self._mode not in ("replay", "extend"):
            await self._take_all()

    async def close(self) -> None:
        """Give the sessions back, and keep what was recorded."""
        for name in [*self._sessions]:
            self._return(name)
        if self._cassette is not None:
            self._cassette.save()

    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent is shown."""
        return self._catalogue.specs

    async def call(self, call: ToolCall) -> str:
        """One call of the agent's; what the tool answers."""
        if call.malformed:
            raise ToolError(call.malformed, "malformed")
        for name in [name for name, session in self._sessions.items() if session.changed]:
            await self._look_again(name)
        entry = self._catalogue.find(call.name)
        entry.check(call.arguments)
        self._refuse_beyond(entry)
        reply = await self._answer(entry, call.arguments)
        self.made.append(Made(entry.server, entry.tool, call.arguments, reply.error))
        if reply.error:
            raise ToolError(reply.text or "the tool failed and does not say why")
        return reply.text

    async def perform(self, call: Call) -> Reply:
        """A call that is not the agent's: no limit counts it, and it may use tools that are not shown."""
        return await self._answer(self._catalogue.find_any(call.tool), call.arguments)

    def _refuse_beyond(self, entry: Entry) -> None:
        limits, tools = self._limits, self._tools | {(entry.server, entry.tool)}
        for what, used, most in (
            ("calls", len(self.made) + 1, limits.max_calls),
            ("different tools", len(tools), limits.max_tools),
            ("different servers", len({server for server, _ in tools}), limits.max_servers),
        ):
            if most is not None and used > most:
                raise ToolError(f"not called: no more than {most} {what} may be used for this task")
        self._tools = tools

    async def _answer(self, entry: Entry, arguments: Mapping[str, Any]) -> Reply:
        after = self._after[entry.server]
        reply = self._recorded(entry, after, arguments)
        if reply is None:
            reply = await self._live(entry, arguments)
            if self._cassette is not None:
                self._cassette.record(entry.server, after, entry.tool, arguments, reply)
        config = self._servers[entry.server]
        if config.isolation == "episode" and not matches(entry.tool, config.reads):
            self._after[entry.server] = digest(after, entry.tool, arguments)
            self._past.append((entry, dict(arguments), reply))
        return reply

    def _recorded(self, entry: Entry, after: str, arguments: Mapping[str, Any]) -> Reply | None:
        """The cassette's answer, where there is one, and no server that is ahead of it."""
        if self._cassette is None or self._mode not in ("replay", "extend") or entry.server in self._ahead:
            return None
        reply = self._cassette.find(entry.server, after, entry.tool, arguments)
        if reply is None and self._mode == "replay":
            raise RolloutError(
                f"the cassette {self._cassette.path} has no answer to {entry.spec.name}({arguments}) after the calls "
                "before it; record it, or let cassette.mode = 'extend' ask the server",
                "mcp",
            )
        return reply

    async def _live(self, entry: Entry, arguments: Mapping[str, Any]) -> Reply:
        """The server's answer; one that only reads is asked again where nothing can have been lost."""
        config, left = self._servers[entry.server], 0
        if matches(entry.tool, config.reads):
            left = config.retries
        while True:
            try:
                return await self._ask(await self._session(entry.server), entry, arguments)
            except RolloutError:
                if not left or self._after[entry.server] != BEGINNING:
                    raise
                left -= 1
                await self._renew(entry.server)

    async def _ask(self, session: Session, entry: Entry, arguments: Mapping[str, Any]) -> Reply:
        config = session.config
        left = self._limits.seconds - self._spent
        if left <= 0:
            raise RolloutError(f"the MCP servers took more than limits.seconds = {self._limits.seconds:g}", "mcp")
        seconds = min(left, config.timeouts.get(entry.tool, config.call_timeout))
        began = time.monotonic()
        try:
            late = session.late
            reply = await session.call(entry.tool, arguments, seconds, self._progress if self._on_progress else None)
            if reply.error and session.late == late:  # the server may be going down, or the tool no longer what it was
                self._compare(session, await session.list())
            return reply
        finally:
            self._spent += time.monotonic() - began

    async def _session(self, server: str) -> Session:
        """The episode's session; one that is asked late is brought to where the cassette has come."""
        await self._take_all()
        session = self._sessions[server]
        if server not in self._ahead:
            for entry, arguments, recorded in [past for past in self._past if past[0].server == server]:
                if await self._ask(session, entry, arguments) != recorded:
                    raise RolloutError(
                        f"the MCP server {server!r} answers {entry.tool}({arguments}) other than the cassette; "
                        "record it anew",
                        "mcp",
                    )
            self._ahead.add(server)
        return session

    async def _take_all(self) -> None:
        """Get what is missing, always in one order: no two episodes wait for servers that the other one has."""
        for server in self._servers:
            if server not in self._sessions:
                self._sessions[server] = session = await self._pools[server].take()
                self._compare(session, session.tools)

    async def _renew(self, server: str) -> None:
        """Another session in place of one that failed; where it did not start, it is got like the first."""
        if server in self._sessions:
            self._sessions[server] = session = await self._pools[server].renew(self._sessions.pop(server))
            self._compare(session, session.tools)

    def _return(self, server: str) -> None:
        self._pools[server].give(self._sessions.pop(server))

    async def _look_again(self, server: str) -> None:
        session = self._sessions[server]
        self._compare(session, await session.list())

    def _compare(self, session: Session, tools: Sequence[Any]) -> None:
        """Follow the tools that a server lists, or hold it to those that the agent was shown."""
        specs = specs_of(tools, session.clean)
        if self._follows:
            offers = {**self._catalogue.offers, session.name: specs}
            self._catalogue = Catalogue(offers, self._servers, self._names)
        elif changed := self._catalogue.changes(session.name, specs):
            session.broken = f"has changed its tools: {', '.join(changed)}"
            raise RolloutError(f"the MCP server {session.name!r} {session.broken}", "mcp")

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._on_progress:
            self._on_progress(progress, total, message or "")
