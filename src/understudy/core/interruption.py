"""Handling of Ctrl-C: the first one asks to stop at the next safe point, the second one stops at once.

A command treats SIGTERM, which schedulers and containers send, as Ctrl-C.
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def interruptible(on_interrupt: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after the first Ctrl-C. The second Ctrl-C raises KeyboardInterrupt.

    The first one calls `on_interrupt`, in a signal handler: it must not wait for a lock that the main thread may hold.
    """
    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, previous_handler)
        on_interrupt()

    previous_handler = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, previous_handler)


def handle_sigterm_as_interrupt() -> Callable[[], bool]:
    """Let SIGTERM do what Ctrl-C does at the time. Return a function that tells whether SIGTERM was received.

    Where Ctrl-C is ignored, as in a background job of a shell script, SIGTERM ends the process.
    """
    terminated = False

    def on_terminate(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):
            sys.exit(128 + number)
        handler(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, on_terminate)
    return lambda: terminated
