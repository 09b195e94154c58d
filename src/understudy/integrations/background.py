"""Background: an event loop in a thread of its own, for callers that are not asynchronous."""

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE = 10.0
"""Seconds that the end may take: a server that was just being started when it came may keep Python waiting for ever."""


class Background:
    """Begins with the first work and ends with the process, or by `close`; sessions of its work end with it.

    Work of many threads runs side by side in the one loop. So what it shares needs no lock.
    """

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work comes to. The calling thread waits for it, and must not be the loop's own."""
        with self._starting:
            if self._thread is None:
                self._start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Cancel what is under way and wait for the end; the next work begins anew."""
        with self._starting:
            if self._thread is not None:
                self._loop.call_soon_threadsafe(self._end.set)
                self._thread.join(PATIENCE)
                self._thread = None
                atexit.unregister(self.close)

    def _start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live(ready)), name="understudy", daemon=True)
        self._thread.start()
        ready.wait()
        atexit.register(self.close)

    async def _live(self, ready: threading.Event) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        await self._end.wait()
