"""What SkyRL 0.3.0 needs of a Python older than 3.12, in each process before it is imported."""

import sys
import typing

import typing_extensions


def mend() -> None:
    """Let its records use a TypedDict that pydantic takes: of `typing` it takes only that of Python 3.12 and later."""
    if sys.version_info < (3, 12):
        typing.TypedDict = typing_extensions.TypedDict
