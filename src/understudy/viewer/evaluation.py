"""Evaluations to look at: what agents came to, why episodes failed, and two of them side by side.

An evaluation is what `understudy eval` wrote, or all that a run wrote of one: then its rows are the run's stages.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from understudy import outcome
from understudy.assess import compare as comparing
from understudy.assess.stored import stored_names
from understudy.assess.why import why
from understudy.errors import ConfigError
from understudy.evaluation import Evaluation
from understudy.failures.causes import MEANING
from understudy.kept import EPISODES
from understudy.outcome import Named, Outcome
from understudy.results import UNTRAINED
from understudy.trajectory import numbered_trajectories
from understudy.viewer.curves import Stamp, stamp
from understudy.viewer.episodes import shelf_of
from understudy.viewer.library import Library

Values = Mapping[str, str]
_MEANINGS = {what: {"who": who, "meaning": meaning} for what, (who, meaning) in MEANING.items()}


def evaluations(library: Library, _: Values) -> list[dict[str, Any]]:
    """All evaluations in a line each; one that cannot be read says why."""
    return [_line(library, key) for key in [*library.evaluations(), *_evaluated_runs(library)]]


def evaluation(library: Library, values: Values) -> dict[str, Any]:
    """All that an evaluation came to; of its failures also the numbers of their episodes, where those are kept."""
    key = values["key"]
    plain = outcome.as_json(_outcome(library, key))
    numbers, path = _numbers(library, key), _path(library, key)
    for failure in plain["failures"]:
        failure["episode"] = numbers.get((failure["task"], failure["seed"]))
    kept = stored_names(path) if key in library.runs() else []
    return {"key": key, "path": str(path), "kept": kept, "meanings": _MEANINGS, **plain}


def evaluated(path: Path) -> Stamp:
    """When an evaluation that is no run's was written."""
    return stamp(path / outcome.FILE if path.is_dir() else path)


def failures(library: Library, values: Values) -> dict[str, Any]:
    """Why episodes of a run failed: those of a step, or of an evaluation, that it keeps."""
    stored = shelf_of(library, values).stored
    found = why(stored)
    causes = [{"who": who, "what": what, "failures": count} for who, what, count in outcome.causes([*found.values()])]
    return {
        "episodes": len(stored.episodes),
        "meanings": _MEANINGS,
        "causes": causes,
        "failures": [{**failure.model_dump(mode="json"), "episode": number} for number, failure in found.items()],
    }


def comparison(library: Library, values: Values) -> dict[str, Any]:
    """Two rows side by side: the paired difference, whether chance explains it, and the tasks that it is made of."""
    new, old = (_row(library, values[name], values[f"{name}_row"]) for name in ("new", "old"))
    compared = comparing.compare(Outcome(rows=(new,)), Outcome(rows=(old,)))
    return comparing.as_json(compared) | {"tasks": sorted(_pairs(new, old), key=lambda pair: pair["gain"])}


def _line(library: Library, key: str) -> dict[str, Any]:
    try:
        found = _outcome(library, key)
    except ConfigError as e:
        return {"key": key, "problem": str(e), "rows": []}
    rows = [
        {
            "name": row.name,
            "kind": row.evaluation.kind,
            "domain": row.evaluation.domain,
            "trials": row.evaluation.trials,
            "success": row.evaluation.success,
        }
        for row in found.rows
    ]
    return {"key": key, "problem": "", "rows": rows}


def _evaluated_runs(library: Library) -> Iterator[str]:
    """The runs that have evaluations."""
    return (key for key, folder in library.runs().items() if any(folder.glob("evaluations/*.json")))


def _path(library: Library, key: str) -> Path:
    runs = library.runs()
    return runs[key] if key in runs else library.evaluation(key)


def _outcome(library: Library, key: str) -> Outcome:
    runs = library.runs()
    if key in runs:
        return _of_run(runs[key])
    path = library.evaluation(key)
    return _read(path, evaluated(path))


@lru_cache(maxsize=64)
def _read(path: Path, _: Stamp) -> Outcome:
    return outcome.read(path)


def _of_run(folder: Path) -> Outcome:
    """A run's evaluations, in the order of its steps; floor and oracle are there when it has ended."""
    result = folder / "result.json"
    ended = _read(result, stamp(result)).rows if result.is_file() else ()
    ends = [row for row in ended if row.evaluation.kind != "agent"]
    own, other = (list(_stages(folder / name)) for name in ("evaluations", "tests"))
    more = [row.replace(name=f"{row.name} {UNTRAINED[0].lower()}{UNTRAINED[1:]}") for row in other]
    return Outcome(rows=(*ends, *own, *more))


def _stages(folder: Path) -> Iterator[Named]:
    for path in sorted(folder.glob("*.json")):
        step, _, name = path.stem.partition(" ")
        found = _stage(path, stamp(path))
        yield Named(name=f"{name}, step {int(step)}" if step.isdecimal() else path.stem, evaluation=found)


@lru_cache(maxsize=1024)
def _stage(path: Path, _: Stamp) -> Evaluation:
    try:
        return Evaluation.model_validate_json(path.read_bytes())
    except ValidationError as e:
        raise ConfigError(f"{path} holds no evaluation: {e.errors(include_url=False)[0]['msg']}") from e


def _row(library: Library, key: str, place: str) -> Named:
    rows = _outcome(library, key).rows
    if not place.isdecimal() or int(place) >= len(rows):
        raise ConfigError(f"{key} has no row {place!r}; it has 0 to {len(rows) - 1}")
    return rows[int(place)]


def _numbers(library: Library, key: str) -> dict[tuple[str, int], int]:
    """Where each episode of an evaluation stands, by its task and seed; nothing where none are kept."""
    file = _path(library, key) / EPISODES
    if not file.is_file():
        return {}
    return {(episode.task, episode.seed): number for number, episode in numbered_trajectories(file)[0].items()}


def _pairs(new: Named, old: Named) -> Iterator[dict[str, Any]]:
    """The tasks that both have played, with the share of successes of each."""
    before = {result.task: result for result in old.evaluation.results}
    for result in new.evaluation.results:
        if (other := before.get(result.task)) is None:
            continue
        after, then = _share(result.successes), _share(other.successes)
        if after is not None and then is not None:
            yield {"task": result.task, "family": result.family, "new": after, "old": then, "gain": after - then}


def _share(successes: tuple[bool | None, ...]) -> float | None:
    known = [success for success in successes if success is not None]
    return sum(known) / len(known) if known else None
