"""JSON values as calls may hold them: finite numbers, whole characters, nesting with an end.

The functions raise ValueError with a reason that a model can read.
"""

import json
import re
from collections import Counter
from typing import Any, NoReturn, TypeVar

Number = TypeVar("Number", bound=float)

DEPTH = 32
"""How deep a call may be nested."""
_DIGITS = 1000
_TOO_LARGE = 10**_DIGITS
_HALF = re.compile("[\ud800-\udfff]")


def whole(text: str) -> str:
    """The text, with the replacement character for each half of one (a lone surrogate): those have no UTF-8."""
    return text if text.isascii() else _HALF.sub("\ufffd", text)


def check(value: Any, depth: int = 0) -> None:
    """Raises for what cannot be written down again: nesting without end, and half characters."""
    if isinstance(value, str):
        return _check_text(value)
    if not isinstance(value, dict | list):
        return
    if depth > DEPTH or (value and depth == DEPTH):
        raise ValueError(f"the call is nested more than {DEPTH} deep")
    for part in (*value, *value.values()) if isinstance(value, dict) else value:
        if isinstance(part, str):
            _check_text(part)
        elif isinstance(part, dict | list):
            check(part, depth + 1)


def _check_text(text: str) -> None:
    if not text.isascii() and _HALF.search(text):
        raise ValueError("the call has half a character (a lone surrogate)")


def bounded(number: Number) -> Number:
    """The number, if it is finite and has at most 1000 digits: Python's own limit is longer, and a setting."""
    if not abs(number) < _TOO_LARGE:
        raise ValueError("a number of the call is too large")
    return number


def finite(digits: str) -> float:
    """A number with a fraction or an exponent."""
    return bounded(float(digits))


def integer(digits: str) -> int:
    """A whole number of at most 1000 digits, counted before they are read: that takes quadratic time."""
    if len(digits) > _DIGITS:
        raise ValueError("a number of the call is too large")
    return int(digits)


def refuse(constant: str) -> NoReturn:
    """NaN and Infinity, which Python's reader takes for JSON."""
    raise ValueError(f"the call is not JSON: {constant}")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object none of whose keys is there twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} is there twice")
    return values


STRICT = json.JSONDecoder(object_pairs_hook=unique, parse_float=finite, parse_int=integer, parse_constant=refuse)
"""Reads JSON as it is defined. `check` sees to the rest; what is too deep for it is a RecursionError."""


def read(text: str, depth: int = 0, subject: str = "the call is") -> Any:
    """The value of a JSON text that stands `depth` deep in a call. What is no JSON is told of `subject`."""
    try:
        value = STRICT.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{subject} not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise ValueError(f"the call is nested more than {DEPTH} deep") from error
    check(value, depth)
    return value
