"""State of the process that user code may change, and that is put back after each call of user code.

A tool that enters another folder must not move the files of a run, and one that closes sys.stdout must not end it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_kept: tuple[str, int] | None = None
"""The working folder and the recursion limit of a command."""


@contextmanager
def keep_process_state() -> Iterator[None]:
    """Keep the working folder and the recursion limit of the block, and sys.stdout and sys.stderr at its end."""
    global _kept
    before, streams = _kept, (sys.stdout, sys.stderr)
    with suppress(OSError):  # the working folder does not exist any more
        _kept = os.getcwd(), sys.getrecursionlimit()
    try:
        yield
    finally:
        restore_process_state()
        sys.stdout, sys.stderr = streams
        _kept = before


def restore_process_state() -> None:
    """Put back what user code has changed: the working folder, a lower recursion limit, and closed streams."""
    for name, original in (("stdout", sys.__stdout__), ("stderr", sys.__stderr__)):
        stream = getattr(sys, name)
        if stream is None or getattr(stream, "closed", False):
            setattr(sys, name, original)
    if _kept is None:
        return
    folder, recursion_limit = _kept
    if sys.getrecursionlimit() < recursion_limit:
        sys.setrecursionlimit(recursion_limit)
    with suppress(OSError):
        if _current_folder() != folder:
            os.chdir(folder)


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # user code has removed it
        return ""
