"""The page as one HTML file that works offline. The file contains the answers that a server would give.

Limits keep the file small, and the file lists what they exclude. It includes the newest training episodes of a run,
the failed episodes of an evaluation before the others, and the comparisons of the latest evaluations.
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

from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.files import write_text
from understudy.evaluation.failures.explain import is_failed
from understudy.runs.run import list_run_evaluations
from understudy.runs.storage.episode_store import EPISODES_FILE, has_progress
from understudy.viewer import query, site
from understudy.viewer.api import ROUTES, encode_json, open_index
from understudy.viewer.episodes.episode_api import STANDALONE_EVAL_STEP, episode_source_of
from understudy.viewer.evaluation_api import evaluations_handler
from understudy.viewer.index import EpisodeIndex
from understudy.viewer.library import RunLibrary

MAX_EPISODES = 1000
"""Largest number of episodes in a file, over all runs and evaluations."""
MAX_COMPARISONS = 300
"""Largest number of comparisons in a file."""
MAX_BYTES = 96 << 20
"""Largest size of all answers before compression, in bytes. Episodes and comparisons beyond it are excluded."""
_PLACE = re.compile(r"{(\w+)}")
_EPISODE = ["key", "step", "number"]
_SELECTED = {"/api/runs/{run}/episodes", "/api/runs/{run}/facets"}
"""Routes whose answers the page computes from the exported data."""
_COMPARISON = "/api/comparison/{new}/{new_row}/{old}/{old_row}"
_FAILURES = "/api/failures/{key}/{step}"
RouteParams = Mapping[str, str]


def export_page(library: RunLibrary, path: Path, max_episodes: int = MAX_EPISODES) -> list[str]:
    """Write the page to a file. Return a sentence for each thing that the file excludes."""
    page = _PageData(library)
    episode_adders = list(page.episode_adders())
    for count in range(len(episode_adders), 0, -1):
        max_episodes -= episode_adders[-count](max_episodes // count)
    joined = b",".join(json.dumps(where).encode() + b":" + answer for where, answer in page.answers.items())
    data = b'{"answers":{%b},"rows":%b,"left_out":%b}' % (joined, encode_json(page.rows), encode_json(page.left_out))
    write_text(path, site.render_offline_page(gzip.compress(data)))
    return page.left_out


def collect_answers(library: RunLibrary) -> dict[str, bytes]:
    """Return the answers of the overview, of each run and of each evaluation, as JSON by path.

    Answers of single episodes are not included.
    """
    runs, evaluations = library.runs(), library.evaluations()
    values: dict[str, list[dict[str, str]]] = {
        "run": [{"run": key} for key in runs],
        "key": [{"key": key} for key in (*evaluations, *runs)],
        "": [{}],
    }
    patterns = {pattern: values.get(",".join(_PLACE.findall(pattern)), []) for pattern in ROUTES}
    found = (_answer(library, pattern, each) for pattern in patterns.keys() - _SELECTED for each in patterns[pattern])
    return dict(sorted(found))


class _PageData:
    """The data of an exported file, and a list of what it excludes."""

    def __init__(self, library: RunLibrary) -> None:
        self.answers = collect_answers(library)
        self.rows: dict[str, list[Any]] = {}
        self.left_out: list[str] = []
        self._library = library
        self._size = sum(map(len, self.answers.values()))
        self._compare()

    def episode_adders(self) -> Iterator[Callable[[int], int]]:
        """Yield functions that add episodes to the file.

        There is one for the training episodes of each run, one for each evaluation outside runs, and one for each eval
        set of each run: its last evaluation. A function takes the largest
        number of episodes to add, and returns the number added.
        """
        runs, evaluations = self._library.runs(), self._library.evaluations()
        yield from (partial(self._take_run, key) for key in runs)
        yield from (
            partial(self._take_stored, key, STANDALONE_EVAL_STEP)
            for key in evaluations
            if (evaluations[key] / EPISODES_FILE).is_file()
        )
        for key, path in runs.items():
            found = [each for each in list_run_evaluations(path) if has_progress(each.folder)]
            last = {evaluation.eval_set: evaluation.name for evaluation in found}
            if len(last) < len(found):
                self.left_out.append(
                    f"{key}: of {len(found)} evaluations, this file includes episodes of the last one only"
                )
            yield from (partial(self._take_stored, key, name) for name in last.values())

    def _compare(self) -> None:
        """Add comparisons, those of the latest evaluations first."""
        pairs = list(_pairs(self._library))
        for pair in pairs[:MAX_COMPARISONS]:
            values = dict(zip(_PLACE.findall(_COMPARISON), pair, strict=True))
            self._take([_answer(self._library, _COMPARISON, values)])
        if len(pairs) > MAX_COMPARISONS:
            included = f"the {MAX_COMPARISONS} of the latest evaluations"
            self.left_out.append(f"of {len(pairs)} comparisons of two evaluations, this file includes {included}")

    def _take_run(self, key: str, most: int) -> int:
        """Add a run's newest training episodes, at most `most`. Return the number added."""
        index = open_index(self._library.run(key))
        index.refresh()
        index.explain()
        rows = self.rows[key] = []
        for row in _rows(index, most):
            if not self._take_episode(key, str(row["step"]), row["number"]):
                break
            rows.append(row)
        for step in dict.fromkeys(row["step"] for row in rows):
            self._take([_answer(self._library, _FAILURES, {"key": key, "step": str(step)})])
        total = query.query_rows(index, {"limit": "0"})["total"]
        if len(rows) < total:
            self.left_out.append(f"{key}: of {total} episodes, this file includes the newest {len(rows)}")
        return len(rows)

    def _take_stored(self, key: str, step: str, most: int) -> int:
        """Add an evaluation's episodes, at most `most`, the failed ones first. Return the number added."""
        values = {"key": key, "step": step}
        try:
            episodes = episode_source_of(self._library, values).stored.episodes
        except ConfigError as e:
            self.left_out.append(f"{key}: {e}")
            return 0
        wanted = sorted(episodes, key=lambda number: not is_failed(episodes[number]))[:most]
        taken = len(list(itertools.takewhile(lambda number: self._take_episode(key, step, number), wanted)))
        if step != STANDALONE_EVAL_STEP:  # the evaluation's own answer contains its failures
            self._take([_answer(self._library, _FAILURES, values)])
        if taken < len(episodes):
            of = "" if step == STANDALONE_EVAL_STEP else f" of {step}"
            self.left_out.append(
                f"{key}: of {len(episodes)} episodes{of}, this file includes {taken}, failed ones first"
            )
        return taken

    def _take_episode(self, key: str, step: str, number: int) -> bool:
        values = {"key": key, "step": step, "number": str(number)}
        patterns = [pattern for pattern in ROUTES if _PLACE.findall(pattern) == _EPISODE]
        return self._take([_answer(self._library, pattern, values) for pattern in patterns])

    def _take(self, found: Sequence[tuple[str, bytes]]) -> bool:
        """Add answers if the size stays within MAX_BYTES: all of them or none. Return whether they were added."""
        answers = dict(found)
        self._size += sum(map(len, answers.values()))
        if self._size <= MAX_BYTES:
            self.answers.update(answers)
        return self._size <= MAX_BYTES


