"""oneDNN's programs: for each shape that it multiplies in bfloat16 it writes one, and keeps a thousand.

One takes a megabyte or more. Sequences have ever new lengths, so that the thousand come to gigabytes, which are hardly
ever used again; one pass of a micro-batch, forward and backward, uses less than a hundred.
"""

import os

KEPT = 256
SIZE = 1 << 20
"""Bytes of one, as measured on average."""
_VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""How many are kept by oneDNN (its Developer Guide, "Primitive Cache"), and how many by PyTorch's layer above it."""


def keep_few() -> None:
    """Have this process keep `KEPT` of them, unless the environment says how many.

    Both read it when they first multiply in bfloat16 on a CPU; afterwards it changes nothing.
    """
    for variable in _VARIABLES:
        os.environ.setdefault(variable, str(KEPT))
