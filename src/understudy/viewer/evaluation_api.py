"""Evaluations for the page: results, causes of failure, and the comparison of two agents.

An evaluation is a report of `understudy eval`, or all evaluations of one run. In the second case, the rows are the
run's stages.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError
from understudy.core.files import FileStamp, file_stamp
from understudy.core.trajectory import read_numbered_trajectories
from understudy.evaluation import comparison as comparing
from understudy.evaluation.explain_stored import find_stored_failures
from understudy.evaluation.failures.causes import FAILURE_KINDS
from understudy.evaluation.reports.as_json import causes_to_dicts, report_to_dict
from understudy.evaluation.reports.files import read_report
from understudy.evaluation.reports.report import EvalReport, title_eval_set
from understudy.evaluation.result import ResultRow, paired_rates
from understudy.evaluation.stored_episodes import list_stored_names
from understudy.runs.eval_spec import read_spec
from understudy.runs.run import RunEvaluation, is_run_folder, list_run_evaluations, read_run_config
from understudy.runs.storage.episode_store import EPISODES_FILE, REPORT_FILE
from understudy.viewer.episodes.episode_api import STANDALONE_EVAL_STEP, episode_source_of
from understudy.viewer.library import RunLibrary
from understudy.viewer.query import QueryError

RouteParams = Mapping[str, str]
MAX_PLAYED = 12
"""Largest number of episodes that a hardest task lists."""
_MEANINGS = {kind: {"component": component, "meaning": meaning} for kind, (component, meaning) in FAILURE_KINDS.items()}


def evaluations_handler(library: RunLibrary, _: RouteParams) -> list[dict[str, Any]]:
    """Return a summary of each evaluation. If one cannot be read, its `problem` says why."""
    return [_line(library, key) for key in [*library.evaluations(), *_evaluated_runs(library)]]


def evaluation_handler(library: RunLibrary, values: RouteParams) -> dict[str, Any]:
    """Return the complete report of an evaluation.

    If its episodes are stored, each failure has the number of its episode.
    """
    key = values["key"]
    plain = _plain_report(library, key)
    numbers, path = _numbers(library, key), _path(library, key)
    for failure in plain["failures"]:
        failure["episode"] = numbers.get((failure["task"], failure["seed"]))
    stored = list_stored_names(path) if key in library.runs() else []
    step = next((name for name in stored if not name.isdecimal()), "") if stored else STANDALONE_EVAL_STEP
    plain["hardest"] = list(_with_episodes(library, key, step, plain["hardest"]))
    conversations = [] if plain["rows"] else list(_conversations(path))
    return {
        "key": key,
        "path": str(path),
        "stored": stored,
        "meanings": _MEANINGS,
        "conversations": conversations,
        **plain,
    }


def _conversations(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the episodes of a report without agents, which are the conversations of a server's log."""
    file = path / EPISODES_FILE
    for number, episode in read_numbered_trajectories(file)[0].items() if file.is_file() else ():
        reward = episode.score.reward if episode.score else None
        yield {"number": number, "task": episode.task_id, "replies": episode.num_turns, "reward": reward}


