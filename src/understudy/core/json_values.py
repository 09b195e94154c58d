"""Checks of JSON values in tool calls: finite numbers, valid Unicode, limited depth.

The functions raise ValueError with a reason that a model can read.
"""

import json
import re
from collections import Counter
from typing import Any, NoReturn, TypeVar

Number = TypeVar("Number", bound=float)

MAX_DEPTH = 32
"""Largest nesting depth of a call."""
_DIGITS, _INDEX_DIGITS = 1000, 9
_TOO_LARGE = 10**_DIGITS
_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Replace each lone surrogate, which has no UTF-8 encoding, by the replacement character."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def validate_json_value(value: Any, depth: int = 0) -> None:
    """Raise ValueError if a value is nested too deeply or has a lone surrogate.

    `depth` is the nesting depth of `value` in the call.
    """
    if isinstance(value, str):
        return _check_text(value)
    if not isinstance(value, dict | list):
        return
    if depth > MAX_DEPTH or (value and depth == MAX_DEPTH):
        raise ValueError(f"the call is nested more than {MAX_DEPTH} deep")
    for part in (*value, *value.values()) if isinstance(value, dict) else value:
        if isinstance(part, str):
            _check_text(part)
        elif isinstance(part, dict | list):
            validate_json_value(part, depth + 1)


def _check_text(text: str) -> None:
    if not text.isascii() and _SURROGATE.search(text):
        raise ValueError("the call contains a lone surrogate")


def validate_number(number: Number) -> Number:
    """Return the number. Raise ValueError if it is not finite or has more than 1000 digits.

    Python's own limit of digits is higher and depends on a setting of the interpreter.
    """
    if not abs(number) < _TOO_LARGE:
        raise ValueError("a number of the call is too large")
    return number


def parse_float(digits: str) -> float:
    """Parse a number with a fraction or an exponent. Raise ValueError if it is too large."""
    return validate_number(float(digits))


def parse_int(digits: str) -> int:
    """Parse an integer of at most 1000 digits.

    The digits are counted first, because Python's conversion takes quadratic time. Raise ValueError if there are too
    many.
    """
    if len(digits) > _DIGITS:
        raise ValueError("a number of the call is too large")
    return int(digits)


def parse_index(text: str) -> int | None:
    """Return the number that a text of at most 9 ASCII digits is, or None for any other text, such as "²"."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _INDEX_DIGITS else None


def reject_nan_and_infinity(constant: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which Python's decoder accepts as JSON."""
    raise ValueError(f"the call is not JSON: {constant}")


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the key-value pairs as a dict. Raise ValueError if a key occurs twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} is given twice")
    return values


STRICT_DECODER = json.JSONDecoder(
    object_pairs_hook=reject_duplicate_keys,
    parse_float=parse_float,
    parse_int=parse_int,
    parse_constant=reject_nan_and_infinity,
)
"""Decoder for standard JSON without duplicate keys. It raises RecursionError for extreme nesting;
`validate_json_value` makes the remaining checks."""


def parse_json(text: str, depth: int = 0, subject: str = "the call is") -> Any:
    """Parse a JSON text and check its value.

    `depth` is the depth at which the text stands in a call. `subject` begins the error text of invalid JSON. Raise
    ValueError if the text is not JSON or its value is not valid in a call.
    """
    try:
        value = STRICT_DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{subject} not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise ValueError(f"the call is nested more than {MAX_DEPTH} deep") from error
    validate_json_value(value, depth)
    return value
