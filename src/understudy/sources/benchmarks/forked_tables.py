"""Copy-on-write forks of a database of plain Python objects that tools change in place.

Each row is pickled once. A fork holds the pickles and unpickles a row when it is first read. Tools may therefore change
what they read, and only the rows that were read are compared at the end.
"""

import pickle
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any

CanonicalText = Callable[[Any], str]
"""Returns a text that is the same for two values if and only if the benchmark treats them as equal."""
RowChanges = dict[tuple[str, str], str | None]
"""The differences from the original database: (table, row) -> canonical text, or None for a deleted row."""
WHOLE_TABLE = ""
"""The row key of a table that is not a mapping and is stored as one row."""


class _PickledRow(bytes):
    """A pickled row that has not been read yet."""

    __slots__ = ()


class LazyTable(dict[str, Any]):
    """A table of a fork. It behaves like a dict and unpickles rows when they are read."""

    def __getitem__(self, key: str) -> Any:
        row = super().__getitem__(key)
        if type(row) is _PickledRow:
            row = pickle.loads(row)
            super().__setitem__(key, row)
        return row

    def __iter__(self) -> Iterator[str]:  # overridden, so that dict(rows) and {**rows} read row by row
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """Return the row, or the default."""
        return self[key] if key in self else default  # noqa: SIM401

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """Return all rows."""
        self._thaw()
        return super().values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """Return all keys and rows."""
        self._thaw()
        return super().items()

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a row and return it."""
        if key in self:
            self[key]  # unpickles the row
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        """Remove the last row and return it."""
        key = next(reversed(self))
        return key, self.pop(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the row. If there is none, insert the default."""
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> dict[str, Any]:
        """Return a plain dict of all rows."""
        return dict(self.items())

    def __eq__(self, other: object) -> bool:
        return dict(self.items()) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self.copy())

    def loaded_rows(self) -> Iterator[tuple[str, Any]]:
        """Return only the rows that were read or written."""
        return ((key, row) for key, row in super().items() if type(row) is not _PickledRow)

    def _thaw(self) -> None:
        for key in self:
            self[key]


class FrozenTables:
    """A database of named tables. Tables with text keys are stored by row, others as one row."""

    def __init__(self, tables: Mapping[str, Any], canonical: CanonicalText) -> None:
        self._canonical = canonical
        self._tables = {name: _freeze(table) for name, table in tables.items()}
        self._texts: dict[_PickledRow, str] = {}

    def fork(self) -> dict[str, Any]:
        """Return a fork: tables that may be changed."""
        return {name: LazyTable(t) if isinstance(t, dict) else pickle.loads(t) for name, t in self._tables.items()}

    def changes(self, tables: Mapping[str, Any]) -> RowChanges:
        """Return how a fork differs from the original database."""
        found: RowChanges = {}
        for name in self._tables.keys() | tables.keys():
            before, after = self._tables.get(name), tables.get(name)
            if isinstance(before, dict) and isinstance(after, Mapping):
                found |= {(name, key): text for key, text in self._changed_rows(before, after)}
            elif not isinstance(before, _PickledRow) or self._differs(before, after):
                found[name, WHOLE_TABLE] = self._canonical(after)
        return found

    def _changed_rows(
        self, before: Mapping[str, _PickledRow], after: Mapping[str, Any]
    ) -> Iterator[tuple[str, str | None]]:
        for key, row in after.loaded_rows() if isinstance(after, LazyTable) else after.items():
            if key not in before or self._differs(before[key], row):
                yield key, self._canonical(row)
        yield from ((key, None) for key in before.keys() - after.keys())

    def _differs(self, before: _PickledRow, after: Any) -> bool:
        """Return whether a row changed. Equal pickles are equal values; otherwise the canonical texts decide,
        because equal models can have unequal pickles (they hold sets)."""
        if isinstance(after, dict | list) and pickle.dumps(after) == before:
            return False
        if before not in self._texts:
            self._texts[before] = self._canonical(pickle.loads(before))
        return self._canonical(after) != self._texts[before]


def _freeze(table: Any) -> dict[str, _PickledRow] | _PickledRow:
    if isinstance(table, Mapping) and all(isinstance(key, str) for key in table):
        return {key: _pickled(row) for key, row in table.items()}
    return _pickled(table)


def _pickled(value: Any) -> _PickledRow:
    """Pickle the value after one round trip, so that an unchanged fork gives the same bytes."""
    return _PickledRow(pickle.dumps(pickle.loads(pickle.dumps(value))))
