"""The page as one HTML file that opens offline: it holds the answers that a server would give.

What would make it too large is left out, and the file says so: of many episodes it holds the newest.
"""

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from understudy.errors import ConfigError
from understudy.viewer import query, site
from understudy.viewer.answers import ANSWERS, as_json, index_of
from understudy.viewer.index import Index
from understudy.viewer.library import Library

EPISODES = 1000
"""How many episodes a file holds, of all runs together."""
LARGEST = 96 << 20
"""Bytes of answers, before they are packed, from which on no further episode is taken in."""
_PLACE = re.compile(r"{(\w+)}")
_EPISODE = ["key", "step", "number"]
_NOT_HELD = {
    "/api/runs/{run}/episodes",  # the page selects itself among what it holds
    "/api/runs/{run}/facets",
    "/api/episode/{key}/{step}/{number}/readings",  # long, and of use for few
}
Values = Mapping[str, str]


def export(library: Library, path: Path, most: int = EPISODES) -> list[str]:
    """Write the page to a file; a sentence for each thing that it leaves out."""
    told, left_out = answers(library), list[str]()
    rows: dict[str, list[Any]] = {}
    runs = library.runs()
    for key in runs:
        rows[key], total = _newest(library, key, told, most // len(runs))
        if len(rows[key]) < total:
            left_out.append(f"{key}: of {total} episodes this file holds {len(rows[key])}, the newest")
    joined = b",".join(json.dumps(where).encode() + b":" + answer for where, answer in told.items())
    data = b'{"answers":{%b},"rows":%b,"left_out":%b}' % (joined, as_json(rows), as_json(left_out))
    try:
        path.write_text(site.whole(gzip.compress(data)), encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e.strerror or e}") from e
    return left_out


def answers(library: Library) -> dict[str, bytes]:
    """The answers that belong to no single episode, by their paths, as JSON."""
    runs, evaluations = library.runs(), library.evaluations()
    asked: dict[str, list[dict[str, str]]] = {
        "run": [{"run": key} for key in runs],
        "key": [{"key": key} for key in (*evaluations, *runs)],
        "": [{}],
    }
    patterns = {pattern: asked.get(",".join(_PLACE.findall(pattern)), []) for pattern in ANSWERS}
    found = (_told(library, pattern, each) for pattern in patterns.keys() - _NOT_HELD for each in patterns[pattern])
    return dict(sorted(found))


def _newest(library: Library, key: str, told: dict[str, bytes], most: int) -> tuple[list[Any], int]:
    """Add what is told of a run's newest episodes; their rows, and how many episodes there are."""
    index = index_of(library.run(key))
    index.refresh()
    kept, size = list[Any](), sum(map(len, told.values()))
    patterns = [p for p in ANSWERS if _PLACE.findall(p) == _EPISODE and p not in _NOT_HELD]
    for row in _rows(index, most):
        values = {"key": key, "step": str(row["step"]), "number": str(row["number"])}
        found = dict(_told(library, pattern, values) for pattern in patterns)
        size += sum(map(len, found.values()))
        if size > LARGEST:
            break
        kept.append(row)
        told.update(found)
    return kept, query.rows(index, {"limit": "0"})["total"]


def _rows(index: Index, most: int) -> Iterator[Any]:
    for offset in range(0, most, query.MOST):
        limit = min(query.MOST, most - offset)
        yield from query.rows(index, {"offset": str(offset), "limit": str(limit)})["rows"]


def _told(library: Library, pattern: str, values: Values) -> tuple[str, bytes]:
    """A path and its answer; where there is none, why."""
    try:
        answer = as_json(ANSWERS[pattern](library, values))
    except ConfigError as e:
        answer = as_json({"not_told": str(e)})
    return pattern.format(**{name: quote(value, safe="!'()*~") for name, value in values.items()}), answer
