"""Tool calls invented from JSON schemas: ids that no database has, empty and huge values, and wrong types.

A model makes such calls, so tools must refuse them. The calls of a tool are the same in every process.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest
from typing import Any

from understudy.core.messages import ToolCall, ToolSpec
from understudy.formats.parsing.schema import resolve_schema

UNKNOWN_ID = "no-such-id"
"""A text that is no id, no number, no date and no JSON."""
HUGE_INTEGER = 10**20
"""Too large for 64 bits, so that code which allocates that much fails at once instead of using all memory."""
_WRONG_TYPES: tuple[Any, ...] = (None, {"unexpected": [UNKNOWN_ID]})
_VALUES: Mapping[str, tuple[Any, ...]] = {
    "string": (UNKNOWN_ID, "", "-1", "\u00e9 \u540d \"'{}%s\\", "x" * 5000),
    "integer": (0, -1, HUGE_INTEGER),
    "number": (0, -1.5, 1e300, math.nan),
    "boolean": (True, False),
    "null": (None,),
    "object": ({}, {UNKNOWN_ID: UNKNOWN_ID}),
}
_ANY: tuple[Any, ...] = (UNKNOWN_ID, "", [], {}, -1)
_MAX_DEPTH = 4
"""Depth at which a schema that contains itself is cut off."""


def invent_calls(spec: ToolSpec, known: Mapping[str, Sequence[Any]], limit: int) -> list[ToolCall]:
    """Return at most `limit` different calls of a tool, the simplest first.

    One call has no arguments and one has unknown ids only. In each of the others one argument is invented, and the rest
    are `known` values of arguments with these names, where there are any.
    """
    properties = spec.parameters.get("properties", {})
    required = [name for name in spec.parameters.get("required", ()) if name in properties]
    plain = {name: plausible_value(properties[name], spec.parameters) for name in required}
    usual = plain | {name: known[name][0] for name in required if known.get(name)}
    by_argument = [
        [usual | {name: value} for value in invent_values(schema, spec.parameters)]
        for name, schema in properties.items()
    ]
    rounds = (each for each in chain.from_iterable(zip_longest(*by_argument)) if each is not None)
    found: dict[str, ToolCall] = {}
    for arguments in chain([plain, {}], rounds):
        if len(found) == limit:
            break
        found.setdefault(repr(arguments), ToolCall(name=spec.name, arguments=arguments))
    return list(found.values())


def invent_values(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Any]:
    """Return values for one argument: first unusual ones of its types, then wrong types. `root` has the definitions."""
    return [*islice(_values(schema, root, 0), 12), *_WRONG_TYPES]


def plausible_value(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a value that a schema without patterns accepts."""
    schema = _resolve(schema, root)
    if "enum" in schema or "const" in schema:
        return [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key) and depth < _MAX_DEPTH:
            return plausible_value(schema[key][0], root, depth + 1)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            nested = schema.get("items")
            return [plausible_value(nested, root, depth + 1)] if nested and depth < _MAX_DEPTH else []
        case "object" if depth < _MAX_DEPTH:
            properties = schema.get("properties", {})
            names = (name for name in schema.get("required", ()) if name in properties)
            return {name: plausible_value(properties[name], root, depth + 1) for name in names}
        case "object":
            return {}
    return UNKNOWN_ID


def _values(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[Any]:
    schema = _resolve(schema, root)
    if depth >= _MAX_DEPTH:
        return
    for key in ("anyOf", "oneOf", "allOf"):
        for nested in schema.get(key, ()):
            yield from _values(nested, root, depth + 1)
        if schema.get(key):
            return
    if "enum" in schema:
        yield from (*schema["enum"][:2], UNKNOWN_ID)
        return
    kinds = schema.get("type", ())
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind == "array":
            item = plausible_value(schema.get("items") or {}, root, depth + 1)
            yield from ([], [item], [item] * 100)
        elif kind == "object" and schema.get("properties"):
            usual = plausible_value(schema, root)
            yield from ({}, usual, *_nested_objects(schema, usual, root, depth))
        else:
            yield from _VALUES.get(kind, _ANY)
    if not kinds:
        yield from _ANY


def _nested_objects(
    schema: Mapping[str, Any], usual: Mapping[str, Any], root: Mapping[str, Any], depth: int
) -> Iterator[Any]:
    """Yield the object with one invented value in each of its properties in turn."""
    for name, nested in schema["properties"].items():
        yield from ({**usual, name: value} for value in islice(_values(nested, root, depth + 1), 2))


def _resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the definition that a `$ref` names; a schema that is no object, such as `true`, allows anything."""
    found = resolve_schema(schema, root)
    return found if isinstance(found, Mapping) else {}
