"""Disk: what the machine refuses to write, be it full or not ours, is one line for the user; no line is left half."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from understudy.errors import ConfigError

AGAIN = "give the same command again"
"""What to do after what has kept nothing."""


@contextlib.contextmanager
def writing(place: Path, then: str) -> Iterator[None]:
    """An OSError in the block is a `ConfigError`: that `place` cannot be written, why, and what to do `then`."""
    try:
        yield
    except OSError as e:
        why = f"{e.filename}: {e.strerror}" if e.filename and e.strerror else e.strerror or e
        raise ConfigError(f"{place} cannot be written ({why}); see to that, then {then}") from e


def append(file: Path, data: bytes) -> None:
    """Append in one write; where that fails, which is an OSError, the file is as before."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if os.write(descriptor, data) < len(data):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
    finally:
        os.close(descriptor)


def write_text(file: Path, text: str) -> None:
    """Write a text that was asked for beside what is kept, such as a report."""
    with writing(file, AGAIN):
        file.write_text(text, encoding="utf-8")
