"""The types that a JSON Schema takes, for values that are written without quotes."""

from collections.abc import Mapping
from typing import Any

_NAMES = {bool: "boolean", int: "integer", float: "number", dict: "object", list: "array", type(None): "null"}


def kind(value: Any) -> str:
    """The name that JSON Schema has for a value's type."""
    return _NAMES.get(type(value), "string")


def kinds(schema: Any, definitions: Any = None) -> set[str]:
    """The types that a schema takes, those of its unions and of the `definitions` that it names; none if it has none.

    It is a server's own, and nothing about it is certain.
    """
    found, seen, left = set[str](), set[str](), [schema]
    while left:
        schema = left.pop()
        if not isinstance(schema, Mapping):
            continue
        found |= _stated(schema)
        left += [option for union in ("anyOf", "oneOf", "allOf") for option in _listed(schema.get(union))]
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        if name not in seen and isinstance(definitions, Mapping):
            seen.add(name)
            left.append(definitions.get(name))
    return found


def _stated(schema: Mapping[str, Any]) -> set[str]:
    stated = schema.get("type")
    if stated is None:
        values = [*_listed(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
        return {kind(value) for value in values}
    return {each for each in [stated, *_listed(stated)] if isinstance(each, str)}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
