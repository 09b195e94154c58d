"""State: a domain's database in memory, copied on write.

A state is a few tables of frozen records over one shared world, plus a few plain values. Forking it is free, a snapshot
costs as much as was written, and `changes()` is all that a grader has to compare. Nothing is ever copied whole.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Generic, Self, TypeVar, get_args, get_origin

from pydantic import TypeAdapter

from understudy.records import Record

R = TypeVar("R", bound=Record)
Snapshot = tuple[dict[str, dict[str, Record | None]], dict[str, Any]]


class Table(MutableMapping[str, R], Generic[R]):
    """Rows by id: those of the world, under those written since. A row is replaced, never changed in place."""

    __slots__ = ("_world", "_written")

    def __init__(self, world: Mapping[str, R], written: dict[str, R | None] | None = None) -> None:
        self._world = world
        self._written: dict[str, R | None] = written or {}

    def __getitem__(self, key: str) -> R:
        row = self._written[key] if key in self._written else self._world[key]
        if row is None:
            raise KeyError(key)
        return row

    def __setitem__(self, key: str, row: R) -> None:
        self._written[key] = row

    def __delitem__(self, key: str) -> None:
        self[key]
        self._written[key] = None

    def __contains__(self, key: object) -> bool:
        return (self._written[key] is not None) if key in self._written else key in self._world  # type: ignore[index]

    def __iter__(self) -> Iterator[str]:
        yield from (key for key in self._world if self._written.get(key, key) is not None)
        yield from (key for key, row in self._written.items() if row is not None and key not in self._world)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def changes(self) -> dict[str, R | None]:
        """Rows that differ from the world's, None where a row was deleted. Writing back the old value is no change."""
        return {key: row for key, row in self._written.items() if self._world.get(key) != row}


class State:
    """Subclass it with annotations: `orders: Table[Order]` is a table, `agent: str = ""` a value with its default."""

    _rows: dict[str, type[Record]]
    _values: dict[str, Any]

    def __init_subclass__(cls) -> None:
        hints = cls.__annotations__
        cls._rows = {name: get_args(hint)[0] for name, hint in hints.items() if get_origin(hint) is Table}
        cls._values = {name: getattr(cls, name) for name in hints if name not in cls._rows and not name.startswith("_")}

    def __init__(self, **tables: Mapping[str, Record]) -> None:
        for name in self._rows:
            setattr(self, name, Table(tables.get(name, {})))

    def fork(self) -> Self:
        """An independent state over the same world, with what was written so far."""
        other = type(self).__new__(type(self))
        for name in self._rows:
            table = getattr(self, name)
            setattr(other, name, Table(table._world, dict(table._written)))
        for name in self._values:
            setattr(other, name, getattr(self, name))
        return other

    def snapshot(self) -> Snapshot:
        """What `restore` needs to undo all that is written from now on."""
        tables = {name: dict(getattr(self, name)._written) for name in self._rows}
        return tables, {name: getattr(self, name) for name in self._values}

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot of this state."""
        tables, values = snapshot
        for name, written in tables.items():
            getattr(self, name)._written = dict(written)
        for name, value in values.items():
            setattr(self, name, value)

    def wrote_since(self, snapshot: Snapshot) -> bool:
        """Whether any table was written since; values are not part of the database."""
        return any(getattr(self, name)._written != written for name, written in snapshot[0].items())

    def changes(self) -> dict[str, Any]:
        """Everything that differs from the untouched world: rows by table and id, and values."""
        tables = {name: getattr(self, name).changes() for name in self._rows}
        values = {name: getattr(self, name) for name, default in self._values.items() if getattr(self, name) != default}
        return {name: rows for name, rows in tables.items() if rows} | values

    def patch(self, setup: Mapping[str, Mapping[str, Any]]) -> None:
        """Apply `{table: {id: fields}}` as a JSON merge patch (RFC 7386); the rows are validated, and become the world."""
        for name, rows in setup.items():
            table, row_type = getattr(self, name), self._rows[name]
            patched = {key: _patched(table, row_type, key, fields) for key, fields in rows.items()}
            setattr(self, name, Table({**table._world, **patched}, table._written))

    def dump(self) -> dict[str, Any]:
        """All tables and values as JSON-compatible data; `load` is its inverse."""
        tables = {name: {key: row.model_dump(mode="json") for key, row in getattr(self, name).items()} for name in self._rows}
        return tables | {name: getattr(self, name) for name in self._values}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """A state whose world is `data`, validated."""
        state = cls(**{name: TypeAdapter(dict[str, row]).validate_python(data[name]) for name, row in cls._rows.items()})  # type: ignore[valid-type]
        for name in cls._values:
            setattr(state, name, data[name])
        return state


def _patched(table: Table[Any], row_type: type[Record], key: str, fields: Mapping[str, Any]) -> Record:
    before = table[key].model_dump(mode="json") if key in table else {}
    return row_type.model_validate(merge_patch(before, fields))


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: objects merge, null deletes a key, anything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
