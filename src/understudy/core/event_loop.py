"""Event loops: one for each command, and one in the background for synchronous code that has to wait for coroutines.

`cancelling_task_group` and `gather_or_cancel` run coroutines concurrently in one of them.
"""

import asyncio
import atexit
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any, Generic, TypeVar

from pydantic_core import PydanticSerializationError

from understudy.core.errors import RolloutError
from understudy.core.process_state import keep_process_state

T = TypeVar("T")
SHUTDOWN_SECONDS = 10.0
"""Maximum seconds that `BackgroundLoop.close` waits. Without a limit, a server that is still starting could block the
exit of Python.
"""


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop and return its result. Raise RuntimeError if this thread runs a loop.

    What has to be closed, such as sessions of servers (`LoopLocal`), is closed before the loop ends. State
    of the process that user code has changed is put back (`process_state`).
    The first Ctrl-C cancels `main`, which can then clean up. If `main` is running synchronous code, such as loading a
    model, KeyboardInterrupt is raised there at once. A second Ctrl-C ends the clean-up. In all cases this function
    raises KeyboardInterrupt.
    """
    if _is_loop_running():
        main.close()
        name = getattr(main, "__name__", "the coroutine")
        raise RuntimeError(f"an event loop is running in this thread, as in a notebook: use `await {name}(...)`")
    return asyncio.run(_with_interrupts(_closing_loop_locals(main)))


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _with_interrupts(main: Coroutine[Any, Any, T]) -> T:
    if threading.current_thread() is not threading.main_thread():
        return await main  # Python handles signals only in the main thread
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    cancelled = False
    interrupted = False
    assert task is not None

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal cancelled, interrupted
        if cancelled or asyncio.current_task(loop) is task:
            cancelled, interrupted = False, True
            raise KeyboardInterrupt
        cancel()

    def on_unraisable(error: "sys.UnraisableHookArgs", /) -> None:
        # Python drops an exception in a finalizer, and some C extensions drop one elsewhere. Ctrl-C still ends `main`.
        if issubclass(error.exc_type, KeyboardInterrupt):
            cancel()
        else:
            previous_hook(error)

    def cancel() -> None:
        nonlocal cancelled
        cancelled = True
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # `cancel` alone does not wake a loop that waits for I/O

    previous = signal.signal(signal.SIGINT, on_interrupt)
    previous_hook, sys.unraisablehook = sys.unraisablehook, on_unraisable
    try:
        with keep_process_state():
            return await main
    except asyncio.CancelledError:
        if cancelled:
            raise KeyboardInterrupt from None
        raise RolloutError(
            "other code has cancelled asyncio tasks of understudy: a tool, user, reward or agent called cancel() of a "
            "task that it did not create; cancel only your own tasks",
            "environment",
        ) from None
    except PydanticSerializationError:  # pydantic replaces KeyboardInterrupt by this error while it serializes
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        sys.unraisablehook = previous_hook
        signal.signal(signal.SIGINT, previous)


@asynccontextmanager
async def cancelling_task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a group of tasks that run concurrently, and wait for them at the end of the block.

    The first error, of a task or of the block, cancels the tasks. It is raised when they have ended and cleaned up.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as e:
        raise e.exceptions[0] from None


async def gather_or_cancel(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines that run concurrently. The first error cancels the others."""
    async with cancelling_task_group() as group:
        tasks = [group.create_task(work) for work in works]
    return [task.result() for task in tasks]


class LoopLocal(Generic[T]):
    """An object that can only be used in the event loop that created it, such as a pool of connections.

    Another loop, started after the first has ended, gets a new object. `run_async` and the background loop call
    `close_made` with the object before their loop ends.
    """

    def __init__(self, make: Callable[[], T], close_made: Callable[[T], Awaitable[None]] | None = None) -> None:
        self._make, self._close_made = make, close_made
        self._made: tuple[asyncio.AbstractEventLoop, T] | None = None

    def get(self) -> T:
        """Return the object of the running loop."""
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            self._made = loop, self._make()
            if self._close_made and loop in _TO_CLOSE:
                _TO_CLOSE[loop].add(self)
        return self._made[1]

    async def close(self) -> None:
        """Close the object of the running loop, if there is one; the next `get` makes a new one."""
        loop = asyncio.get_running_loop()
        if self._close_made and self._made and self._made[0] is loop:
            (_, made), self._made = self._made, None
            _TO_CLOSE.get(loop, set()).discard(self)
            await self._close_made(made)


_TO_CLOSE: dict[asyncio.AbstractEventLoop, set[LoopLocal[Any]]] = {}
"""What the loops of `run_async` close before they end."""


async def _closing_loop_locals(main: Coroutine[Any, Any, T]) -> T:
    """Return the result of `main` after what it opened is closed, which the end of a loop would cancel at any point."""
    loop = asyncio.get_running_loop()
    _TO_CLOSE[loop] = set()
    try:
        return await main
    finally:
        await asyncio.gather(*(local.close() for local in _TO_CLOSE.pop(loop)))


class BackgroundLoop:
    """An event loop in a separate thread, for synchronous callers.

    It starts with the first `run`, and ends with the process or with `close`, which also ends open sessions. Coroutines
    from all threads run concurrently in one loop, so data shared between them needs no lock.
    """

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the coroutine. The calling thread blocks, and must not be the loop's own thread."""
        with self._starting:
            if self._thread is None:
                self._start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Cancel running work and wait for the loop to end; the next `run` starts a new loop."""
        with self._starting:
            if self._thread is not None:
                self._loop.call_soon_threadsafe(self._end.set)
                self._thread.join(SHUTDOWN_SECONDS)
                self._thread = None
                atexit.unregister(self.close)

    def _start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: run_async(self._live(ready)), name="understudy", daemon=True)
        self._thread.start()
        ready.wait()
        atexit.register(self.close)

    async def _live(self, ready: threading.Event) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        await self._end.wait()


def run_blocking(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `run_async` does; in a new thread if this one runs a loop, which then waits."""
    if not _is_loop_running():
        return run_async(main)
    loop = BackgroundLoop()
    try:
        return loop.run(main)
    finally:
        loop.close()


BACKGROUND_LOOP = BackgroundLoop()
"""The loop of all synchronous code that waits for coroutines: text environments, checks of task files, the viewer."""