def _pairs(library: RunLibrary) -> list[tuple[str, str, str, str]]:
    """Return all ordered pairs of evaluated agents as (key, row, key, row), those of the latest evaluations first."""
    agents = [
        (each["key"], str(place), -place)
        for each in evaluations_handler(library, {})
        for place, row in enumerate(each["rows"])
        if row["kind"] == "agent"
    ]
    last = {key: age for key, _, age in agents}
    pairs = itertools.permutations(agents, 2)
    ordered = sorted(pairs, key=lambda pair: sum(age - last[key] for key, _, age in pair))
    return [(new[0], new[1], old[0], old[1]) for new, old in ordered]


def _rows(index: EpisodeIndex, most: int) -> Iterator[Any]:
    for offset in range(0, most, query.MAX_ROWS):
        limit = min(query.MAX_ROWS, most - offset)
        yield from query.query_rows(index, {"offset": str(offset), "limit": str(limit)})["rows"]


def _answer(library: RunLibrary, pattern: str, values: RouteParams) -> tuple[str, bytes]:
    """Return the path of an answer and its JSON. The JSON holds the error if there is no answer."""
    try:
        answer = encode_json(ROUTES[pattern](library, values))
    except (ConfigError, TaskError, RolloutError) as e:
        answer = encode_json({"error": str(e)})
    return pattern.format(**{name: quote(value, safe="!'()*~") for name, value in values.items()}), answer
