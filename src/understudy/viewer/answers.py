"""What the page asks, and what it is told: each path of the API with a function of the library and the address' values.

An exported page holds some of these answers by their path, so what a path says depends on nothing but its values.
An answer is anything that `as_json` writes; what is not there is a ConfigError.
"""

import json
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

import understudy
from understudy.viewer import query
from understudy.viewer.curves import curves, head, run_page, spelled
from understudy.viewer.episodes import episode, episode_readings, episode_tokens, group, trainer
from understudy.viewer.evaluation import comparison, evaluated, evaluation, evaluations, failures
from understudy.viewer.index import Index
from understudy.viewer.library import Library

Values = Mapping[str, str]
"""Of the path's places and of the query, by name."""
Answer = Callable[[Library, Values], Any]
WORK = 0.25
"""Seconds that a request gives to what is not in the index yet; the page asks again until all is."""
_MAKING = threading.Lock()
_index = cache(Index)


def index_of(folder: Path) -> Index:
    """The index of a run's folder, made once: two threads that make it at a time would remove each other's."""
    with _MAKING:
        return _index(folder)


def overview(library: Library, _: Values) -> Any:
    """All that there is to look at, with a stamp each that changes when it does."""
    return {
        "version": understudy.__version__,
        "runs": [{"key": key, **head(folder)} for key, folder in library.runs().items()],
        "evaluations": [
            {"key": key, "file": str(path), "evaluated": spelled([evaluated(path)])}
            for key, path in library.evaluations().items()
        ],
    }


def episodes(library: Library, values: Values) -> Any:
    """A page of a run's episodes, and how far the index is: see `query.rows`."""
    index = index_of(library.run(values["run"]))
    progress = index.refresh(WORK)
    return {**progress._asdict(), **query.rows(index, values)}


def facets(library: Library, values: Values) -> Any:
    """How many episodes there are of each kind: see `query.facets`."""
    return query.facets(index_of(library.run(values["run"])), values)


ANSWERS: dict[str, Answer] = {
    "/api/overview": overview,
    "/api/runs/{run}": lambda library, values: run_page(library.run(values["run"])),
    "/api/runs/{run}/curves": lambda library, values: curves(library.run(values["run"])),
    "/api/episode/{key}/{step}/{number}": episode,
    "/api/episode/{key}/{step}/{number}/tokens": episode_tokens,
    "/api/episode/{key}/{step}/{number}/group": group,
    "/api/episode/{key}/{step}/{number}/readings": episode_readings,
    "/api/runs/{run}/steps/{at}/episodes/{episode}/trainer": trainer,
    "/api/evaluations": evaluations,
    "/api/evaluations/{key}": evaluation,
    "/api/failures/{key}/{step}": failures,
    "/api/comparison/{new}/{new_row}/{old}/{old_row}": comparison,
    "/api/runs/{run}/episodes": episodes,
    "/api/runs/{run}/facets": facets,
}


def as_json(answer: Any) -> bytes:
    """JSON in ASCII, so that half a surrogate pair of a model's cannot break it; a number that is none is null."""
    plain = to_jsonable_python(answer, inf_nan_mode="null")
    return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
