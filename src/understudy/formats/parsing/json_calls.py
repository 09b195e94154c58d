"""Detection of tool calls in JSON values, in the shapes in which models write them.

These are `{"name": …, "arguments": …}` alone or in a list, `{"tool_calls": [{"function": …}]}`, and other names of the
two keys, such as `parameters`. `{"server": …, "tool": …, "params": …}` names a tool of an MCP server. Arguments may be
an object or its JSON text. Any other value is data.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from understudy.core.json_values import MAX_DEPTH, validate_json_value
from understudy.formats.parsing.repair import ARGUMENTS, ObjectPairs, ParseFailure

NAME_KEYS = ("name", "function", "tool", "tool_name", "function_name", "action")
"""Keys under which models write the name of a call; the first is the standard one."""
WRAPPER_KEYS = ("tool_calls", "tool_call", "function_call", "calls")
_BESIDE = ("id", "call_id", "tool_call_id", "type", "index", "thought", "content", "role", "refusal")
_MAX_WRAPS = 8  # nesting depth up to which calls are searched


@dataclass(slots=True)
class CallCandidate:
    """A call as it was written.

    `arguments` is any value. `wrapped` means that the value stands in a tag or under a key such as `tool_calls`, so it
    can only be a call.
    """

    wrapped: bool
    name: Any = None
    name_key: str = "name"
    arguments: Any = None
    arguments_key: str = ""
    server: str = ""
    """The value of the key `server`, if it is a string."""
    unexpected_key: str = ""
    has_duplicate_key: bool = False
    failure: ParseFailure | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it has a name and arguments."""
        return self.name is not None and bool(self.arguments_key)

    def resolve_name(self, tool_names: Collection[str]) -> Any:
        """Return the name, or `server.tool` if only this is the name of a known tool."""
        if not self.server or not isinstance(self.name, str) or self.name in tool_names:
            return self.name
        full_name = f"{self.server}.{self.name}"
        return full_name if full_name in tool_names else self.name


def find_calls(
    value: Any, tool_names: Collection[str], wrapped: bool = False, depth: int = 0
) -> Iterator[CallCandidate]:
    """Yield the calls of a value in order; none if it is data.

    A `wrapped` value that is not a call gives a malformed one.
    """
    if isinstance(value, ObjectPairs):
        yield from _of_object(value, tool_names, wrapped, depth)
    elif isinstance(value, list) and depth < _MAX_WRAPS:
        for item in value:
            yield from find_calls(item, tool_names, wrapped, depth + 1)
    elif isinstance(value, ParseFailure) and wrapped:
        yield CallCandidate(wrapped, failure=value)
    elif wrapped:
        yield CallCandidate(wrapped, failure=ParseFailure("shape", "the call is not a JSON object"))


def _of_object(pairs: ObjectPairs, known: Collection[str], wrapped: bool, depth: int) -> Iterator[CallCandidate]:
    draft, inner = CallCandidate(wrapped), False
    for key, value in pairs:
        if _holds_calls(key, value) and depth < _MAX_WRAPS:
            for call in find_calls(value, known, wrapped=True, depth=depth + 1):
                inner = True
                yield call
            continue
        if draft.is_complete and key in NAME_KEYS and value != draft.name:
            # A second name means a second call: the brackets between the two are missing.
            yield draft
            draft = CallCandidate(wrapped)
        _put(draft, key, value)
    if _is_tool_definition(draft) and (depth or not wrapped):
        return
    if _is_call(draft, known) or (not inner and (wrapped or isinstance(draft.arguments, ParseFailure))):
        yield draft


def _holds_calls(key: str, value: Any) -> bool:
    if key in WRAPPER_KEYS:
        return isinstance(value, list | ParseFailure)
    return key in ("function", "name") and isinstance(value, ObjectPairs)


def _put(draft: CallCandidate, key: str, value: Any) -> None:
    if key in ARGUMENTS and not draft.arguments_key:
        draft.arguments, draft.arguments_key = value, key
    elif isinstance(value, ParseFailure):
        draft.failure = value
    elif key == "server" and isinstance(value, str):
        draft.server = value
    elif key in NAME_KEYS and draft.name is None:
        draft.name, draft.name_key = value, key
    elif key in (draft.name_key, draft.arguments_key):
        draft.has_duplicate_key = True
        if not json_equal(value, draft.name if key == draft.name_key else draft.arguments):
            draft.failure = ParseFailure("duplicate", f"the key {key!r} is given twice, with different values")
    elif key not in _BESIDE:
        draft.unexpected_key = draft.unexpected_key or key


def _is_tool_definition(draft: CallCandidate) -> bool:
    """Return whether an object describes a tool, as in the prompt, and does not call it."""
    if draft.arguments_key == "":
        return draft.unexpected_key == "description"
    schema = draft.arguments
    keys = {key for key, _ in schema} if isinstance(schema, ObjectPairs) else set()
    return draft.arguments_key == "parameters" and {"type", "properties"} <= keys and ("type", "object") in schema


def _is_call(draft: CallCandidate, known: Collection[str]) -> bool:
    """Return whether an object that stands alone is a call, and not data with a name."""
    if not isinstance(draft.name, str):
        return False
    if draft.resolve_name(known) in known:
        return draft.is_complete or bool(draft.failure) or draft.name_key == "name"
    if draft.name_key == "name" and draft.arguments_key == "arguments":
        return True
    if draft.name_key == "name" and draft.arguments_key == "params" and known:
        return False  # other data has such keys, too
    return draft.is_complete and not draft.unexpected_key and isinstance(draft.arguments, ObjectPairs | ParseFailure)


def pairs_to_dicts(value: Any, depth: int = 0) -> tuple[Any, bool]:
    """Return the value with dicts instead of `ObjectPairs`, and whether a key occurred twice.

    Raise ValueError for a key with two different values, and for values that `json_values.validate_json_value` rejects.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"the call is nested more than {MAX_DEPTH} deep")
    if isinstance(value, ObjectPairs):
        return _merged(value, depth)
    if isinstance(value, list):
        items = [pairs_to_dicts(item, depth + 1) for item in value]
        return [item for item, _ in items], any(twice for _, twice in items)
    validate_json_value(value)
    return value, False


def _merged(pairs: ObjectPairs, depth: int) -> tuple[dict[str, Any], bool]:
    merged: dict[str, Any] = {}
    doubled = False
    for key, raw in pairs:
        value, twice = pairs_to_dicts(raw, depth + 1)
        if key in merged and not json_equal(merged[key], value):
            raise ValueError(f"the key {key!r} is given twice, with different values")
        doubled |= twice or key in merged
        validate_json_value(key)
        merged[key] = value
    return merged, doubled


def json_equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; 1, 1.0 and true are three different values."""
    return type(one) is type(other) and bool(one == other)
