"""Streams of data rows: an `Item` is a value with its location, a `RowError` a problem with its location."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import ValidationError

from understudy.core.errors import TaskError

T = TypeVar("T")

RowErrorKind = Literal[
    "unreadable",
    "malformed",
    "other domain",
    "no reward",
    "unknown tool",
    "invalid arguments",
    "gold refused",
    "bad setup",
    "too long",
    "gold fails",
    "does nothing",
    "hidden rows",
    "unknown fact",
    "guessable",
    "other difficulty",
    "too few reads",
    "fault",
    "no plan",
    "duplicate",
]
"""Why a row is rejected; reports count rows by kind."""


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
    kind: RowErrorKind = "malformed"

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.location, self.field, self.problem)))


def row_error_from_validation(location: str, error: ValidationError, prefix: str = "") -> RowError:
    """Return the first problem of a pydantic validation as a RowError. `prefix` is put before the field's path."""
    first: Any = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in (*filter(None, [prefix]), *first["loc"]))
    return RowError(location, field, first["msg"].removeprefix("Value error, "))


def items_or_raise(items: Iterable[Item[T] | RowError]) -> Iterator[Item[T]]:
    """Yield the items, and raise TaskError at the first RowError."""
    for item in items:
        if isinstance(item, RowError):
            raise TaskError(str(item))
        yield item
