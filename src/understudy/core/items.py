"""Streams of data rows: an `Item` is a value with its location, a `RowError` a problem with its location."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from understudy.core.errors import TaskError
from understudy.core.foreign_names import explain_field
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import Fact, Scenario, SuccessCheck, Task, UserAction, UserGoal

T = TypeVar("T")

_TASK_RECORDS: Mapping[str, type[Record]] = {
    each.__name__: each for each in (Task, Scenario, UserGoal, UserAction, Fact, SuccessCheck, Message, ToolCall)
}
_SHOWN_KEYS, _SHOWN_CHARACTERS, _SHOWN_VALUE = 8, 30, 80


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """A value and its location, such as "tasks.jsonl:3"."""

    location: str
    value: T


@dataclass(frozen=True, slots=True)
class RowError:
    """A problem with the row at `location`."""

    location: str
    field: str
    """The field of the row, as a dotted path; "" means the whole row."""
    problem: str
    kind: str = "malformed"
    """Why the row is rejected; reports count rows by kind."""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.location, self.field, self.problem)))


class InvalidField(Exception):
    """A field of a row is wrong: the field as a dotted path, "" for the whole row, and the problem."""

    def __init__(self, field: str, problem: str, kind: str = "malformed") -> None:
        super().__init__(": ".join(filter(None, (field, problem))))
        self.field, self.problem, self.kind = field, problem, kind


def row_error_from_validation(location: str, error: ValidationError, prefix: str = "") -> RowError:
    """Return the first problem of a pydantic validation as a RowError. `prefix` is put before the field's path."""
    field, problem = describe_validation(error)
    return RowError(location, ".".join(filter(None, (prefix, field))), problem)


def describe_validation(error: ValidationError, model: type[BaseModel] | None = None) -> tuple[str, str]:
    """Return the field and the problem of the first error of a pydantic validation, in one line.

    `model` is the class that was made, if it is not one of the parts of tasks.
    """
    errors: Sequence[Any] = error.errors(include_url=False)
    first = errors[0]
    if first["type"] == "missing":  # a key of another name is probably the missing one
        beside = [each for each in errors if each["loc"][:-1] == first["loc"][:-1]]
        first = next((each for each in beside if each["type"] == "extra_forbidden"), first)
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return field, "it is missing"
    if first["type"] == "extra_forbidden":
        owner = _find_owner(model or _TASK_RECORDS.get(error.title), first["loc"][:-1])
        return field, f"this key is unknown; {_explain_unknown(owner, str(first['loc'][-1]))}"
    if first["type"] == "frozen_instance":
        return field, f"records are frozen; write a changed copy, as in self._state.TABLE[key] = row.replace({field}=…)"
    value, text = first["input"], first["msg"].removeprefix("Value error, ")
    if first["type"] == "string_too_short":
        text = "it is empty; give it a text"
    if text.startswith("Input should be"):
        needed = (
            text.removeprefix("Input should be")
            .replace("valid tuple", "list")
            .replace("a valid dictionary", "an object")
        )
        text = f"it is {value!r:.{_SHOWN_VALUE}}; it must be{needed}"
    return field, text


def _find_owner(model: type[BaseModel] | None, path: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the class of the record at a path in `model`, or None if it is unknown."""
    for part in path:
        if model is not None and isinstance(part, str):
            field = model.model_fields.get(part)
            kinds = _list_types(field.annotation) if field else iter(())
            model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
    return model


def _list_types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _list_types(inner)


def _explain_unknown(owner: type[BaseModel] | None, name: str) -> str:
    """Return what to do about a key that the record `owner` does not have."""
    if owner is None:
        return "remove it"
    remedy = explain_field(owner.__name__, name, owner.model_fields)
    if not remedy.startswith("allowed"):
        return remedy
    others = [kind for kind, each in _TASK_RECORDS.items() if name in each.model_fields]
    if others and owner.__name__ in _TASK_RECORDS:
        return f"it is a field of {' and '.join(others)}"
    return f"remove it; {remedy}"


def describe_row(value: Any) -> str:
    """Return the keys of a row and the types of their values, shortened. No value of a row is shown."""
    if not isinstance(value, dict):
        return _type_name(value)
    shown = [f"{_shorten(key)}: {_type_name(each)}" for key, each in list(value.items())[:_SHOWN_KEYS]]
    further = [f"{len(value) - _SHOWN_KEYS} more"] if len(value) > _SHOWN_KEYS else []
    return f"{{{', '.join(shown + further)}}}"


def _shorten(key: Any) -> str:
    text = json.dumps(str(key), ensure_ascii=False)[1:-1]
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _type_name(value: Any) -> str:
    if isinstance(value, list):
        return f"list of {_type_name(value[0])}" if value and not isinstance(value[0], list) else "list"
    names = ((bool, "boolean"), (str, "string"), (int | float, "number"), (dict, "object"), (type(None), "null"))
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)


def items_or_raise(items: Iterable[Item[T] | RowError]) -> Iterator[Item[T]]:
    """Yield the items, and raise TaskError at the first RowError."""
    for item in items:
        if isinstance(item, RowError):
            raise TaskError(str(item))
        yield item
