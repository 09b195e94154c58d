"""Types of JSON Schemas, for argument values that are written without quotes."""

from collections.abc import Mapping
from typing import Any

_NAMES = {bool: "boolean", int: "integer", float: "number", dict: "object", list: "array", type(None): "null"}


def json_type(value: Any) -> str:
    """Return the JSON Schema type of a value."""
    return _NAMES.get(type(value), "string")


def schema_types(schema: Any, definitions: Any = None) -> set[str]:
    """Return the types that a schema allows, or none if it states none.

    Types of unions and of referenced `definitions` are included. Schemas come from MCP servers and may be invalid, so
    no structure is assumed.
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
        return {json_type(value) for value in values}
    return {each for each in [stated, *_listed(stated)] if isinstance(each, str)}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
