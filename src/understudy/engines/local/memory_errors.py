"""Errors of torch when memory runs out."""

import contextlib
import re
from collections.abc import Iterator

import torch

from understudy.core.errors import ConfigError

_OUT_OF_MEMORY = re.compile("out of memory|allocate memory|not enough memory|ALLOC_FAILED")
"""Messages of torch when memory runs out. An illegal memory access is another error."""


@contextlib.contextmanager
def memory_errors_as_config_errors(key: str, value: int) -> Iterator[None]:
    """Raise ConfigError if the block runs out of memory. The error names `key`, the setting to lower."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as e:
        if isinstance(e, RuntimeError) and not _OUT_OF_MEMORY.search(str(e)):
            raise
        raise ConfigError(f"out of memory; lower {key} (now {value}) or use a smaller model: {e}") from e
