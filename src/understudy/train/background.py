"""Write a file while training goes on."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from understudy.core.errors import ConfigError


class BackgroundWriter:
    """Runs one call at a time in a thread of its own.

    As a context manager it waits for the call at the end, except after Ctrl-C, which must not wait.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        """The step whose checkpoint is being written."""
        self._written = Future[None]()

    def start(self, step: int, write: Callable[[], None]) -> None:
        """Start a call. The last one must have been finished."""
        assert self.step is None
        self.step, self._written = step, Future()
        # A daemon, since the process would otherwise wait for it after a second Ctrl-C.
        threading.Thread(target=self._run, args=(write, self._written), name="checkpoint", daemon=True).start()

    def finish(self) -> bool:
        """Wait for the call. Return whether there was one. Raise what it raised."""
        if self.step is None:
            return False
        self.step = None
        self._written.result()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, KeyboardInterrupt):
            self.finish()

    @staticmethod
    def _run(write: Callable[[], None], written: Future[None]) -> None:
        try:
            write()
            written.set_result(None)
        except (ConfigError, OSError, MemoryError, RuntimeError) as error:  # it is raised in the thread that waits
            written.set_exception(error)
        finally:
            written.cancel()  # after another error, which the thread prints
