"""Streams of data rows: an `Item` is a value with its location, a `RowError` a problem with its location."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from understudy.core.errors import TaskError
from understudy.core.tasks import Scenario, Task, UserAction, UserGoal

T = TypeVar("T")

_TASK_RECORDS = (Task, Scenario, UserGoal, UserAction)
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


def describe_validation(error: ValidationError) -> tuple[str, str]:
    """Return the field and the problem of the first error of a pydantic validation, in one line."""
    first: Any = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return field, "it is missing"
    if first["type"] == "extra_forbidden":
        owners = [each.__name__ for each in _TASK_RECORDS if field in each.model_fields]
        if owners and error.title in {each.__name__ for each in _TASK_RECORDS}:
            return field, f"this key is unknown; it is a field of {' and '.join(owners)}"
        return field, "this key is unknown; remove it"
    if first["type"] == "frozen_instance":
        return field, f"records are frozen; write a changed copy, as in self._state.TABLE[key] = row.replace({field}=…)"
    value, text = first["input"], first["msg"].removeprefix("Value error, ")
    if text.startswith("Input should be"):
        needed = (
            text.removeprefix("Input should be")
            .replace("valid tuple", "list")
            .replace("a valid dictionary", "an object")
        )
        text = f"it is {value!r:.{_SHOWN_VALUE}}; it must be{needed}"
    return field, text


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
