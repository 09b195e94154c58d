"""What the page asks, and what it is told: each path of the API with a function of the library and the address' values.

An exported page holds some of these answers by their path, so what a path says depends on nothing but its values.
An answer is anything that `as_json` writes; what is not there is a ConfigError.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from understudy import __version__
from understudy.viewer.curves import curves, head, run_page
from understudy.viewer.episodes import episode, episode_readings, episode_tokens, group
from understudy.viewer.evaluation import comparison, evaluation, evaluations
from understudy.viewer.library import Library

Values = Mapping[str, str]
"""Of the path's places and of the query, by name."""
Answer = Callable[[Library, Values], Any]


def overview(library: Library, _: Values) -> Any:
    """All that there is to look at, with a stamp each that changes when it does."""
    return {
        "version": __version__,
        "runs": [{"key": key, **head(folder)} for key, folder in library.runs().items()],
        "evaluations": [{"key": key, "file": str(path)} for key, path in library.evaluations().items()],
    }


ANSWERS: dict[str, Answer] = {
    "/api/overview": overview,
    "/api/runs/{run}": lambda library, values: run_page(library.run(values["run"])),
    "/api/runs/{run}/curves": lambda library, values: curves(library.run(values["run"])),
    "/api/episode/{key}/{step}/{number}": episode,
    "/api/episode/{key}/{step}/{number}/tokens": episode_tokens,
    "/api/episode/{key}/{step}/{number}/group": group,
    "/api/episode/{key}/{step}/{number}/readings": episode_readings,
    "/api/evaluations": evaluations,
    "/api/evaluations/{key}": evaluation,
    "/api/comparison/{new}/{new_row}/{old}/{old_row}": comparison,
}


def as_json(answer: Any) -> bytes:
    """JSON in ASCII, so that half a surrogate pair of a model's cannot break it; a number that is none is null."""
    plain = to_jsonable_python(answer, inf_nan_mode="null")
    return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
