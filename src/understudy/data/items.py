"""Item: a value and the place it came from; Bad: what is wrong at a place. Every step of this package streams them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import ValidationError

from understudy.errors import TaskError

T = TypeVar("T")

Kind = Literal[
    "unreadable",
    "malformed",
    "other domain",
    "unknown tool",
    "bad arguments",
    "gold refused",
    "bad setup",
    "too long",
    "gold fails",
    "does nothing",
    "hidden rows",
    "duplicate",
]
"""Why an item is no good; what is counted."""


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """A value, and where it is: "tasks.jsonl:3"."""

    where: str
    value: T


@dataclass(frozen=True, slots=True)
class Bad:
    """What is wrong with the item at a place."""

    where: str
    field: str
    """The item's field, with dots; "" stands for the whole of it."""
    problem: str
    kind: Kind = "malformed"

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.where, self.field, self.problem)))


def malformed(where: str, error: ValidationError, prefix: str = "") -> Bad:
    """The first thing that a record's validation complains of."""
    first: Any = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in (*filter(None, [prefix]), *first["loc"]))
    return Bad(where, field, first["msg"])


def strict(items: Iterable[Item[T] | Bad]) -> Iterator[Item[T]]:
    """The items; the first bad one is a `TaskError`."""
    for item in items:
        if isinstance(item, Bad):
            raise TaskError(str(item))
        yield item
