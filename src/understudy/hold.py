"""Hold: a folder that one process writes to, while others are kept out of it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from understudy.errors import ConfigError


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keeps out whoever else would hold a folder, which is made, and removed again where nothing was put into it.

    A `ConfigError` where another process has it, or where it cannot be made. One that dies, however, has let go of it.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as e:
        raise ConfigError(f"{folder} is no folder that can be written ({e.strerror}); give another one") from e
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)
        for path in made:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise ConfigError(f"another process is writing to {folder}; end that one, or wait until it has ended") from e
    except OSError:  # a file system without locks; there nobody is kept out
        return
