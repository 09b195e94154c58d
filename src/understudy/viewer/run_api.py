"""A run for the page: summary, metrics as columns, config, health and result."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from understudy.core.errors import ConfigError
from understudy.core.files import FileStamp, cached_until_changed, file_stamp
from understudy.core.settings import flatten_config
from understudy.evaluation.reports.files import read_report
from understudy.runs import metrics
from understudy.runs.config import PROVENANCE_FILE, TrainConfig
from understudy.runs.phases import phase_spans
from understudy.runs.run import (
    RunEvaluation,
    list_run_evaluations,
    read_metrics,
    read_run_config,
    read_warnings,
)
from understudy.runs.storage.annotations import NOTES_FILE, RUN_ITEM, Annotation, read_annotations
from understudy.runs.storage.episode_store import REPORT_FILE
from understudy.runs.storage.status import read_run_status
from understudy.viewer.progress import PHASE_TITLES, run_progress
from understudy.viewer.run_text import MAIN_METRICS

MAX_POINTS = 2000
"""Largest number of points in a curve. In a longer run, each point is the mean of several steps."""


def run_summary(folder: Path) -> dict[str, Any]:
    """Return a run's summary for the list of runs.

    `held_out` is the success rate of its last evaluation on held-out tasks, or None. `state` and `reason` come from its
    status. `progress` is None unless it runs. `evaluations_stamp` changes when the
    run's evaluations or its result change. `stamp` changes in these cases too, and when its metrics, episodes or notes
    change.
    """
    config, problem = _config(folder)
    last = _last(folder / metrics.METRICS_FILE)
    training = [file_stamp(folder / name) for name in (metrics.METRICS_FILE, "trajectories")]
    evaluations = _evaluation_stamps(folder)
    notes = file_stamp(folder / NOTES_FILE)
    return {
        "folder": str(folder),
        "name": folder.name,
        "domain": config.domain_text if config else "",
        "model": config.model if config else "",
        "steps": config.total_steps if config else 0,
        "step": last.get("step", 0),
        **{name.rpartition("/")[2]: last.get(name) for name in MAIN_METRICS},
        "held_out": _last_held_out(folder),
        **_state(folder, config),
        "written": max(time for time, _ in training + evaluations) / 1e9,
        "stamp": format_stamps([*training, *evaluations, notes]),
        "evaluations_stamp": format_stamps(evaluations),
        "annotation": annotation_to_dict(folder, RUN_ITEM),
        "problems": [problem] if problem else [],
    }


def run_details(folder: Path) -> dict[str, Any]:
    """Return a run's summary, config, defaults, health warnings, evaluations, result and the provenance of its
    starts.
    """
    config, _ = _config(folder)
    return {
        **run_summary(folder),
        "config": dict(flatten_config(config.model_dump(mode="json"))) if config else {},
        "defaults": dict(flatten_config(TrainConfig().model_dump(mode="json"))),
        "health": _health(folder),
        "evaluations": _evaluations(folder, held_out=True),
        "other_evaluations": _evaluations(folder, held_out=False),
        "result": _json(folder / "result.json"),
        "starts": _json(folder / PROVENANCE_FILE) or [],
    }


def metric_curves(folder: Path) -> dict[str, Any]:
    """Return a run's metrics as columns.

    `steps` has the last step of each point, `series` the values of each metric, and `steps_per_point` the number of
    steps in a point. A point has steps of one phase only. `phases` has the name, first and last step of each phase.
    """
    lines, (config, _) = _metrics(folder / metrics.METRICS_FILE), _config(folder)
    spans = phase_spans(config) if config else []
    starts = {span.first_step for span in spans}
    names = [
        name for name in dict.fromkeys([*MAIN_METRICS, *(name for line in lines for name in line)]) if name != "step"
    ]
    size = -(-len(lines) // MAX_POINTS) or 1
    chunks = list(_chunks(lines, size, starts))
    series = {name: [_mean(chunk, name) for chunk in chunks] for name in names}
    return {
        "steps_per_point": size,
        "phases": [[PHASE_TITLES[span.name], span.first_step, span.last_step] for span in spans],
        "steps": [chunk[-1]["step"] for chunk in chunks],
        "series": {name: values for name, values in series.items() if any(value is not None for value in values)},
    }


def annotation_to_dict(folder: Path, item: str) -> dict[str, Any]:
    """Return the note and the tags of a run or an episode."""
    found = read_annotations(folder).get(item, Annotation(item=item))
    return {"note": found.note, "tags": list(found.tags)}


def _config(folder: Path) -> tuple[TrainConfig | None, str]:
    """Return the config and "", or None and the error."""
    try:
        return read_run_config(folder), ""
    except ConfigError as e:
        return None, str(e)


def _state(folder: Path, config: TrainConfig | None) -> dict[str, Any]:
    """Return the state of a run and, if it runs, its progress."""
    status, progress = read_run_status(folder), None
    if status.state == "running" and config:
        progress = run_progress(config, status, _metrics(folder / metrics.METRICS_FILE)).model_dump(mode="json")
    return {"state": status.state, "reason": status.reason, "progress": progress}


@cached_until_changed(32)
def _metrics(file: Path) -> Sequence[Mapping[str, Any]]:
    return read_metrics(file.parent)


@cached_until_changed(4096)
def _last(file: Path) -> Mapping[str, Any]:
    """Return the metrics of the last step; {} if there are none.

    The overview needs these for every run. Therefore this cache has more entries than the cache of complete metrics.
    """
    lines = _metrics(file)
    return lines[-1] if lines else {}


def format_stamps(stamps: Sequence[FileStamp]) -> str:
    """Return stamps as one string. It changes if any stamp changes."""
    return "-".join(f"{time:x}.{size:x}" for time, size in stamps)


def _health(folder: Path) -> list[dict[str, Any]]:
    """Return each health warning with its steps, the latest warning first."""
    found: dict[str, dict[str, Any]] = {}
    for warning in read_warnings(folder):
        check = str(warning.get("check"))
        steps = [*found.pop(check, {"steps": []})["steps"], warning["step"]]
        found[check] = {**warning, "steps": steps}
    return list(reversed(found.values()))


def _evaluations(folder: Path, held_out: bool) -> list[dict[str, Any]]:
    """Return the success of each evaluation of a run, in order. A damaged evaluation has a `problem` instead."""
    found = (each for each in list_run_evaluations(folder) if bool(each.eval_set) is not held_out)
    return [_evaluation(each, file_stamp(each.folder / REPORT_FILE)) for each in found]


def _last_held_out(folder: Path) -> float | None:
    rates = [each["success"].mean for each in _evaluations(folder, held_out=True) if "success" in each]
    return rates[-1] if rates else None


@lru_cache(maxsize=1024)
def _evaluation(evaluation: RunEvaluation, stamp: FileStamp) -> dict[str, Any]:
    head = {"step": evaluation.step, "name": " ".join(filter(None, (evaluation.stage, evaluation.eval_set)))}
    try:
        return {**head, "success": read_report(evaluation.folder).agent_rows[-1].result.success_rate}
    except (ConfigError, IndexError):
        return {**head, "problem": f"{evaluation.folder} has no evaluation report, or a damaged one"}


def _evaluation_stamps(folder: Path) -> list[FileStamp]:
    """Return two stamps for the evaluations of a run.

    The first has the time of the latest report and the total size of all reports. The second is the stamp of
    `result.json`.
    """
    reports = [file_stamp(each.folder / REPORT_FILE) for each in list_run_evaluations(folder)]
    last = max((time for time, _ in reports), default=0)
    return [(last, sum(size for _, size in reports)), file_stamp(folder / "result.json")]


def _json(path: Path) -> Any:
    """Return the content of a JSON file; None if the file is missing or damaged."""
    try:
        return from_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _chunks(
    lines: Sequence[Mapping[str, Any]], size: int, starts: Collection[int]
) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield the lines in chunks of at most `size`. A line whose step is in `starts` begins a chunk."""
    chunk: list[Mapping[str, Any]] = []
    for line in lines:
        if chunk and (len(chunk) == size or line["step"] in starts):
            yield chunk
            chunk = []
        chunk.append(line)
    if chunk:
        yield chunk


def _mean(chunk: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [float(line[name]) for line in chunk if _is_number(line.get(name))]
    return sum(values) / len(values) if values else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
