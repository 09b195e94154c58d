"""References such as `${step1.data[0].price}` to the results of earlier calls.

A reference names a step, counted from 1, and a path in its result: keys (`.price`) and places in lists (`[0]` or `.0`,
at most 999). `${step1}` is the complete result. A result that is JSON text is read as its value. A list of one item
stands for its item where a key is asked for. References are looked up, and nothing in them is evaluated.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json

from understudy.core.json_values import parse_index

_ANY = re.compile(r"\$\{[^}]*\}")
_REFERENCE = re.compile(r"\$\{step(\d{1,4})((?:\.[^.\[\]{}\s]+|\[\d{1,3}\])*)\}")
_PART = re.compile(r"\.([^.\[\]{}\s]+)|\[(\d+)\]")


class StepReference(NamedTuple):
    """A reference to a value in the result of a step."""

    step: int
    """The step, counted from 1."""
    path: tuple[str, ...]
    """Keys, and places in lists."""


def find_references(value: Any) -> Iterator[str]:
    """Yield the texts of the form `${…}` in a value, in order."""
    if isinstance(value, str):
        yield from _ANY.findall(value)
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from find_references(inner)


def parse_reference(text: str) -> StepReference:
    """Return the reference that a text `${…}` is. Raise ValueError for any other text."""
    found = _REFERENCE.fullmatch(text)
    if not found:
        raise ValueError(f"{text:.80} is not a reference to a step's result; write one such as ${{step1.field}}")
    return StepReference(int(found[1]), tuple(key or place for key, place in _PART.findall(found[2])))


def resolve_references(value: Any, results: Sequence[Any]) -> Any:
    """Return a value with its references replaced by values of the `results` of the steps before.

    A text that is one reference becomes the value itself; in a longer text, the value is written as text. Raise
    ValueError if a step has no result yet, or its result has no such field.
    """
    if isinstance(value, dict):
        return {key: resolve_references(inner, results) for key, inner in value.items()}
    if isinstance(value, list):
        return [resolve_references(inner, results) for inner in value]
    if not isinstance(value, str):
        return value
    if _REFERENCE.fullmatch(value):
        return _look_up(value, results)
    return _ANY.sub(lambda found: _as_text(_look_up(found[0], results)), value)


def parse_result(result: Any) -> Any:
    """Return a result as a value: JSON text is read, any other text is itself."""
    if not isinstance(result, str):
        return result
    try:
        return from_json(result)
    except ValueError:
        return result


def _look_up(text: str, results: Sequence[Any]) -> Any:
    step, path = parse_reference(text)
    if not 1 <= step <= len(results):
        raise ValueError(f"{text} does not refer to an earlier step")
    found = parse_result(results[step - 1])
    for part in path:
        place = parse_index(part)
        if isinstance(found, list) and place is None and len(found) == 1:
            (found,) = found
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and place is not None and place < len(found):
            found = found[place]
        else:
            has = ", ".join(found) if isinstance(found, dict) else f"a {type(found).__name__}"
            raise ValueError(f"{text}: the result of step {step} has no {part!r} there; it has {has:.200}")
    return found


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
