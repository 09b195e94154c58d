"""The API's routes: each path with its handler.

A handler takes the library and the parameters of the request. It returns any value that `encode_json` accepts, and
raises ConfigError if something does not exist. An exported page stores answers by path, so an answer may depend on the
parameters only.
"""

import json
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from understudy.core.version import __version__
from understudy.evaluation.reports.as_json import nan_to_none
from understudy.viewer import query
from understudy.viewer.episodes.episode_api import (
    episode_handler,
    group_handler,
    parses_handler,
    tokens_handler,
)
from understudy.viewer.evaluation_api import (
    comparison_handler,
    evaluation_handler,
    evaluation_stamp,
    evaluations_handler,
    failures_handler,
)
from understudy.viewer.index import EpisodeIndex
from understudy.viewer.library import RunLibrary
from understudy.viewer.run_api import format_stamps, metric_curves, run_details, run_summary
from understudy.viewer.run_groups import group_runs

RouteParams = Mapping[str, str]
"""Parameters of the path and of the query string, by name."""
Handler = Callable[[RunLibrary, RouteParams], Any]
INDEX_SECONDS = 0.25
"""Seconds that one request spends on indexing. The page repeats the request until the index is complete."""
_MAKING = threading.Lock()
_index = cache(EpisodeIndex)


def open_index(folder: Path) -> EpisodeIndex:
    """Return the index of a run folder.

    Each index is created once, under a lock: two threads that create it at the same time would delete each other's
    file.
    """
    with _MAKING:
        return _index(folder)


def overview(library: RunLibrary, _: RouteParams) -> Any:
    """Return all runs, their groups, and all evaluations. Each has stamps, which change when its files change."""
    runs = library.runs()
    return {
        "version": __version__,
        "runs": [{"key": key, **run_summary(folder)} for key, folder in runs.items()],
        "groups": group_runs(runs),
        "evaluations": [
            {"key": key, "file": str(path), "evaluations_stamp": format_stamps([evaluation_stamp(path)])}
            for key, path in library.evaluations().items()
        ],
    }


def list_episodes(library: RunLibrary, values: RouteParams) -> Any:
    """Return one page of a run's episodes, with the progress of the index. See `query.query_rows`.

    `explaining` says whether causes of failures are still being found.
    """
    index = open_index(library.run(values["run"]))
    progress = index.refresh(INDEX_SECONDS)
    return {**progress._asdict(), "explaining": index.start_explaining(), **query.query_rows(index, values)}


def list_facets(library: RunLibrary, values: RouteParams) -> Any:
    """Return counts of a run's episodes by field. See `query.query_facets`."""
    return query.query_facets(open_index(library.run(values["run"])), values)


ROUTES: dict[str, Handler] = {
    "/api/overview": overview,
    "/api/runs/{run}": lambda library, values: run_details(library.run(values["run"])),
    "/api/runs/{run}/curves": lambda library, values: metric_curves(library.run(values["run"])),
    "/api/episode/{key}/{step}/{number}": episode_handler,
    "/api/episode/{key}/{step}/{number}/tokens": tokens_handler,
    "/api/episode/{key}/{step}/{number}/group": group_handler,
    "/api/episode/{key}/{step}/{number}/parses": parses_handler,
    "/api/evaluations": evaluations_handler,
    "/api/evaluations/{key}": evaluation_handler,
    "/api/failures/{key}/{step}": failures_handler,
    "/api/comparison/{new}/{new_row}/{old}/{old_row}": comparison_handler,
    "/api/runs/{run}/episodes": list_episodes,
    "/api/runs/{run}/facets": list_facets,
}

ANNOTATION_PATHS = ("/api/annotations/{key}", "/api/annotations/{key}/{step}/{number}")
"""Paths to which the page sends the note and tags of a run or an episode."""


def encode_json(answer: Any) -> bytes:
    """Return an answer as JSON in ASCII.

    ASCII escapes the lone surrogates that a model may write. NaN and infinity become null.
    """
    plain = nan_to_none(to_jsonable_python(answer, inf_nan_mode="constants"))
    return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
