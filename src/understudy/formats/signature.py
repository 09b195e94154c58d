"""Tool signatures: one line a tool, for models with a short context that were not trained on tools.

`cancel_order(order_id: str, reason: "no longer needed" | "ordered by mistake") - Cancel a pending order.`

A signature shows types, enums, optional parameters and short descriptions. It omits the rest of the JSON Schema:
formats, bounds, patterns, defaults, descriptions of nested fields, and definitions nested more than two deep. The
toolkit still checks all of it and explains its errors.
"""

import json
from collections.abc import Mapping
from typing import Any

from understudy.core.messages import ToolCall, ToolSpec
from understudy.formats.parsing.schema import resolve_reference

_MAX_NOTE = 60  # largest length of a parameter's description that is shown, in characters
_DEPTH = 2  # how many nested definitions are expanded
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_SAMPLES = {"integer": 1, "number": 1.5, "boolean": True, "null": None}


def tool_signature(spec: ToolSpec) -> str:
    """Return the tool's signature and its complete description on one line."""
    schema = spec.parameters
    parameters = ", ".join(_fields(schema, schema, _DEPTH, notes=True))
    description = " ".join(spec.description.split())
    return f"{spec.name}({parameters})" + (f" - {description}" if description else "")


def example_call(spec: ToolSpec) -> ToolCall:
    """Return an example call of the tool with its required parameters and placeholder values."""
    arguments = _sample({**spec.parameters, "type": "object"}, spec.parameters, _DEPTH)
    return ToolCall(name=spec.name, arguments=arguments)


def _sample(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, dict):
        return "..."
    if "$ref" in schema:
        return _sample(resolve_reference(schema["$ref"], root) if depth else None, root, depth - 1)
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return _sample(schema[union][0], root, depth)
    if "enum" in schema or "const" in schema:
        return schema.get("enum", [schema.get("const")])[0]
    kinds = schema.get("type", "any")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if kind == "array":
        return [_sample(schema.get("items"), root, depth)]
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: _sample(fields.get(name), root, depth) for name in schema.get("required", ())}
    return _SAMPLES.get(kind, "...")


def _fields(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int, notes: bool = False) -> list[str]:
    required = schema.get("required", ())
    fields = schema.get("properties", {}).items()
    return [_field(name, field, _kind(field, root, depth), name in required, notes) for name, field in fields]


def _field(name: str, schema: Any, kind: str, required: bool, notes: bool) -> str:
    if not required:
        kind = kind.removesuffix(" | None")
    note = " ".join(schema.get("description", "").split()) if notes and isinstance(schema, dict) else ""
    return f"{name}{'' if required else '?'}: {kind}" + (f" ({note})" if 0 < len(note) <= _MAX_NOTE else "")


def _kind(schema: Any, root: Mapping[str, Any], depth: int) -> str:
    """Return the type that a schema describes, or `any` if it states none."""
    if not isinstance(schema, dict):
        return "any"
    if "$ref" in schema:
        found = resolve_reference(schema["$ref"], root)
        return _kind(found, root, depth - 1) if depth and found is not None else schema["$ref"].rpartition("/")[2]
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join("None" if value is None else json.dumps(value, ensure_ascii=False) for value in values)
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return _union([_kind(option, root, depth) for option in schema[union]])
    kinds = schema.get("type", "any")
    return _union([_simple(kind, schema, root, depth) for kind in ([kinds] if isinstance(kinds, str) else kinds)])


def _union(kinds: list[str]) -> str:
    """Return a union in which each type occurs once and None comes last."""
    return " | ".join(sorted(dict.fromkeys(kinds), key="None".__eq__))


def _simple(kind: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
    if kind == "array":
        return f"list[{_kind(schema.get('items'), root, depth)}]"
    if kind != "object":
        return _TYPES.get(kind, kind)
    if "properties" in schema:
        return "{" + ", ".join(_fields(schema, root, depth)) + "}"
    values = schema.get("additionalProperties")
    return f"dict[str, {_kind(values, root, depth)}]" if isinstance(values, dict) else "dict"
