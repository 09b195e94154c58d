"""Queries of the episode index: sorted pages of the episodes that match filters, and counts by field."""

import json
import math
import re
import sqlite3
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from understudy.core.errors import ConfigError, did_you_mean
from understudy.runs.storage.annotations import Annotation, episode_item, read_annotations
from understudy.viewer.index import EpisodeIndex

FILTER_COLUMNS = ("domain", "family", "difficulty", "outcome", "cause", "stop", "fault")
"""Columns with one value per episode. A filter is a comma-separated list; an episode matches if it has any of the
values.
"""
MULTI_VALUE_COLUMNS = ("tool", "event")
"""Fields that can have several values per episode: the names of its tools and events. A filter is a comma-separated
list; an episode matches if it has all of them.
"""
TAG_FIELD, NOTED_FIELD = "tag", "noted"
"""Filters by annotation: all of a comma-separated list of tags, and `yes` for the episodes with a note."""
ROW_COLUMNS = ("step", "number", "task", *FILTER_COLUMNS, "reward", "turns", "tokens", "seconds")
"""Columns of a row. `query_rows` adds `tool` and `event`, each a list of names."""
SORT_COLUMNS = ("step", "task", "reward", "turns", "tokens", "seconds")
MAX_ROWS = 500
"""Largest number of rows in one page."""
_BOUNDS = {
    "min_step": "step >= ?",
    "max_step": "step <= ?",
    "min_reward": "reward >= ?",
    "max_reward": "reward <= ?",
}
_MAX_VALUES = 100
"""Largest number of values, words and phrases of all filters together; SQLite has limits of its own."""
_MAX_DIGITS = 15
"""Largest number of digits of a whole number; SQLite's have 64 bits."""


class QueryError(ConfigError):
    """A parameter of a query is invalid."""


_TRAINING_ITEM = re.compile(r"(\d{1,15})/(\d{1,15})")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
_WORDS = re.compile(r'(-?)(?:"([^"]*)"?|(\S+))')
RouteParams = Mapping[str, str]
SqlValue = str | float
SqlClause = tuple[str, tuple[SqlValue, ...]]
"""A condition in SQL, and the values of its placeholders."""


def query_rows(index: EpisodeIndex, values: RouteParams) -> dict[str, Any]:
    """Return one page of the episodes that match the filters: `total`, `offset` and `rows`. Each row
    also has its `tag`s and its `note`.

    `values` holds the filters, `offset`, `limit` (at most MAX_ROWS) and `sort`, a column; a leading minus sorts in
    descending order. Raise QueryError if a value is invalid.
    """
    offset, limit = _natural(values, "offset", 0), min(_natural(values, "limit", 100), MAX_ROWS)
    with index.open() as database:
        now = database.execute("select max(id), count(*), count(cause) from episodes").fetchone()
        notes = read_annotations(index.folder)
        wanted = _wanted(index, now, _where(values, notes), _order(values.get("sort") or "-step"))
        page = wanted[offset : offset + limit].tolist()
        among = f"in ({', '.join('?' * len(page))})"
        columns = f"select id, {', '.join(ROW_COLUMNS)} from episodes where id {among}"
        found = {key: dict(zip(ROW_COLUMNS, row, strict=True)) for key, *row in database.execute(columns, page)}
        for row in found.values():
            row.update({kind: [] for kind in MULTI_VALUE_COLUMNS})
        for key, kind, name in database.execute(f"select episode, kind, name from marks where episode {among}", page):
            found[key][kind].append(name)
    for row in found.values():
        own = notes.get(episode_item(str(row["step"]), row["number"]))
        row |= {TAG_FIELD: list(own.tags) if own else [], "note": own.note if own else ""}
    return {"total": len(wanted), "offset": offset, "rows": [found[key] for key in page if key in found]}


def query_facets(index: EpisodeIndex, values: RouteParams) -> dict[str, Any]:
    """Return counts of the matching episodes: `total`, `successes`, `steps` (first and last) and `fields`.

    `fields` has the values of each field with their counts, the most frequent first. The counts of a column in
    FILTER_COLUMNS ignore that column's own filter, so that the page can offer its other values.
    """
    found: dict[str, list[tuple[str, int]]] = {}
    notes = read_annotations(index.folder)
    with index.open() as database:
        columns = f"id, step, number, {', '.join(FILTER_COLUMNS)}"
        database.execute(f"create temp table selected ({columns.replace('id', 'id integer primary key', 1)})")
        _run(
            database, f"insert into selected select {columns} from episodes", _where(values, notes)
        )  # the text search runs only once
        head = "select count(*), sum(outcome = 'success'), min(step), max(step) from selected"
        total, successes, first, last = database.execute(head).fetchone()
        for name in FILTER_COLUMNS:
            table, where = ("episodes", _where(values, notes, name)) if values.get(name) else ("selected", ("1", ()))
            found[name] = _run(database, f"select {name}, count(*) from {table}", where, f"group by {name}").fetchall()
        marks = "select name, count(*) from selected join marks on episode = id where kind = ? group by name"
        found |= {kind: database.execute(marks, (kind,)).fetchall() for kind in MULTI_VALUE_COLUMNS}
        found |= _count_annotations(database, notes)
    counts = {
        name: sorted((pair for pair in pairs if pair[0]), key=lambda pair: -pair[1]) for name, pairs in found.items()
    }
    return {"total": total, "successes": successes or 0, "steps": [first, last], "fields": counts}


