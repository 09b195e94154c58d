"""Pool: the sessions of one server, some of them started ahead, never more than its settings allow.

With isolation `episode` a session serves one episode: a new one, or one that has been reset. With `shared` all episodes
use the same few. A session that broke is never given out again, and starts that fail are spaced out.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Protocol
from weakref import WeakKeyDictionary

from understudy.errors import RolloutError
from understudy.mcp.session import Session
from understudy.mcp.settings import ServerConfig

LONGEST_WAIT = 60.0
"""Seconds between starts that fail, at most."""


class Pool(Protocol):
    """Where an episode gets its session of one server from."""

    async def take(self) -> Session:
        """A session that works, as soon as there may be one more. A server that does not start is a `RolloutError`."""

    def give(self, session: Session) -> None:
        """The episode is over."""

    async def renew(self, session: Session) -> Session:
        """Another one in place of a session that failed, without waiting for a place."""


class Starter:
    """Starts sessions, and waits longer after each start that fails, whoever asked for it."""

    def __init__(self, name: str, config: ServerConfig) -> None:
        self.name, self.config = name, config
        self._failures, self._not_before = 0, 0.0

    async def start(self) -> Session:
        """A new session; the last failure where `starts` of them fail."""
        for _ in range(self.config.starts - 1):
            with suppress(RolloutError):
                return await self._once()
        return await self._once()

    async def _once(self) -> Session:
        await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
        session, opened = Session(self.name, self.config), False
        try:
            await session.open()
            opened = True
        finally:
            self._failures = 0 if opened else self._failures + 1
            wait = min(LONGEST_WAIT, self.config.backoff * 2 ** max(0, self._failures - 1))
            self._not_before = time.monotonic() + (wait if self._failures else 0.0)
        return session


class OwnSessions:
    """A session for each episode. There are so many places, each empty or with a session that waits for its episode."""

    def __init__(self, starter: Starter) -> None:
        self._starter, self._config = starter, starter.config
        self._places: asyncio.PriorityQueue[tuple[bool, int, Session | None]] = asyncio.PriorityQueue()
        self._count, self._waiting = itertools.count(), 0
        self._tasks: set[asyncio.Task[None]] = set()
        for _ in range(self._config.sessions):
            self._put(None)

    async def take(self) -> Session:
        """One that waits and works, or else a new one, in the first place that is free."""
        while True:
            session = await self._got()
            session = await self._filled() if session is None else await self._fit(session)
            if session is not None:
                self._warm_up()
                return session

    def give(self, session: Session) -> None:
        """A session that can be reset waits for the next episode; any other one ends, and then its place is free."""
        if self._config.reset and not session.broken and not session.late:
            self._put(session)
        else:
            self._do(self._end(session))

    async def renew(self, session: Session) -> Session:
        """A new one in the same place. Who queued for it, and holds sessions of other servers, might wait for ever."""
        return await self._filled(session)

    def _put(self, session: Session | None) -> None:
        self._waiting += session is not None
        self._places.put_nowait((session is None, next(self._count), session))

    async def _got(self) -> Session | None:
        _, _, session = await self._places.get()
        self._waiting -= session is not None
        return session

    async def _filled(self, last: Session | None = None) -> Session:
        """A new session in a place that is empty, or that of the last one; it is empty if that fails."""
        session = None
        try:
            if last:
                last.close()
                await last.closed()
            session = await self._starter.start()
        finally:
            if session is None:
                self._put(None)
        return session

    async def _fit(self, session: Session) -> Session | None:
        """The session if it is fit for another episode, reset if it had one."""
        fit = False
        try:
            fit = await self._works(session)
        finally:
            if not fit:
                self._do(self._end(session))
        return session if fit else None

    async def _works(self, session: Session) -> bool:
        try:
            reset = self._config.reset
            if reset and session.used:
                answer = await session.call(reset.tool, reset.arguments, self._config.call_timeout)
                return not answer.error
            await session.list()
        except RolloutError:
            return False
        return True

    def _warm_up(self) -> None:
        """Start sessions ahead, where there are empty places."""
        for _ in range(self._config.warm - self._waiting - len(self._tasks)):
            if self._places.qsize() > self._waiting:
                self._do(self._start_ahead())

    async def _start_ahead(self) -> None:
        session = await self._got()
        if session is None:
            with suppress(RolloutError):  # whoever needs a session will meet the same fault
                session = await self._filled()
                self._put(session)
        else:
            self._put(session)

    async def _end(self, session: Session) -> None:
        session.close()
        try:
            await session.closed()
        finally:
            self._put(None)

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class SharedSessions:
    """Sessions that all episodes use, at once: the one with the fewest of them, or a further one while there may be."""

    def __init__(self, starter: Starter) -> None:
        self._starter, self._config = starter, starter.config
        self._episodes: Counter[Session] = Counter()
        self._starting = asyncio.Lock()

    async def take(self) -> Session:
        """A session that works."""
        async with self._starting:
            for session in [session for session in self._episodes if session.broken]:
                session.close()  # one whose tools have changed is broken and runs
                del self._episodes[session]
            best = min(self._episodes, key=self._episodes.__getitem__, default=None)
            busy = best is None or self._episodes[best] > 0
            if best is None or (busy and len(self._episodes) < self._config.sessions):
                best = await self._starter.start()
        self._episodes[best] += 1
        return best

    def give(self, session: Session) -> None:
        """One episode less."""
        if session in self._episodes:
            self._episodes[session] -= 1

    async def renew(self, session: Session) -> Session:
        """The same where it still works."""
        self.give(session)
        return await self.take()


class Pools:
    """The pools of an environment's servers. Sessions belong to an event loop, and end with it."""

    def __init__(self, servers: Mapping[str, ServerConfig]) -> None:
        self.servers = servers
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Pool]] = WeakKeyDictionary()

    def __getitem__(self, name: str) -> Pool:
        pools = self._pools.setdefault(asyncio.get_running_loop(), {})
        if name not in pools:
            starter = Starter(name, self.servers[name])
            pools[name] = OwnSessions(starter) if starter.config.isolation == "episode" else SharedSessions(starter)
        return pools[name]
