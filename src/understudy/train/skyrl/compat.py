"""A patch that SkyRL 0.3.0 needs on Python before 3.12. Each process applies it before it imports SkyRL."""

import sys
import typing

import typing_extensions


def patch_typed_dict() -> None:
    """Replace `typing.TypedDict` by that of typing_extensions. Before Python 3.12 pydantic refuses the former."""
    if sys.version_info < (3, 12):
        typing.TypedDict = typing_extensions.TypedDict