def _count_annotations(database: sqlite3.Connection, notes: Mapping[str, Annotation]) -> dict[str, Any]:
    """Return the counts of tags and notes among the episodes in the table `selected`."""
    clause, places = _among_places(_places(notes))
    chosen = database.execute(f"select step, number from selected where {clause}", places).fetchall()
    shown = [notes[episode_item(str(step), number)] for step, number in chosen]
    num_noted = sum(bool(each.note) for each in shown)
    tags = Counter(tag for each in shown for tag in each.tags)
    return {TAG_FIELD: [*tags.items()], NOTED_FIELD: [("yes", num_noted)] if num_noted else []}


def _places(notes: Mapping[str, Annotation]) -> list[tuple[int, int]]:
    """Return the steps and numbers of the training episodes with annotations."""
    matches = (_TRAINING_ITEM.fullmatch(item) for item in notes)
    return [(int(match[1]), int(match[2])) for match in matches if match]


def _among_places(places: Sequence[tuple[int, int]]) -> tuple[str, tuple[str, ...]]:
    """Return an SQL condition: the episode is one of these. They are passed as one JSON value."""
    clause = "(step, number) in (select json_extract(value, '$[0]'), json_extract(value, '$[1]') from json_each(?))"
    return clause, (json.dumps(places),)


def _run(database: sqlite3.Connection, select: str, where: SqlClause, then: str = "") -> sqlite3.Cursor:
    return database.execute(f"{select} where {where[0]} {then}", where[1])


@lru_cache(maxsize=16)
def _wanted(index: EpisodeIndex, _: tuple[int, int, int], where: SqlClause, order: str) -> "array[int]":
    """Return the ids of all matching episodes, in order.

    The result is cached until the last id or the number of indexed or explained episodes changes, so scrolling runs no
    new query.
    """
    with index.open() as database:
        return array("q", (key for (key,) in _run(database, "select id from episodes", where, f"order by {order}")))


def _where(values: RouteParams, notes: Mapping[str, Annotation], without: str = "") -> SqlClause:
    """Return the filters as SQL. Column names come from this module; values are always placeholders.

    Raise QueryError if a bound is not a number, a filter contains a control character, or there are too many.
    """
    clauses, given = ["1"], list[SqlValue]()
    for name, value in values.items():
        if _CONTROL.search(value):
            raise QueryError(f"{name} is {value[:40]!r}; it must not contain control characters")
    for name in FILTER_COLUMNS:
        if chosen := [value for value in values.get(name, "").split(",") if value and name != without]:
            clauses.append(f"{name} in ({', '.join('?' * len(chosen))})")
            given += chosen
    for kind in MULTI_VALUE_COLUMNS:
        for name in filter(None, values.get(kind, "").split(",")):
            clauses.append("id in (select episode from marks where kind = ? and name = ?)")
            given += [kind, name]
    for name, clause in _BOUNDS.items():
        if values.get(name):
            clauses.append(clause)
            given.append(_number(name, values[name]))
    if values.get("task"):
        clauses.append("task = ?")
        given.append(values["task"])
    wanted = {tag for tag in values.get(TAG_FIELD, "").split(",") if tag}
    noted = values.get(NOTED_FIELD) == "yes"
    if wanted or noted:
        fitting = {item: each for item, each in notes.items() if wanted <= {*each.tags} and (each.note or not noted)}
        clause, places = _among_places(_places(fitting))
        clauses.append(clause)
        given += places
    for negated, phrase in _phrases(values.get("text", "")):
        clauses.append(f"id {'not ' if negated else ''}in (select rowid from texts where texts match ?)")
        given.append(phrase)
    if len(given) > _MAX_VALUES:
        raise QueryError(f"the filters have {len(given)} values and words; at most {_MAX_VALUES} are allowed")
    return " and ".join(clauses), tuple(given)


def _order(sort: str) -> str:
    name, way = sort.removeprefix("-"), "desc" if sort.startswith("-") else "asc"
    if name not in SORT_COLUMNS:
        raise QueryError(f"sort is {did_you_mean(name, SORT_COLUMNS)}")
    return f"{name} {way}, step desc, number"


def _phrases(text: str) -> Iterator[tuple[bool, str]]:
    """Yield (negated, FTS5 query) for each word and "quoted phrase" of a search.

    A word matches by its prefix. A leading minus excludes the episodes that contain the word or phrase. A word or
    phrase without a letter or digit is ignored.
    """
    for minus, phrase, word in _WORDS.findall(text):
        if any(letter.isalnum() for letter in phrase or word):
            yield bool(minus), f'"{phrase}"' if phrase else '"{}"*'.format(word.replace('"', '""'))


def _natural(values: RouteParams, name: str, default: int) -> int:
    text = values.get(name, "") or str(default)
    if not (text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise QueryError(f"{name} is {text[:40]!r}; it must be a whole number, 0 or larger")
    return int(text)


def _number(name: str, text: str) -> float:
    """Return a bound as a number. Raise QueryError if it is none, or not finite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise QueryError(f"{name} is {text[:40]!r}; it must be a number")
    return value
