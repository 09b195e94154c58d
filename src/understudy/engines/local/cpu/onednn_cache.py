"""Limits oneDNN's primitive cache, which by default keeps 1024 compiled kernels, one per bfloat16 shape.

A primitive takes 1 MB or more. Sequence lengths vary all the time, so a full cache holds gigabytes that are rarely used
again. Forward and backward pass of a microbatch use less than a hundred.
"""

import os

MAX_CACHED_PRIMITIVES = 256
PRIMITIVE_BYTES = 1 << 20
"""Mean measured size of a primitive in bytes."""
_VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Cache sizes of oneDNN (Developer Guide, "Primitive Cache") and of PyTorch's layer above it."""


def max_cached_primitives() -> int:
    """Return the most primitives that are cached: as many as the environment says, or `MAX_CACHED_PRIMITIVES`."""
    text = os.environ.get(_VARIABLES[0], "")
    return int(text) if text.isdigit() else MAX_CACHED_PRIMITIVES


def limit_onednn_cache() -> None:
    """Limit both caches to `MAX_CACHED_PRIMITIVES`, unless the environment sets a size.

    They are read at the first bfloat16 product on a CPU. Later calls have no effect.
    """
    for variable in _VARIABLES:
        os.environ.setdefault(variable, str(MAX_CACHED_PRIMITIVES))
