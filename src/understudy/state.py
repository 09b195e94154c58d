"""State: a domain's database in memory, copied on write.

A state is a few tables of frozen records over one shared world, plus a few plain values. Forking it is free, a snapshot
costs as much as was written, and `changes()` is all that a grader has to compare. Nothing is ever copied whole.
"""

import inspect
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from typing import Any, Generic, Self, TypeVar, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from understudy.errors import TaskError, nearest
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
        row = self._row(key)
        if row is None:
            raise KeyError(key)
        return row

    def __setitem__(self, key: str, row: R) -> None:
        self._written[key] = row

    def __delitem__(self, key: str) -> None:
        self[key]
        self._written[key] = None

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._row(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())

    def items(self) -> ItemsView[str, R]:
        """Ids and rows; what is written meanwhile does not show."""
        return self._rows().items()

    def values(self) -> ValuesView[R]:
        """Rows; what is written meanwhile does not show."""
        return self._rows().values()

    def _row(self, key: str) -> R | None:
        return self._written[key] if key in self._written else self._world.get(key)

    def _rows(self) -> dict[str, R]:
        rows: dict[str, R | None] = {**self._world, **self._written}
        return {key: row for key, row in rows.items() if row is not None}

    def changes(self) -> dict[str, R | None]:
        """Rows that differ from the world's, None where a row was deleted. Writing back the old value is no change."""
        return {key: row for key, row in self._written.items() if self._world.get(key) != row}


class State:
    """Subclass it with annotations: `orders: Table[Order]` is a table, `agent: str = ""` a value with its default."""

    _rows: dict[str, type[Record]]
    _values: dict[str, Any]

    def __init_subclass__(cls) -> None:
        hints: dict[str, Any] = inspect.get_annotations(cls, eval_str=True)
        cls._rows = {name: get_args(hint)[0] for name, hint in hints.items() if get_origin(hint) is Table}
        cls._values = {name: getattr(cls, name) for name in hints if name not in cls._rows and not name.startswith("_")}

    def __init__(self, **tables: Mapping[str, Record]) -> None:
        for name in self._rows:
            setattr(self, name, Table(tables.get(name, {})))

    def tables(self) -> dict[str, Table[Any]]:
        """The tables by name."""
        return {name: getattr(self, name) for name in self._rows}

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
        """Apply `{table: {id: fields}}` as JSON merge patches (RFC 7386); the rows become the world."""
        for name, rows in setup.items():
            if name not in self._rows:
                raise TaskError(f"there is no table {nearest(name, self._rows)}")
            table, row_type = getattr(self, name), self._rows[name]
            patched = {key: _patched(table, row_type, key, fields) for key, fields in rows.items()}
            setattr(self, name, Table({**table._world, **patched}, table._written))

    def dump(self) -> dict[str, Any]:
        """All tables and values as JSON-compatible data; `load` is its inverse."""
        dumped = {name: getattr(self, name) for name in self._values}
        for name in self._rows:
            dumped[name] = {key: row.model_dump(mode="json") for key, row in getattr(self, name).items()}
        return dumped

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """A state whose world is `data`, validated."""
        tables = {name: _rows(row).validate_python(data[name]) for name, row in cls._rows.items()}
        state = cls(**tables)
        for name in cls._values:
            setattr(state, name, data[name])
        return state


def _rows(row_type: type[Record]) -> TypeAdapter[dict[str, Record]]:
    return TypeAdapter(dict[str, row_type])  # type: ignore[valid-type]


def _patched(table: Table[Any], row_type: type[Record], key: str, fields: Mapping[str, Any]) -> Record:
    before = table[key].model_dump(mode="json") if key in table else {}
    try:
        return row_type.model_validate(merge_patch(before, fields))
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        raise TaskError(f"{key!r} cannot be set up: {'.'.join(map(str, first['loc']))}: {first['msg']}") from e


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
