"""Differences between two versions of a domain's database, one `StateEdit` per path.

A version is the result of `State.changes()`, so the cost depends on the rows written and not on the database size.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from understudy.core.records import Record
from understudy.envs.state import State

StateChanges = Mapping[str, Any]
_MISSING = object()


class StateEdit(Record):
    """One value that differs. List items are matched by their `id` if every item has a unique one, else by position."""

    path: tuple[str, ...]
    """Table, row id, field and so on; for a plain value of the state, only its name."""
    kind: Literal["set", "added", "removed"]
    before: Any = None
    after: Any = None


def diff_states(world: State, before: StateChanges, after: StateChanges) -> tuple[StateEdit, ...]:
    """Return the edits between two versions over the same `world`, sorted by table or value name, then row id."""
    found: list[StateEdit] = []
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
    return _MISSING if row is None else _plain(row)


def _plain(value: Any) -> Any:
    return to_jsonable_python(value)


def _differences(path: tuple[str, ...], before: Any, after: Any) -> Iterator[StateEdit]:
    if before is _MISSING and after is _MISSING:
        return
    if before is _MISSING:
        yield StateEdit(path=path, kind="added", after=after)
    elif after is _MISSING:
        yield StateEdit(path=path, kind="removed", before=before)
    elif (old := _members(before)) is not None and (new := _members(after)) is not None:
        keys = [*old, *(key for key in new if key not in old)]
        found: list[StateEdit] = []
        for key in keys:
            found += _differences((*path, key), old.get(key, _MISSING), new.get(key, _MISSING))
        if not found and before != after:  # only the order of list items differs
            found = [StateEdit(path=path, kind="set", before=before, after=after)]
        yield from found
    elif before != after:
        yield StateEdit(path=path, kind="set", before=before, after=after)


def _members(value: Any) -> dict[str, Any] | None:
    """Return the members of an object or list by name, or None for other values."""
    if isinstance(value, dict):
        return {str(key): member for key, member in value.items()}
    if not isinstance(value, list):
        return None
    names = [str(item["id"]) for item in value if isinstance(item, dict) and "id" in item]
    has_unique_ids = len(names) == len(value) == len(set(names))
    if not has_unique_ids:
        names = [str(index) for index in range(len(value))]
    return dict(zip(names, value, strict=True))
