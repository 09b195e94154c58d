"""Simulation of a full disk."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """Limit files to `size` bytes in the block, so that a longer write fails in the middle as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
