"""Handling of Ctrl-C: the first one asks to stop at the next safe point, the second one stops at once."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after the first Ctrl-C. The second Ctrl-C raises KeyboardInterrupt."""
    interrupted = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, previous_handler)

    previous_handler = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, previous_handler)
