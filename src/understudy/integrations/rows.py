"""Forks of a database of plain Python objects that tools change in place, for next to nothing.

Each row is pickled by itself, once. A fork holds the pickles, and turns one into objects of its own when the row is
first read; so tools may change what they read, and only what was read has to be compared in the end.
"""

import pickle
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any

Canonical = Callable[[Any], str]
"""A text that two values share if and only if the benchmark holds them to be the same."""
Changes = dict[tuple[str, str], str | None]
"""What differs from the untouched database: (table, row) -> its canonical text, None where it was deleted."""
WHOLE = ""
"""Stands for the row where a table is not a mapping and is taken as one."""


class _Frozen(bytes):
    """A pickled row that nobody has read yet."""

    __slots__ = ()


class Rows(dict[str, Any]):
    """A table of a fork: a dict like any other to those who use it."""

    def __getitem__(self, key: str) -> Any:
        row = super().__getitem__(key)
        if type(row) is _Frozen:
            row = pickle.loads(row)
            super().__setitem__(key, row)
        return row

    def __iter__(self) -> Iterator[str]:  # overridden, so that dict(rows) and {**rows} read row by row
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """The row, or the default."""
        return self[key] if key in self else default  # noqa: SIM401

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """All rows."""
        self._thaw()
        return super().values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """All keys and rows."""
        self._thaw()
        return super().items()

    def pop(self, key: str, *default: Any) -> Any:
        """Take a row out."""
        if key in self:
            self[key]  # thaws it
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        """Take the last row out."""
        key = next(reversed(self))
        return key, self.pop(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The row; the default becomes one where there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> dict[str, Any]:
        """A plain dict of all rows."""
        return dict(self.items())

    def __eq__(self, other: object) -> bool:
        return dict(self.items()) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self.copy())

    def read(self) -> Iterator[tuple[str, Any]]:
        """The rows that somebody has read or written, alone."""
        return ((key, row) for key, row in super().items() if type(row) is not _Frozen)

    def _thaw(self) -> None:
        for key in self:
            self[key]


class Frozen:
    """A database of named tables. Those that are mappings from text are kept row by row, others as a whole."""

    def __init__(self, tables: Mapping[str, Any], canonical: Canonical) -> None:
        self._canonical = canonical
        self._tables = {name: _freeze(table) for name, table in tables.items()}
        self._texts: dict[_Frozen, str] = {}

    def fork(self) -> dict[str, Any]:
        """The tables, to be changed at will."""
        return {name: Rows(t) if isinstance(t, dict) else pickle.loads(t) for name, t in self._tables.items()}

    def changes(self, tables: Mapping[str, Any]) -> Changes:
        """How a fork differs from the database that it was forked from."""
        found: Changes = {}
        for name in self._tables.keys() | tables.keys():
            before, after = self._tables.get(name), tables.get(name)
            if isinstance(before, dict) and isinstance(after, Mapping):
                found |= {(name, key): text for key, text in self._changed_rows(before, after)}
            elif not isinstance(before, _Frozen) or self._differs(before, after):
                found[name, WHOLE] = self._canonical(after)
        return found

    def _changed_rows(
        self, before: Mapping[str, _Frozen], after: Mapping[str, Any]
    ) -> Iterator[tuple[str, str | None]]:
        for key, row in after.read() if isinstance(after, Rows) else after.items():
            if key not in before or self._differs(before[key], row):
                yield key, self._canonical(row)
        yield from ((key, None) for key in before.keys() - after.keys())

    def _differs(self, before: _Frozen, after: Any) -> bool:
        """Equal pickles are equal values; unequal ones may be (models hold sets), so that their texts decide."""
        if isinstance(after, dict | list) and pickle.dumps(after) == before:
            return False
        if before not in self._texts:
            self._texts[before] = self._canonical(pickle.loads(before))
        return self._canonical(after) != self._texts[before]


def _freeze(table: Any) -> dict[str, _Frozen] | _Frozen:
    if isinstance(table, Mapping) and all(isinstance(key, str) for key in table):
        return {key: _pickled(row) for key, row in table.items()}
    return _pickled(table)


def _pickled(value: Any) -> _Frozen:
    """The pickle of the value as it is after having been pickled once: what an untouched fork pickles to again."""
    return _Frozen(pickle.dumps(pickle.loads(pickle.dumps(value))))