def _with_episodes(
    library: RunLibrary, key: str, step: str, tasks: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield each task with `played`, its stored episodes: step, number and reward. Those of a run are those of the
    evaluation `step`.
    """
    played: dict[str, list[dict[str, Any]]] = {task["task"]: [] for task in tasks}
    with contextlib.suppress(ConfigError):  # the episodes are not stored, or cannot be read
        episodes = episode_source_of(library, {"key": key, "step": step}).stored.episodes if step and tasks else {}
        for number, episode in episodes.items():
            if episode.task_id in played:
                reward = episode.score.reward if episode.score else None
                played[episode.task_id].append({"step": step, "number": number, "reward": reward})
    yield from ({**task, "played": played[task["task"]][:MAX_PLAYED]} for task in tasks)


def evaluation_stamp(path: Path) -> FileStamp:
    """Return the stamp of an evaluation outside runs."""
    return file_stamp(path / REPORT_FILE if path.is_dir() else path)


def failures_handler(library: RunLibrary, values: RouteParams) -> dict[str, Any]:
    """Return why episodes of a run failed. `step` is a training step or the name of an evaluation with stored
    episodes.
    """
    stored = episode_source_of(library, values).stored
    failures = find_stored_failures(stored)
    return {
        "episodes": len(stored.episodes),
        "meanings": _MEANINGS,
        "causes": causes_to_dicts([*failures.values()]),
        "failures": [{**failure.model_dump(mode="json"), "episode": number} for number, failure in failures.items()],
    }


def comparison_handler(library: RunLibrary, values: RouteParams) -> dict[str, Any]:
    """Return the paired comparison of two rows: the difference, its significance, and both success rates on each
    task.
    """
    new, old = (_row(library, values[name], values[f"{name}_row"]) for name in ("new", "old"))
    compared = comparing.compare(EvalReport(rows=(new,)), EvalReport(rows=(old,)))
    return compared.to_dict() | {"tasks": sorted(_pairs(new, old), key=lambda pair: pair["gain"])}


def _line(library: RunLibrary, key: str) -> dict[str, Any]:
    try:
        found = _outcome(library, key)
    except ConfigError as e:
        return {"key": key, "problem": str(e), "rows": []}
    rows = [
        {
            "name": row.name,
            "kind": row.result.kind,
            "domain": row.result.domain,
            "trials": row.result.trials,
            "success": row.result.success_rate,
            "faults": row.result.fault_counts,
            "pooled": row == found.pooled_row,
        }
        for row in found.table_rows
    ]
    return {"key": key, "problem": "", "about": _about(_path(library, key), found), "rows": rows}


def _about(path: Path, report: EvalReport) -> dict[str, Any]:
    """Return the model, user, split, number of tasks and time (seconds since 1970) of an evaluation.

    They are "" if they are unknown: a JSON file says neither the model nor the user.
    """
    config = None
    with contextlib.suppress(ConfigError):  # a single report has no config, or it cannot be read
        config = read_run_config(path) if is_run_folder(path) else read_spec(path).config
    results = [row.result for row in report.rows]
    files = [each.folder for each in list_run_evaluations(path)] if is_run_folder(path) else [path]
    return {
        "model": config.model if config else "",
        "user": str(config.user.kind) if config else "",
        "split": ", ".join(sorted({result.split for result in results if result.split})),
        "tasks": len({task.task for result in results for task in result.task_results}),
        "written": max(evaluation_stamp(file)[0] for file in files) / 1e9,
    }


def _evaluated_runs(library: RunLibrary) -> Iterator[str]:
    """Return the keys of the runs that have evaluations."""
    return (key for key, folder in library.runs().items() if list_run_evaluations(folder))


def _path(library: RunLibrary, key: str) -> Path:
    runs = library.runs()
    return runs[key] if key in runs else library.evaluation(key)


def _outcome(library: RunLibrary, key: str) -> EvalReport:
    runs = library.runs()
    if key in runs:
        return _of_run(runs[key])
    path = library.evaluation(key)
    return _read(path, evaluation_stamp(path))


def _plain_report(library: RunLibrary, key: str) -> dict[str, Any]:
    """Return the report as JSON-compatible values, with its number of tasks. Of a run, only `rows` has other tasks than
    held-out ones.
    """
    runs = library.runs()
    reports = _by_eval_set(runs[key]) if key in runs else [_outcome(library, key)]
    held_out, *others = map(report_to_dict, reports or [EvalReport(rows=())])
    rows = held_out["rows"]
    tasks = rows[-1]["success"]["tasks"] if rows else 0
    return held_out | {"rows": [*rows, *(row for other in others for row in other["rows"])], "tasks": tasks}


@lru_cache(maxsize=64)
def _read(path: Path, _: FileStamp) -> EvalReport:
    return read_report(path)


def _of_run(folder: Path) -> EvalReport:
    """Return a run's evaluations as one report, ordered by step. Evaluations on other eval sets come last."""
    return EvalReport(rows=tuple(row for report in _by_eval_set(folder) for row in report.rows))


def _by_eval_set(folder: Path) -> list[EvalReport]:
    """Return a run's evaluations as one report for each eval set, held-out tasks first."""
    evaluations = sorted(list_run_evaluations(folder), key=lambda each: each.eval_set)
    reports = list[EvalReport]()
    for _, group in itertools.groupby(evaluations, key=lambda each: each.eval_set):
        found = [(each, _read(each.folder, evaluation_stamp(each.folder))) for each in group]
        baselines = [] if reports else [row for row in found[0][1].rows if row.result.kind != "agent"]
        agents = (row.replace(name=_stage_name(each)) for each, report in found for row in report.agent_rows)
        reports.append(EvalReport(rows=(*baselines, *agents)))
    return reports


def _stage_name(evaluation: RunEvaluation) -> str:
    title = title_eval_set(evaluation.eval_set)
    where = f" {title[0].lower()}{title[1:]}" if title else ""
    step = f"step {evaluation.step}"
    return f"{step if evaluation.stage == step else f'{evaluation.stage}, {step}'}{where}"


def _row(library: RunLibrary, key: str, place: str) -> ResultRow:
    rows = _outcome(library, key).table_rows
    if not (place.isdecimal() and len(place) < 10):
        raise QueryError(f"a row is {place[:40]!r}; it must be a whole number")
    if int(place) >= len(rows):
        raise ConfigError(f"{key} has no row {place!r}; its rows are 0 to {len(rows) - 1}")
    return rows[int(place)]


def _numbers(library: RunLibrary, key: str) -> dict[tuple[str, int], int]:
    """Return the numbers of an evaluation's stored episodes by task and seed; {} if no episodes are stored."""
    file = _path(library, key) / EPISODES_FILE
    if not file.is_file():
        return {}
    return {(episode.task_id, episode.seed): number for number, episode in read_numbered_trajectories(file)[0].items()}


def _pairs(new: ResultRow, old: ResultRow) -> Iterator[dict[str, Any]]:
    """Yield each task on which both agents have a score, with their success rates."""
    for pair in paired_rates(new.result, old.result):
        rates = {"new": pair.new, "old": pair.old, "gain": pair.gain}
        yield {"task": pair.result.task, "family": pair.result.family, **rates}
