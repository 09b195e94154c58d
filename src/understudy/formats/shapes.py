"""Calls in JSON values: in which shapes models write them.

`{"name": …, "arguments": …}` alone, in lists, in `{"tool_calls": [{"function": …}]}`, with `parameters` for
`arguments`, with the arguments as an object or as its text. Anything else is data, and no call.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from understudy.formats.repair import ARGUMENTS, Broken, Pairs
from understudy.values import DEPTH, check

NAMES = ("name", "function", "tool", "tool_name", "function_name", "action")
"""Keys under which models write the name of a call; the first is the right one."""
WRAPPERS = ("tool_calls", "tool_call", "function_call", "calls")
_BESIDE = ("id", "call_id", "tool_call_id", "type", "index", "thought", "content", "role", "refusal")
_WRAPS = 8  # how deep calls are looked for


@dataclass(slots=True)
class Draft:
    """A call as it was written. `arguments` is whatever stands there; `wrapped` that it can be nothing but a call."""

    wrapped: bool
    name: Any = None
    name_key: str = "name"
    arguments: Any = None
    arguments_key: str = ""
    other: str = ""
    twice: bool = False
    fault: Broken | None = None

    @property
    def whole(self) -> bool:
        """Whether it has a name and arguments."""
        return self.name is not None and bool(self.arguments_key)


def drafts(value: Any, known: Container[str], wrapped: bool = False, depth: int = 0) -> Iterator[Draft]:
    """The calls of a value, in order; none if it is data. What is `wrapped` and no call is one with a fault."""
    if isinstance(value, Pairs):
        yield from _of_object(value, known, wrapped, depth)
    elif isinstance(value, list) and depth < _WRAPS:
        for item in value:
            yield from drafts(item, known, wrapped, depth + 1)
    elif isinstance(value, Broken) and wrapped:
        yield Draft(wrapped, fault=value)
    elif wrapped:
        yield Draft(wrapped, fault=Broken("shape", "the call is not a JSON object"))


def _of_object(pairs: Pairs, known: Container[str], wrapped: bool, depth: int) -> Iterator[Draft]:
    draft, inner = Draft(wrapped), False
    for key, value in pairs:
        if _holds_calls(key, value) and depth < _WRAPS:
            for call in drafts(value, known, wrapped=True, depth=depth + 1):
                inner = True
                yield call
            continue
        if draft.whole and key in NAMES and value != draft.name:  # two calls whose brackets between them are lost
            yield draft
            draft = Draft(wrapped)
        _put(draft, key, value)
    if _is_call(draft, known) or (not inner and (wrapped or isinstance(draft.arguments, Broken))):
        yield draft


def _holds_calls(key: str, value: Any) -> bool:
    if key in WRAPPERS:
        return isinstance(value, list | Broken)
    return key in ("function", "name") and isinstance(value, Pairs)


def _put(draft: Draft, key: str, value: Any) -> None:
    if key in ARGUMENTS and not draft.arguments_key:
        draft.arguments, draft.arguments_key = value, key
    elif isinstance(value, Broken):
        draft.fault = value
    elif key in NAMES and draft.name is None:
        draft.name, draft.name_key = value, key
    elif key in (draft.name_key, draft.arguments_key):
        draft.twice = True
        if not same(value, draft.name if key == draft.name_key else draft.arguments):
            draft.fault = Broken("duplicate", f"the key {key!r} is there twice, with different values")
    elif key not in _BESIDE:
        draft.other = draft.other or key


def _is_call(draft: Draft, known: Container[str]) -> bool:
    """Whether an object that stands alone is a call and not data that has a name."""
    if not isinstance(draft.name, str):
        return False
    if draft.name in known:
        return draft.whole or bool(draft.fault) or draft.name_key == "name"
    if draft.name_key == "name" and draft.arguments_key == "arguments":
        return True
    return draft.whole and not draft.other and isinstance(draft.arguments, Pairs | Broken)


def plain(value: Any, depth: int = 0) -> tuple[Any, bool]:
    """The value with dicts for `Pairs`, and whether a key was there twice.

    Raises ValueError for a key with two values, and for what `values.check` refuses.
    """
    if depth > DEPTH:
        raise ValueError(f"the call is nested more than {DEPTH} deep")
    if isinstance(value, Pairs):
        return _merged(value, depth)
    if isinstance(value, list):
        items = [plain(item, depth + 1) for item in value]
        return [item for item, _ in items], any(twice for _, twice in items)
    check(value)
    return value, False


def _merged(pairs: Pairs, depth: int) -> tuple[dict[str, Any], bool]:
    merged: dict[str, Any] = {}
    doubled = False
    for key, raw in pairs:
        value, twice = plain(raw, depth + 1)
        if key in merged and not same(merged[key], value):
            raise ValueError(f"the key {key!r} is there twice, with different values")
        doubled |= twice or key in merged
        check(key)
        merged[key] = value
    return merged, doubled


def same(one: Any, other: Any) -> bool:
    """Equality of JSON values: 1, 1.0 and true are three values."""
    return type(one) is type(other) and bool(one == other)
