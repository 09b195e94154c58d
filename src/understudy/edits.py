"""Edits: what is different between two moments of a domain's database, path by path.

A moment is what `State.changes()` said then: only what differs from the world that the episode began with, so that a
database of any size is compared by the few rows that were written.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from understudy.records import Record
from understudy.state import State

Changes = Mapping[str, Any]
_NOTHING = object()


class Edit(Record):
    """One value that is different. Rows of a list that have ids are told apart by them, others by their place."""

    path: tuple[str, ...]
    """Table, id, field and so on; of a value beside the tables its name alone."""
    kind: Literal["set", "added", "removed"]
    before: Any = None
    after: Any = None


def edits(world: State, before: Changes, after: Changes) -> tuple[Edit, ...]:
    """What was edited between two moments of states over the same `world`, in order of their paths."""
    found: list[Edit] = []
    for name in sorted(before.keys() | after.keys()):
        if name not in world.tables():
            default = getattr(world, name)
            found += _differences((name,), _plain(before.get(name, default)), _plain(after.get(name, default)))
            continue
        old, new = before.get(name, {}), after.get(name, {})
        for key in sorted(old.keys() | new.keys()):
            found += _differences((name, key), _row(world, name, key, old), _row(world, name, key, new))
    return tuple(found)


def _row(world: State, table: str, key: str, changed: Mapping[str, Any]) -> Any:
    row = changed[key] if key in changed else world.tables()[table].get(key)
    return _NOTHING if row is None else _plain(row)


def _plain(value: Any) -> Any:
    return to_jsonable_python(value)


def _differences(path: tuple[str, ...], before: Any, after: Any) -> Iterator[Edit]:
    if before is _NOTHING and after is _NOTHING:
        return
    if before is _NOTHING:
        yield Edit(path=path, kind="added", after=after)
    elif after is _NOTHING:
        yield Edit(path=path, kind="removed", before=before)
    elif (old := _members(before)) is not None and (new := _members(after)) is not None:
        keys = [*old, *(key for key in new if key not in old)]
        found = [e for key in keys for e in _differences((*path, key), old.get(key, _NOTHING), new.get(key, _NOTHING))]
        if not found and before != after:  # the same rows in another order
            found = [Edit(path=path, kind="set", before=before, after=after)]
        yield from found
    elif before != after:
        yield Edit(path=path, kind="set", before=before, after=after)


def _members(value: Any) -> dict[str, Any] | None:
    """What an object or a list holds, by name; None for anything else."""
    if isinstance(value, dict):
        return {str(key): member for key, member in value.items()}
    if not isinstance(value, list):
        return None
    names = [str(item["id"]) for item in value if isinstance(item, dict) and "id" in item]
    if len(names) < len(value) or len(set(names)) < len(names):
        names = [str(place) for place in range(len(value))]
    return dict(zip(names, value, strict=True))
