"""Atomic writes of files and folders, and OS errors as one-line ConfigErrors."""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, TypeVar

from understudy.core.errors import ConfigError

RETRY_HINT = "run the same command again"
"""What to do after a failed write that left nothing behind."""
FileStamp = tuple[int, int]
_T = TypeVar("_T")


def file_stamp(path: Path) -> FileStamp:
    """Return the modification time of a file or folder in nanoseconds, and its size in bytes; zeros if it does not
    exist.
    """
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


def digest_file(path: Path) -> str:
    """Return the SHA-256 digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_until_changed(maxsize: int) -> Callable[[Callable[[Path], _T]], Callable[[Path], _T]]:
    """Cache the results of a function that reads a file. It reads the file again if the file's stamp has changed."""

    def decorate(read: Callable[[Path], _T]) -> Callable[[Path], _T]:
        cached = lru_cache(maxsize)(lambda file, _: read(file))
        return lambda file: cached(file, file_stamp(file))

    return decorate


@contextlib.contextmanager
def os_errors_as_config_errors(path: Path, hint: str) -> Iterator[None]:
    """Turn an OSError in the block into a ConfigError with `path`, the reason and the `hint`."""
    try:
        yield
    except OSError as e:
        reason = e.strerror or str(e)
        if e.filename and e.strerror:
            reason = f"{e.filename}: {e.strerror}"
        raise ConfigError(f"{path} cannot be written ({reason}); fix that, then {hint}") from e


def append_bytes(file: Path, data: bytes) -> None:
    """Append `data` in one write. Raise OSError and leave the file unchanged if that fails."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if os.write(descriptor, data) < len(data):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
    finally:
        os.close(descriptor)


def repair_jsonl(file: Path) -> bool:
    """Create the file if it is missing, and remove a last line without a line end, which a crash cut off.

    Return whether a line was removed.
    """
    file.touch()
    with file.open("rb") as lines:
        partial = next((len(line) for line in lines if not line.endswith(b"\n")), 0)
    if partial:
        os.truncate(file, file.stat().st_size - partial)  # a crash while rewriting would lose all lines
    return partial > 0


@contextlib.contextmanager
def open_bytes(file: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes. Raise ConfigError if it cannot be read."""
    try:
        with file.open("rb") as opened:
            yield opened
    except OSError as e:
        raise ConfigError(f"{file} cannot be read ({e.strerror or e}); fix that, then {RETRY_HINT}") from e


def read_bytes(file: Path) -> bytes:
    """Return the content of a file. Raise ConfigError if it cannot be read."""
    with open_bytes(file) as opened:
        return opened.read()


def write_text(file: Path, text: str) -> None:
    """Write a text file that the user asked for, such as a report. Raise ConfigError if that fails."""
    with os_errors_as_config_errors(file, RETRY_HINT):
        file.write_text(text, encoding="utf-8")


def atomic_write(path: Path, content: str | bytes) -> None:
    """Replace a file's content atomically. After a crash the file holds either the old or the new content."""
    with atomic_file(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def atomic_file(final: Path) -> Iterator[Path]:
    """Yield a temporary path beside `final`, and rename it to `final` if the block succeeds."""
    partial = final.with_name(final.name + ".partial")
    partial.unlink(missing_ok=True)
    with _removed(partial):
        yield partial
        fsync(partial)
        partial.replace(final)
    fsync(final.parent)


@contextlib.contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `final`, and rename it to `final` if the block succeeds."""
    partial = final.with_name(final.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with _removed(partial):
        partial.mkdir()
        yield partial
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    fsync(final.parent)


def atomic_symlink(link: Path, target: str) -> None:
    """Create or replace the symbolic link `link` atomically. `target` is relative to the link's folder."""
    partial = link.with_name(link.name + ".partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(link)


def fsync(path: Path) -> None:
    """Flush a file's content, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _removed(partial: Path) -> Iterator[None]:
    """Remove what is left of `partial` when the block ends, so that a failed write does not fill the disk."""
    try:
        yield
    finally:
        shutil.rmtree(partial) if partial.is_dir() else partial.unlink(missing_ok=True)
