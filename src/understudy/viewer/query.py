"""What is asked of an index: a page of the episodes that are wanted, in an order, and how many there are of a kind."""

import re
import sqlite3
from array import array
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from understudy.errors import ConfigError, nearest
from understudy.viewer.index import Index

COLUMNS = ("domain", "family", "difficulty", "outcome", "stop", "fault")
"""Columns that episodes are filtered by; several values have commas between them, and any of them will do."""
MARKS = ("tool", "event")
"""What there may be any number of in an episode; it has to have all that are named."""
SHOWN = (*("step", "number", "task"), *COLUMNS, *("reward", "turns", "tokens", "seconds"))
"""What a row says of an episode; `tool` and `event`, which come last, are the names of each kind."""
SORTS = ("step", "task", "reward", "turns", "tokens", "seconds")
MOST = 500
"""Rows of a page."""
_BOUNDS = {"first": "step >= ?", "last": "step <= ?", "least": "reward >= ?", "most": "reward <= ?", "task": "task = ?"}
_WORDS = re.compile(r'(-?)(?:"([^"]*)"?|(\S+))')
Values = Mapping[str, str]
Clause = tuple[str, tuple[str, ...]]
"""Conditions in SQL, and the values of their places."""


def rows(index: Index, values: Values) -> dict[str, Any]:
    """A page of the episodes that the filters leave: from `offset`, at most `limit`, by `sort` (- is highest first)."""
    offset, limit = _natural(values, "offset", 0), min(_natural(values, "limit", 100), MOST)
    with index.open() as database:
        now = database.execute("select max(id), count(*) from episodes").fetchone()
        wanted = _wanted(index, now, _where(values), _order(values.get("sort") or "-step"))
        page = wanted[offset : offset + limit].tolist()
        among = f"in ({', '.join('?' * len(page))})"
        columns = f"select id, {', '.join(SHOWN)} from episodes where id {among}"
        found = {key: dict(zip(SHOWN, row, strict=True)) for key, *row in database.execute(columns, page)}
        for row in found.values():
            row.update({kind: [] for kind in MARKS})
        for key, kind, name in database.execute(f"select episode, kind, name from marks where episode {among}", page):
            found[key][kind].append(name)
    return {"total": len(wanted), "offset": offset, "rows": [found[key] for key in page if key in found]}


def facets(index: Index, values: Values) -> dict[str, Any]:
    """How many episodes the filters leave, how many of them succeed, and how many there are of each value of a field.

    A column's own filter is left out for its counts, so that another of its values can be chosen.
    """
    found: dict[str, list[tuple[str, int]]] = {}
    with index.open() as database:
        columns = f"id, step, {', '.join(COLUMNS)}"
        database.execute(f"create temp table kept ({columns.replace('id', 'id integer primary key', 1)})")
        _run(database, f"insert into kept select {columns} from episodes", _where(values))  # words are looked up once
        head = "select count(*), sum(outcome = 'success'), min(step), max(step) from kept"
        total, successes, first, last = database.execute(head).fetchone()
        for name in COLUMNS:
            table, where = ("episodes", _where(values, without=name)) if values.get(name) else ("kept", _where({}))
            found[name] = _run(database, f"select {name}, count(*) from {table}", where, f"group by {name}").fetchall()
        marks = "select name, count(*) from kept join marks on episode = id where kind = ? group by name"
        found |= {kind: database.execute(marks, (kind,)).fetchall() for kind in MARKS}
    counts = {
        name: sorted((pair for pair in pairs if pair[0]), key=lambda pair: -pair[1]) for name, pairs in found.items()
    }
    return {"total": total, "successes": successes or 0, "steps": [first, last], "fields": counts}


def _run(database: sqlite3.Connection, select: str, where: Clause, then: str = "") -> sqlite3.Cursor:
    return database.execute(f"{select} where {where[0]} {then}", where[1])


@lru_cache(maxsize=16)
def _wanted(index: Index, _: tuple[int, int], where: Clause, order: str) -> "array[int]":
    """The ids of all episodes that are wanted, in order; kept until the index changes, so that scrolling is free."""
    with index.open() as database:
        return array("q", (key for (key,) in _run(database, "select id from episodes", where, f"order by {order}")))


def _where(values: Values, without: str = "") -> Clause:
    """The filters as SQL. Names are of this module, and values are never a part of it."""
    clauses, given = ["1"], list[str]()
    for name in COLUMNS:
        if chosen := [value for value in values.get(name, "").split(",") if value and name != without]:
            clauses.append(f"{name} in ({', '.join('?' * len(chosen))})")
            given += chosen
    for kind in MARKS:
        for name in filter(None, values.get(kind, "").split(",")):
            clauses.append("id in (select episode from marks where kind = ? and name = ?)")
            given += [kind, name]
    for name, clause in _BOUNDS.items():
        if value := values.get(name):
            clauses.append(clause)
            given.append(value)
    for negated, phrase in _phrases(values.get("text", "")):
        clauses.append(f"id {'not ' if negated else ''}in (select rowid from texts where texts match ?)")
        given.append(phrase)
    return " and ".join(clauses), tuple(given)


def _order(sort: str) -> str:
    name, way = sort.removeprefix("-"), "desc" if sort.startswith("-") else "asc"
    if name not in SORTS:
        raise ConfigError(f"episodes are not sorted by {nearest(name, SORTS)}")
    return f"{name} {way}, step desc, number"


def _phrases(text: str) -> Iterator[tuple[bool, str]]:
    """The words and "quoted phrases" of a search, as FTS5 takes them; of a word its beginning is enough.

    True where one begins with a minus: what it is in is left out. What holds no letter and no digit finds nothing, and
    is ignored.
    """
    for minus, phrase, word in _WORDS.findall(text):
        if any(letter.isalnum() for letter in phrase or word):
            yield bool(minus), f'"{phrase}"' if phrase else '"{}"*'.format(word.replace('"', '""'))


def _natural(values: Values, name: str, default: int) -> int:
    text = values.get(name, "") or str(default)
    if not text.isdecimal():
        raise ConfigError(f"{name} is {text!r}; it has to be a whole number from 0")
    return int(text)
