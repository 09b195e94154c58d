"""State: the in-memory database of a domain, with copy-on-write tables.

A state has tables of frozen records, and plain values. The world is the initial rows of all tables. States
share the world instead of copying it. Forks and snapshots copy only the written rows, and a grader compares only
`changes()`.
"""

import inspect
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from copy import deepcopy
from typing import Any, Generic, Self, TypeVar, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from understudy.core.errors import TaskError, did_you_mean
from understudy.core.records import Record

R = TypeVar("R", bound=Record)
Snapshot = tuple[dict[str, dict[str, Record | None]], dict[str, Any]]


class Table(MutableMapping[str, R], Generic[R]):
    """Rows by id. A written row replaces the row of the world with the same id. Rows are frozen."""

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
        """Return ids and rows as of now; later writes do not change the view."""
        return self._rows().items()

    def values(self) -> ValuesView[R]:
        """Return the rows as of now; later writes do not change the view."""
        return self._rows().values()

    def _row(self, key: str) -> R | None:
        return self._written[key] if key in self._written else self._world.get(key)

    def _rows(self) -> dict[str, R]:
        rows: dict[str, R | None] = {**self._world, **self._written}
        return {key: row for key, row in rows.items() if row is not None}

    def changes(self) -> dict[str, R | None]:
        """Return the rows that differ from the world; None is a deleted row. An equal row is no change."""
        return {key: row for key, row in self._written.items() if self._world.get(key) != row}


class State:
    """Base of states. A subclass annotates tables (`orders: Table[Order]`) and plain values (`agent: str = ""`)."""

    _rows: dict[str, type[Record]]
    _values: dict[str, Any]

    def __init_subclass__(cls) -> None:
        hints: dict[str, Any] = inspect.get_annotations(cls, eval_str=True)
        cls._rows = {name: get_args(hint)[0] for name, hint in hints.items() if get_origin(hint) is Table}
        if problems := list(_find_problems(cls, hints)):
            raise TaskError("; ".join(problems))
        cls._values = {name: getattr(cls, name) for name in hints if name not in cls._rows and not name.startswith("_")}

    def __init__(self, **tables: Mapping[str, Record]) -> None:
        for name in sorted(tables.keys() - self._rows.keys()):
            raise TaskError(f"{type(self).__name__} has no table {did_you_mean(name, self._rows)}")
        for name in self._rows:
            setattr(self, name, Table(tables.get(name, {})))
        for name, default in self._values.items():
            setattr(self, name, _copy_value(name, default))

    def tables(self) -> dict[str, Table[Any]]:
        """Return the tables by name."""
        return {name: getattr(self, name) for name in self._rows}

    def fork(self) -> Self:
        """Return an independent state over the same world, with a copy of the writes so far."""
        other = type(self).__new__(type(self))
        for name in self._rows:
            table = getattr(self, name)
            setattr(other, name, Table(table._world, dict(table._written)))
        for name in self._values:
            setattr(other, name, _copy_value(name, getattr(self, name)))
        return other

    def snapshot(self) -> Snapshot:
        """Return a snapshot; `restore` uses it to undo later writes."""
        tables = {name: dict(getattr(self, name)._written) for name in self._rows}
        return tables, {name: _copy_value(name, getattr(self, name)) for name in self._values}

    def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot of this state."""
        tables, values = snapshot
        for name, written in tables.items():
            getattr(self, name)._written = dict(written)
        for name, value in values.items():
            setattr(self, name, _copy_value(name, value))

    def tables_modified_since(self, snapshot: Snapshot) -> bool:
        """Return whether any table was written since the snapshot. Values are not part of the database."""
        return any(getattr(self, name)._written != written for name, written in snapshot[0].items())

    def changes(self) -> dict[str, Any]:
        """Return the differences from the world: `{table: {id: row}}` (a deleted row is None) and `{name: value}`."""
        tables = {name: getattr(self, name).changes() for name in self._rows}
        values = {name: getattr(self, name) for name, default in self._values.items() if getattr(self, name) != default}
        return {name: rows for name, rows in tables.items() if rows} | values

    def patch(self, setup: Mapping[str, Mapping[str, Any]]) -> None:
        """Apply `{table: {id: fields}}` as JSON merge patches (RFC 7386) to the world.

        Raise `TaskError` for an unknown table and for fields that do not validate.
        """
        for name, rows in setup.items():
            if name not in self._rows:
                raise TaskError(f"there is no table {did_you_mean(name, self._rows)}")
            table, row_type = getattr(self, name), self._rows[name]
            patched = {key: _patched(name, table, row_type, key, fields) for key, fields in rows.items()}
            setattr(self, name, Table({**table._world, **patched}, table._written))

    def dump(self) -> dict[str, Any]:
        """Return all tables and values as JSON-compatible data; `load` is its inverse."""
        dumped = {name: getattr(self, name) for name in self._values}
        for name in self._rows:
            dumped[name] = {key: row.model_dump(mode="json") for key, row in getattr(self, name).items()}
        return dumped

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """Return a state whose world is `data` (see `dump`), validated."""
        tables = {name: _rows(row).validate_python(data[name]) for name, row in cls._rows.items()}
        state = cls(**tables)
        for name in cls._values:
            setattr(state, name, data[name])
        return state


def _copy_value(name: str, value: Any) -> Any:
    """Return a copy of a value of a state. Raise TaskError for an object that cannot be copied, such as a lock."""
    try:
        return deepcopy(value)
    except TypeError as e:
        raise TaskError(
            f"the state's value {name!r} cannot be copied ({e}), so a failed call cannot be undone; keep such an "
            "object outside of the state, such as in an attribute of the tools"
        ) from e


def _rows(row_type: type[Record]) -> TypeAdapter[dict[str, Record]]:
    return TypeAdapter(dict[str, row_type])  # type: ignore[valid-type]


def _find_problems(state: type[State], hints: Mapping[str, Any]) -> Iterator[str]:
    """Yield each table whose rows are no records, and each value without a default."""
    for name, hint in hints.items():
        rows: Any = state._rows.get(name)
        if isinstance(rows, type) and not issubclass(rows, Record):
            yield f"rows of {state.__name__}.{name} must be records: derive {rows.__name__} from understudy.Record"
        elif rows is None and not hasattr(state, name) and not name.startswith("_"):
            row = getattr((get_args(hint) or ("",))[-1], "__name__", "Row")
            yield (
                f"{state.__name__}.{name} is no table and has no default: write `{name}: Table[{row}]` for a table, "
                "or give the value a default"
            )


def _patched(name: str, table: Table[Any], row_type: type[Record], key: str, fields: Mapping[str, Any]) -> Record:
    before = table[key].model_dump(mode="json") if key in table else {}
    try:
        return row_type.model_validate(merge_patch(before, fields))
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        why = f"{where}: {first['msg']}"
        if first["type"] == "extra_forbidden" and where in fields:
            why = f"{row_type.__name__} has no field {did_you_mean(where, row_type.model_fields)}"
        raise TaskError(f"the row {key!r} of {name} cannot be set up: {why}") from e


def merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` with a JSON merge patch applied (RFC 7386): objects merge, null deletes, other values replace."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
