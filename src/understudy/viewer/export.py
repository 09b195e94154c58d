"""The page as one HTML file that opens offline: it holds the answers that a server would give.

What would make it too large is left out, and the file says so: of many episodes it holds the newest, of those of an
evaluation first the ones that failed, and of many pairs of evaluations those of the last ones.
"""

import gzip
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from understudy.assess.stored import stored_names
from understudy.errors import ConfigError, RolloutError, TaskError
from understudy.failures.find import failed
from understudy.kept import EPISODES as KEPT
from understudy.run import OF_TESTS
from understudy.viewer import query, site
from understudy.viewer.answers import ANSWERS, as_json, index_of
from understudy.viewer.episodes import EVALUATION, shelf_of
from understudy.viewer.evaluation import evaluations
from understudy.viewer.index import Index
from understudy.viewer.library import Library

EPISODES = 1000
"""How many episodes a file holds, of all runs and evaluations together."""
PAIRS = 300
"""How many comparisons of two evaluations a file holds."""
LARGEST = 96 << 20
"""Bytes of answers, before they are packed, from which on no further episode is taken in."""
_PLACE = re.compile(r"{(\w+)}")
_EPISODE = ["key", "step", "number"]
_SELECTED = {"/api/runs/{run}/episodes", "/api/runs/{run}/facets"}
"""What the page works out for itself from what it holds."""
_COMPARISON = "/api/comparison/{new}/{new_row}/{old}/{old_row}"
_FAILURES = "/api/failures/{key}/{step}"
Values = Mapping[str, str]


