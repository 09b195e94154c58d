"""Lock a folder, so that only one process writes to it.

The lock is on the folder itself. The package filelock needs a lock file, which would remain in the folder, and which
cannot be created in a read-only folder.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from understudy.core.errors import ConfigError


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. Create the folder if it does not exist, and remove it again if it stays empty.

    Raise ConfigError if another process holds the lock, or if the folder cannot be created. The lock is released when
    the process ends, even if it is killed.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as e:
        raise ConfigError(f"{folder} cannot be created or opened ({e.strerror}); give another folder") from e
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
        raise ConfigError(f"another process is writing to {folder}; stop it, or wait until it ends") from e
    except OSError:  # the file system has no locks
        return
