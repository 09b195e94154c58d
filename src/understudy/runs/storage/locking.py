"""Lock a folder, so that only one process writes to it.

The lock is on the folder itself. The package filelock needs a lock file, which would remain in the folder, and which
cannot be created in a read-only folder.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from understudy.core.errors import ConfigError

_ATTEMPTS, _ATTEMPT_SECONDS = 4, 0.02


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. Create the folder if it does not exist, and remove it again if it stays empty.

    Raise ConfigError if another process holds the lock, or if the folder cannot be created. The lock is released when
    the process ends, even if it is killed.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
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
        for path in created:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def is_locked(folder: Path) -> bool | None:
    """Return whether a process holds the lock of a folder. None if that cannot be tested."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file system has no locks
        return None
    finally:
        os.close(descriptor)
    return False


def _lock(descriptor: int, folder: Path) -> None:
    """Lock a folder. A test by `is_locked` holds the lock for microseconds, so some attempts are made."""
    for attempt in range(_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            if attempt == _ATTEMPTS - 1:
                raise ConfigError(f"another process is writing to {folder}; stop it, or wait until it ends") from e
            time.sleep(_ATTEMPT_SECONDS)
        except OSError:  # the file system has no locks
            return
        else:
            return
