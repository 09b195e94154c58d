"""Interruption: a first Ctrl-C is a wish to stop where nothing is lost, a second one stops at once."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Makes the first Ctrl-C a wish that the yielded function tells; the second interrupts at once."""
    wished = False

    def wish(number: int, frame: FrameType | None) -> None:
        nonlocal wished
        wished = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, wish)
    try:
        yield lambda: wished
    finally:
        signal.signal(signal.SIGINT, before)