def export(library: Library, path: Path, most: int = EPISODES) -> list[str]:
    """Write the page to a file; a sentence for each thing that it leaves out."""
    held = _Held(library)
    takings = list(held.takings())
    for count in range(len(takings), 0, -1):
        most -= takings[-count](most // count)
    joined = b",".join(json.dumps(where).encode() + b":" + answer for where, answer in held.told.items())
    data = b'{"answers":{%b},"rows":%b,"left_out":%b}' % (joined, as_json(held.rows), as_json(held.left_out))
    try:
        path.write_text(site.whole(gzip.compress(data)), encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e.strerror or e}") from e
    return held.left_out


def answers(library: Library) -> dict[str, bytes]:
    """The answers that belong to no single episode, by their paths, as JSON."""
    runs, evaluations = library.runs(), library.evaluations()
    asked: dict[str, list[dict[str, str]]] = {
        "run": [{"run": key} for key in runs],
        "key": [{"key": key} for key in (*evaluations, *runs)],
        "": [{}],
    }
    patterns = {pattern: asked.get(",".join(_PLACE.findall(pattern)), []) for pattern in ANSWERS}
    found = (_told(library, pattern, each) for pattern in patterns.keys() - _SELECTED for each in patterns[pattern])
    return dict(sorted(found))


class _Held:
    """What a file will hold, and what it leaves out."""

    def __init__(self, library: Library) -> None:
        self.told = answers(library)
        self.rows: dict[str, list[Any]] = {}
        self.left_out: list[str] = []
        self._library = library
        self._size = sum(map(len, self.told.values()))
        self._compare()

    def takings(self) -> Iterator[Callable[[int], int]]:
        """What takes in episodes, so many at most: one each of a run, an evaluation, and a run's last evaluation."""
        runs, evaluations = self._library.runs(), self._library.evaluations()
        yield from (partial(self._take_run, key) for key in runs)
        yield from (
            partial(self._take_stored, key, EVALUATION) for key in evaluations if (evaluations[key] / KEPT).is_file()
        )
        for key, path in runs.items():
            names = [name for name in stored_names(path) if not name.isdecimal()]
            last = {name.endswith(OF_TESTS): name for name in reversed(names)}
            if len(last) < len(names):
                self.left_out.append(
                    f"{key}: of {len(names)} evaluations this file holds episodes of the last one only"
                )
            yield from (partial(self._take_stored, key, name) for name in last.values())

    def _compare(self) -> None:
        """Take in comparisons, those of the last evaluations first."""
        pairs = list(_pairs(self._library))
        for pair in pairs[:PAIRS]:
            values = dict(zip(_PLACE.findall(_COMPARISON), pair, strict=True))
            self._take([_told(self._library, _COMPARISON, values)])
        if len(pairs) > PAIRS:
            kept = f"{PAIRS}, those of the last evaluations"
            self.left_out.append(f"of {len(pairs)} comparisons of two evaluations this file holds {kept}")

    def _take_run(self, key: str, most: int) -> int:
        """Take in the newest episodes of a run's training."""
        index = index_of(self._library.run(key))
        index.refresh()
        rows = self.rows[key] = []
        for row in _rows(index, most):
            if not self._take_episode(key, str(row["step"]), row["number"]):
                break
            rows.append(row)
        for step in dict.fromkeys(row["step"] for row in rows):
            self._take([_told(self._library, _FAILURES, {"key": key, "step": str(step)})])
        total = query.rows(index, {"limit": "0"})["total"]
        if len(rows) < total:
            self.left_out.append(f"{key}: of {total} episodes this file holds {len(rows)}, the newest")
        return len(rows)

    def _take_stored(self, key: str, step: str, most: int) -> int:
        """Take in the episodes of an evaluation, those that failed before the others."""
        values = {"key": key, "step": step}
        try:
            episodes = shelf_of(self._library, values).stored.episodes
        except ConfigError as e:
            self.left_out.append(f"{key}: {e}")
            return 0
        wanted = sorted(episodes, key=lambda number: not failed(episodes[number]))[:most]
        taken = len(list(itertools.takewhile(lambda number: self._take_episode(key, step, number), wanted)))
        if step != EVALUATION:  # whose failures are in what is told of it
            self._take([_told(self._library, _FAILURES, values)])
        if taken < len(episodes):
            of = "" if step == EVALUATION else f" of {step}"
            self.left_out.append(
                f"{key}: of {len(episodes)} episodes{of} this file holds {taken}, first those that failed"
            )
        return taken

    def _take_episode(self, key: str, step: str, number: int) -> bool:
        values = {"key": key, "step": step, "number": str(number)}
        patterns = [pattern for pattern in ANSWERS if _PLACE.findall(pattern) == _EPISODE]
        return self._take([_told(self._library, pattern, values) for pattern in patterns])

    def _take(self, found: Sequence[tuple[str, bytes]]) -> bool:
        """Take in answers, all or none; whether there was room for them."""
        told = dict(found)
        self._size += sum(map(len, told.values()))
        if self._size <= LARGEST:
            self.told.update(told)
        return self._size <= LARGEST


def _pairs(library: Library) -> list[tuple[str, str, str, str]]:
    """Every two agents that were evaluated, either way (key, row, key, row); the last of their evaluations first."""
    agents = [
        (each["key"], str(place), -place)
        for each in evaluations(library, {})
        for place, row in enumerate(each["rows"])
        if row["kind"] == "agent"
    ]
    last = {key: age for key, _, age in agents}
    pairs = itertools.permutations(agents, 2)
    ordered = sorted(pairs, key=lambda pair: sum(age - last[key] for key, _, age in pair))
    return [(new[0], new[1], old[0], old[1]) for new, old in ordered]


def _rows(index: Index, most: int) -> Iterator[Any]:
    for offset in range(0, most, query.MOST):
        limit = min(query.MOST, most - offset)
        yield from query.rows(index, {"offset": str(offset), "limit": str(limit)})["rows"]


def _told(library: Library, pattern: str, values: Values) -> tuple[str, bytes]:
    """A path and its answer; where there is none, why."""
    try:
        answer = as_json(ANSWERS[pattern](library, values))
    except (ConfigError, TaskError, RolloutError) as e:
        answer = as_json({"not_told": str(e)})
    return pattern.format(**{name: quote(value, safe="!'()*~") for name, value in values.items()}), answer
