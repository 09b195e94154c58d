"""Pool: the sessions of one server.

The number of sessions is limited. Some are started before an episode needs them. With isolation `episode`, a session
serves one episode at a time: it is new, it was reset, or it is as the episode before found it. With `shared`, all
episodes use the same few sessions. A broken session is never used again. Failed starts are retried with growing delays.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from understudy.core.errors import RolloutError
from understudy.core.event_loop import LoopLocal
from understudy.sources.mcp.cassette import EMPTY_HISTORY
from understudy.sources.mcp.config import MCPServerConfig
from understudy.sources.mcp.session import MCPSession

MAX_BACKOFF_SECONDS = 60.0
"""The longest delay between failing starts, in seconds."""
CLOSE_SECONDS = 5.0
"""Seconds that the servers of a pool have to end when it is closed."""


class SessionPool(Protocol):
    """Gives sessions of one server to episodes."""

    async def acquire(self, history: str) -> MCPSession:
        """Return a working session, after waiting for a free place. Raise `RolloutError` if no server starts.

        Its `history` is the given digest of setup calls if such a session waits; else it is new.
        """

    def release(self, session: MCPSession, history: str | None) -> None:
        """Return the session at the end of an episode.

        `history` is the digest of the calls that may have changed its state. None means that no episode can start from
        this state.
        """

    async def replace(self, session: MCPSession) -> MCPSession:
        """Replace a failed session, without waiting for a free place."""

    async def close(self) -> None:
        """End all sessions, and wait until they have ended, at most `CLOSE_SECONDS`."""


class SessionStarter:
    """Starts sessions. Each failed start increases the delay before the next start, for all callers."""

    def __init__(self, name: str, config: MCPServerConfig) -> None:
        self.name, self.config = name, config
        self._failures, self._not_before = 0, 0.0
        self._started = WeakSet[MCPSession]()

    async def start(self) -> MCPSession:
        """Return a new session. Raise the last error if `max_start_attempts` attempts fail."""
        for _ in range(self.config.max_start_attempts - 1):
            with suppress(RolloutError):
                return await self._once()
        return await self._once()

    async def _once(self) -> MCPSession:
        await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
        session, opened = MCPSession(self.name, self.config), False
        try:
            await session.open()
            opened = True
            self._started.add(session)
        finally:
            self._failures = 0 if opened else self._failures + 1
            wait = min(MAX_BACKOFF_SECONDS, self.config.backoff * 2 ** max(0, self._failures - 1))
            self._not_before = time.monotonic() + (wait if self._failures else 0.0)
        return session

    async def close(self) -> None:
        """End all started sessions, and wait until they have ended."""
        for session in self._started:
            session.close()
        await asyncio.gather(*(session.wait_closed() for session in self._started))


class ExclusiveSessionPool:
    """A pool in which each session serves one episode at a time.

    It has `session_limit` places. A place is empty or has a started session.
    """

    def __init__(self, starter: SessionStarter) -> None:
        self._starter, self._config = starter, starter.config
        self._places: asyncio.PriorityQueue[tuple[bool, int, MCPSession | None]] = asyncio.PriorityQueue()
        self._count, self._waiting, self._episodes_waiting = itertools.count(), 0, 0
        self._prepared: list[MCPSession] = []
        self._tasks: set[asyncio.Task[None]] = set()
        for _ in range(self._config.session_limit):
            self._return_place(None)

    async def acquire(self, history: str) -> MCPSession:
        """Return a waiting session that works, else a new one, in the first free place.

        One that has made the setup calls already is preferred. Others that wait for their task end if no place is free.
        """
        for session in [each for each in self._prepared if each.history == history]:
            self._prepared.remove(session)
            if await self._reset_or_end(session):
                return session
        while True:
            if self._places.empty() and self._prepared:
                self._run_in_background(self._end(self._prepared.pop(0)))
            self._episodes_waiting += 1
            try:
                found = await self._take_place()
            finally:
                self._episodes_waiting -= 1
            found = await self._start_session() if found is None else await self._reset_or_end(found)
            if found is not None:
                self._warm_up()
                return found

    def release(self, session: MCPSession, history: str | None) -> None:
        """Keep a session that can be reset, or that an episode can start from. End any other and free its place."""
        works = not session.broken and not session.abandoned_calls
        if works and (self._config.reset or history == EMPTY_HISTORY):
            session.history = EMPTY_HISTORY
            self._return_place(session)
        elif works and history is not None and not self._episodes_waiting:
            session.history = history
            self._prepared.append(session)
        else:
            self._run_in_background(self._end(session))

    async def replace(self, session: MCPSession) -> MCPSession:
        """Start a new session in the same place. Waiting for another place could deadlock an episode that holds
        sessions of other servers."""
        return await self._start_session(session)

    async def close(self) -> None:
        """End all sessions, also those that are being started ahead."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._starter.close()

    def _return_place(self, session: MCPSession | None) -> None:
        self._waiting += session is not None
        self._places.put_nowait((session is None, next(self._count), session))

    async def _take_place(self) -> MCPSession | None:
        _, _, session = await self._places.get()
        self._waiting -= session is not None
        return session

    async def _start_session(self, last: MCPSession | None = None) -> MCPSession:
        """Start a session in a place. The place is empty if that fails."""
        session = None
        try:
            if last:
                last.close()
                await last.wait_closed()
            session = await self._starter.start()
        finally:
            if session is None:
                self._return_place(None)
        return session

    async def _reset_or_end(self, session: MCPSession) -> MCPSession | None:
        """Return the session, reset if it was used, or None if it cannot serve another episode."""
        usable = False
        try:
            usable = await self._works(session)
        finally:
            if not usable:
                self._run_in_background(self._end(session))
        return session if usable else None

    async def _works(self, session: MCPSession) -> bool:
        try:
            reset = self._config.reset
            if reset and session.used:
                answer = await session.call(reset.tool, reset.arguments, self._config.call_timeout)
                return not answer.is_error
            await session.list_tools()
        except RolloutError:
            return False
        return True

    def _warm_up(self) -> None:
        """Start sessions ahead in empty places."""
        for _ in range(self._config.warm_sessions - self._waiting - len(self._tasks)):
            if self._places.qsize() > self._waiting:
                self._run_in_background(self._start_ahead())

    async def _start_ahead(self) -> None:
        session = await self._take_place()
        if session is None:
            with suppress(RolloutError):  # whoever needs a session will meet the same fault
                session = await self._start_session()
                self._return_place(session)
        else:
            self._return_place(session)

    async def _end(self, session: MCPSession) -> None:
        session.close()
        try:
            await session.wait_closed()
        finally:
            self._return_place(None)

    def _run_in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class SharedSessionPool:
    """Sessions that all episodes share. An episode gets the least used one, or a new one while the limit allows."""

    def __init__(self, starter: SessionStarter) -> None:
        self._starter, self._config = starter, starter.config
        self._episodes: Counter[MCPSession] = Counter()
        self._starting = asyncio.Lock()

    async def acquire(self, history: str) -> MCPSession:
        """Return a working session."""
        async with self._starting:
            for session in [session for session in self._episodes if session.broken]:
                session.close()  # one whose tools have changed is broken and runs
                del self._episodes[session]
            best = min(self._episodes, key=self._episodes.__getitem__, default=None)
            busy = best is None or self._episodes[best] > 0
            if best is None or (busy and len(self._episodes) < self._config.session_limit):
                best = await self._starter.start()
        self._episodes[best] += 1
        return best

    def release(self, session: MCPSession, history: str | None) -> None:
        """Count one episode fewer for the session."""
        if session in self._episodes:
            self._episodes[session] -= 1

    async def replace(self, session: MCPSession) -> MCPSession:
        """Return the same session if it still works, else another."""
        self.release(session, None)
        return await self.acquire(EMPTY_HISTORY)

    async def close(self) -> None:
        """End all sessions."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._starter.close()


class SessionPools:
    """The pools of an environment's servers. Sessions belong to an event loop, and end before it ends.

    A loop that `asyncio.run` starts ends them too, but does not wait for their end.
    """

    def __init__(self, servers: Mapping[str, MCPServerConfig]) -> None:
        self.servers = servers
        self._pools = LoopLocal[dict[str, SessionPool]](dict, _close_pools)

    def __getitem__(self, name: str) -> SessionPool:
        pools = self._pools.get()
        if name not in pools:
            starter = SessionStarter(name, self.servers[name])
            pools[name] = (
                ExclusiveSessionPool(starter) if starter.config.isolation == "episode" else SharedSessionPool(starter)
            )
        return pools[name]

    async def close(self) -> None:
        """End all sessions of the running loop, and wait for their end."""
        await self._pools.close()


async def _close_pools(pools: Mapping[str, SessionPool]) -> None:
    await asyncio.gather(*(pool.close() for pool in pools.values()))
