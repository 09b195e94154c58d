"""JSON schemas of tools: whether two accept the same arguments, and what is wrong with arguments."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from jsonschema.exceptions import ValidationError, best_match, relevance
from jsonschema.protocols import Validator

_ANNOTATIONS = frozenset({"title", "description", "examples", "$comment"})
_UNORDERED = frozenset({"required", "enum", "type", "anyOf", "oneOf", "allOf"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_BRANCHES = frozenset({"anyOf", "oneOf"})
_KINDS = frozenset({"type", "const", "enum"})
MAX_SHOWN = 80
"""Longest shown value of a schema, in characters."""
MAX_BRANCHES = 4
"""Most branches of an `anyOf` that an error names."""


def canonical_schema(schema: Any) -> Any:
    """Return a schema without annotations and without an order where order means nothing.

    Two schemas that differ only in these are equal afterwards.
    """
    if isinstance(schema, list):
        return [canonical_schema(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _canonical_value(key, value) for key, value in sorted(schema.items()) if key not in _ANNOTATIONS}


def schema_difference(then: Any, now: Any) -> str:
    """Describe the first difference of two schemas, such as `properties.amount.type was "integer", is "string"`.

    Return "" if they accept the same arguments.
    """
    path, before, after = _first_difference(canonical_schema(then), canonical_schema(now), ())
    return "" if before == after else f"{'.'.join(path) or 'schema'} was {_shown(before)}, is {_shown(after)}"


def schema_error(validator: Validator, arguments: Mapping[str, Any]) -> str:
    """Return what is wrong with arguments, "" if nothing is.

    If a value matches no branch of an `anyOf` or `oneOf`, the closest branch is named: one for values of this type,
    with the same fixed word in a field such as `kind`. If several are as close, all of them are named.
    """
    error = best_match(validator.iter_errors(arguments))
    while error is not None and error.parent is not None:
        error = error.parent  # `best_match` has chosen a branch
    return _described(error) if error is not None else ""


def _described(error: ValidationError) -> str:
    if error.validator not in _BRANCHES or not error.context:
        where = ".".join(map(str, error.absolute_path)) or "arguments"
        return f"{where}: {error.message[:300]}"
    branches: dict[int, list[ValidationError]] = {}
    for each in error.context:
        branches.setdefault(int(each.schema_path[0]), []).append(each)
    closest = min(map(_distance, branches.values()))
    shown = [_main_error(errors) for errors in branches.values() if _distance(errors) == closest][:MAX_BRANCHES]
    return " or ".join(dict.fromkeys(map(_described, shown)))


def _distance(errors: Iterable[ValidationError]) -> int:
    """Return how far a value is from a branch: 2 if it is of another type, 1 if a fixed word differs, else 0."""
    return max(2 if not error.path and error.validator in _KINDS else int(_is_word(error)) for error in errors)


def _main_error(errors: Iterable[ValidationError]) -> ValidationError:
    return max(errors, key=lambda error: (_is_word(error), relevance(error)))


def _is_word(error: ValidationError) -> bool:
    """Return whether a field of the value is not the one word that the branch allows."""
    is_word = error.validator == "const" or (error.validator == "enum" and len(error.validator_value) == 1)
    return is_word and len(error.path) == 1


def _canonical_value(key: str, value: Any) -> Any:
    if key in _NAMED and isinstance(value, Mapping):
        return {name: canonical_schema(item) for name, item in sorted(value.items())}
    if key in ("const", "default"):
        return value
    if key in _UNORDERED and isinstance(value, list):
        items: Iterable[Any] = value if key == "enum" else map(canonical_schema, value)
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    return canonical_schema(value)


def _first_difference(then: Any, now: Any, path: tuple[str, ...]) -> tuple[tuple[str, ...], Any, Any]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in [*then, *(key for key in now if key not in then)]:
            if then.get(key) != now.get(key):
                return _first_difference(then.get(key), now.get(key), (*path, str(key)))
    return path, then, now


def _shown(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
