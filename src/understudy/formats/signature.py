"""A tool in one line, for models that were not trained on tools and whose context is short.

`cancel_order(order_id: str, reason: "no longer needed" | "ordered by mistake") - Cancel a pending order.`
What a JSON schema says beyond types, enums, optional parameters and short descriptions is left out: formats, bounds,
patterns, defaults, and the descriptions of nested fields. The toolkit still checks them, and explains its refusals.
"""

import json
from collections.abc import Mapping
from typing import Any

from understudy.messages import ToolSpec

_SHORT = 60
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def signature(spec: ToolSpec) -> str:
    """The tool in one line; its description whole, on that line."""
    schema = spec.parameters
    parameters = ", ".join(_fields(schema, schema.get("$defs", {}), notes=True))
    description = " ".join(spec.description.split())
    return f"{spec.name}({parameters})" + (f" - {description}" if description else "")


def _fields(schema: Mapping[str, Any], defs: Mapping[str, Any], notes: bool = False) -> list[str]:
    required = schema.get("required", ())
    fields = schema.get("properties", {}).items()
    return [_field(name, field, name in required, defs, notes) for name, field in fields]


def _field(name: str, schema: Any, required: bool, defs: Mapping[str, Any], notes: bool) -> str:
    kind = _kind(schema, defs)
    if not required:
        kind = kind.removesuffix(" | None")
    note = " ".join(schema.get("description", "").split()) if notes and isinstance(schema, dict) else ""
    return f"{name}{'' if required else '?'}: {kind}" + (f" ({note})" if 0 < len(note) <= _SHORT else "")


def _kind(schema: Any, defs: Mapping[str, Any]) -> str:
    """The type that a schema describes; `any` where it does not say."""
    if not isinstance(schema, dict):
        return "any"
    if "$ref" in schema:
        return _referred(schema["$ref"].rpartition("/")[2], defs)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join("None" if value is None else json.dumps(value, ensure_ascii=False) for value in values)
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return _either([_kind(option, defs) for option in schema[union]])
    kinds = schema.get("type", "any")
    return _either([_simple(kind, schema, defs) for kind in ([kinds] if isinstance(kinds, str) else kinds)])


def _either(kinds: list[str]) -> str:
    """A union, each type once and None last."""
    return " | ".join(sorted(dict.fromkeys(kinds), key="None".__eq__))


def _referred(name: str, defs: Mapping[str, Any]) -> str:
    """A definition in place; inside of itself only its name."""
    inner = {other: schema for other, schema in defs.items() if other != name}
    return _kind(defs[name], inner) if name in defs else name


def _simple(kind: str, schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    if kind == "array":
        return f"list[{_kind(schema.get('items'), defs)}]"
    if kind != "object":
        return _TYPES.get(kind, kind)
    if "properties" in schema:
        return "{" + ", ".join(_fields(schema, defs)) + "}"
    values = schema.get("additionalProperties")
    return f"dict[str, {_kind(values, defs)}]" if isinstance(values, dict) else "dict"
