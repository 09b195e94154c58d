"""Disk: files and folders are written whole; what the machine refuses, be it full or not ours, is one line."""

import contextlib
import errno
import os
import shutil
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


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or, after a crash, as it was before."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def whole_file(final: Path) -> Iterator[Path]:
    """A file to write beside its place, which it takes when the block ends without an error."""
    partial = final.with_name(final.name + ".partial")
    partial.unlink(missing_ok=True)
    with _removed(partial):
        yield partial
        sync(partial)
        partial.replace(final)
    sync(final.parent)


@contextlib.contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """A folder beside its place, which it takes when the block ends without an error."""
    partial = final.with_name(final.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with _removed(partial):
        partial.mkdir()
        yield partial
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    sync(final.parent)


def point(link: Path, target: str) -> None:
    """A link to a folder beside it, there at any moment."""
    partial = link.with_name(link.name + ".partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(link)


def sync(path: Path) -> None:
    """Have what was written to a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _removed(partial: Path) -> Iterator[None]:
    """Whatever is left of `partial` is removed: where it did not get to its place, it takes the room of what can."""
    try:
        yield
    finally:
        shutil.rmtree(partial) if partial.is_dir() else partial.unlink(missing_ok=True)
