"""Types of JSON Schemas, for argument values that are written without quotes.

Schemas come from MCP servers and may be invalid, so no structure is assumed. `root` is the whole schema of a tool's
arguments, in which references are looked up.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

_NAMES = {bool: "boolean", int: "integer", float: "number", dict: "object", list: "array", type(None): "null"}
_UNIONS = ("anyOf", "oneOf")
_MAX_DEPTH = 32
"""References and unions that are followed one within another."""


def json_type(value: Any) -> str:
    """Return the JSON Schema type of a value."""
    return _NAMES.get(type(value), "string")


def resolve_reference(reference: Any, root: Any) -> Any:
    """Return the part of `root` that a `$ref` such as `#/properties/a` names (RFC 6901), or None.

    References to other documents are not followed.
    """
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    pointer = unquote(reference.removeprefix("#"))
    if pointer and not pointer.startswith("/"):
        return next((each for each in _definitions(root) if each.get("$anchor") == pointer), None)
    found = root
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


def resolve_schema(schema: Any, root: Any) -> Any:
    """Return the schema at the end of a chain of references, or {} if it is broken or circular."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        schema = resolve_reference(schema["$ref"], root)
    return {}


def schema_types(schema: Any, root: Any = None) -> set[str]:
    """Return the types that a schema allows, or none if it states none.

    A value must have a type of each part that states some: the schema's own, those of `allOf`, of a reference, and of
    each union.
    """
    return _types(schema, root, {}, 0)


def member_schema(schema: Any, key: str, root: Any) -> Any:
    """Return the schema of a property of an object, or of an array's items for the key `item`; {} if none is stated."""
    parts = list(_parts(schema, root, set()))
    for part in parts:
        properties = part.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return properties[key]
    others = [part.get("items" if key == "item" else "additionalProperties") for part in parts]
    return next((other for other in others if isinstance(other, Mapping)), {})


def _types(schema: Any, root: Any, known: dict[str, set[str]], depth: int) -> set[str]:
    """`known` has the types of the references so far. One that is being read states nothing."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return set()
    required = [_stated(schema)]
    for union in _UNIONS:
        options = [_types(option, root, known, depth + 1) for option in _listed(schema.get(union))]
        required.append(set().union(*options))
    required += [_types(each, root, known, depth + 1) for each in _listed(schema.get("allOf"))]
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in known:
            known[reference] = set()
            known[reference] = _types(resolve_reference(reference, root), root, known, depth + 1)
        required.append(known[reference])
    stated = [each | ({"integer"} if "number" in each else set()) for each in required if each]
    common = set.intersection(*stated) if stated else set()
    return (common or set().union(*stated)) - ({"integer"} if "number" in common else set())


def _parts(schema: Any, root: Any, followed: set[str]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and those that it refers to or combines. Each reference is followed once."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        yield from _parts(resolve_reference(reference, root), root, followed)
    for combined in ("allOf", *_UNIONS):
        for each in _listed(schema.get(combined)):
            yield from _parts(each, root, followed)


def _definitions(root: Any) -> Iterator[Mapping[str, Any]]:
    for key in ("$defs", "definitions"):
        definitions = root.get(key) if isinstance(root, Mapping) else None
        for each in definitions.values() if isinstance(definitions, Mapping) else ():
            if isinstance(each, Mapping):
                yield each


def _stated(schema: Mapping[str, Any]) -> set[str]:
    stated = schema.get("type")
    if stated is None:
        values = [*_listed(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
        return {json_type(value) for value in values}
    nullable = ["null"] if schema.get("nullable") is True else []  # OpenAPI 3.0
    return {each for each in [stated, *_listed(stated), *nullable] if isinstance(each, str)}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
