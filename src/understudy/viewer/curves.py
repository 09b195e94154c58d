"""A run as the page shows it: its head, its metrics as columns, its config, health and result."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from understudy import metrics
from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.evaluation import Evaluation
from understudy.run import ENVIRONMENT, read_config, read_metrics, read_warnings
from understudy.view import FIRST

MOST = 2000
"""Points of a curve; where a run has more steps, each point is the mean of some."""
Stamp = tuple[int, int]


def head(folder: Path) -> dict[str, Any]:
    """A run in a line of a list. `stamp` changes when its metrics, its episodes or its result do, `evaluated` when its
    evaluations do."""
    config, problem = _config(folder)
    last = _last(folder, stamp(folder / metrics.FILE))
    ran = [stamp(folder / name) for name in (metrics.FILE, "trajectories")]
    evaluated = [stamp(folder / name) for name in ("evaluations", "tests", "episodes", "result.json")]
    return {
        "folder": str(folder),
        "name": folder.name,
        "domain": config.domain if config else "",
        "model": config.model if config else "",
        "steps": _all_steps(config) if config else 0,
        "step": last.get("step", 0),
        **{name.rpartition("/")[2]: last.get(name) for name in FIRST},
        "finished": (folder / "result.json").exists(),
        "written": max(time for time, _ in ran + evaluated) / 1e9,
        "stamp": spelled(ran + evaluated),
        "evaluated": spelled(evaluated),
        "problems": [problem] if problem else [],
    }


def run_page(folder: Path) -> dict[str, Any]:
    """What a run is and came to."""
    config, _ = _config(folder)
    return {
        **head(folder),
        "config": dict(_leaves(config.model_dump(mode="json"))) if config else {},
        "defaults": dict(_leaves(TrainConfig().model_dump(mode="json"))),
        "health": _health(folder),
        "evaluations": _evaluations(folder / "evaluations"),
        "tests": _evaluations(folder / "tests"),
        "result": _json(folder / "result.json"),
        "starts": _json(folder / ENVIRONMENT) or [],
    }


def curves(folder: Path) -> dict[str, Any]:
    """The metrics of all steps as columns: `steps`, and under `series` a list of numbers for each metric."""
    lines = _metrics(folder)
    names = [name for name in dict.fromkeys([*FIRST, *(name for line in lines for name in line)]) if name != "step"]
    size = -(-len(lines) // MOST) or 1
    chunks = [lines[i : i + size] for i in range(0, len(lines), size)]
    series = {name: [_mean(chunk, name) for chunk in chunks] for name in names}
    return {
        "each": size,
        "steps": [chunk[-1]["step"] for chunk in chunks],
        "series": {name: values for name, values in series.items() if any(value is not None for value in values)},
    }


def _config(folder: Path) -> tuple[TrainConfig | None, str]:
    """The config, or what is wrong with it."""
    try:
        return read_config(folder), ""
    except ConfigError as e:
        return None, str(e)


def _all_steps(config: TrainConfig) -> int:
    return config.sft.steps + config.preferences.steps + config.steps


def _metrics(folder: Path) -> Sequence[Mapping[str, Any]]:
    return _read_metrics(folder, stamp(folder / metrics.FILE))


@lru_cache(maxsize=32)
def _read_metrics(folder: Path, _: Stamp) -> list[dict[str, Any]]:
    return [metrics.named(line) for line in read_metrics(folder)]  # those of runs from before names had spaces


@lru_cache(maxsize=4096)
def _last(folder: Path, _: Stamp) -> Mapping[str, Any]:
    """The metrics of the last step. An overview asks for those of every run, more than are held whole."""
    lines = _metrics(folder)
    return lines[-1] if lines else {}


def stamp(path: Path) -> Stamp:
    """When a file or a folder was written, in nanoseconds, and its size; zeros where it is not there."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


def spelled(stamps: Sequence[Stamp]) -> str:
    """Stamps as a text, which is another one where any of them is."""
    return "-".join(f"{time:x}.{size:x}" for time, size in stamps)


def _health(folder: Path) -> list[dict[str, Any]]:
    """Each warning with the steps it was found in, the last first."""
    found: dict[str, dict[str, Any]] = {}
    for warning in read_warnings(folder):
        check = str(warning.get("check"))
        steps = [*found.pop(check, {"steps": []})["steps"], warning["step"]]
        found[check] = {**warning, "steps": steps}
    return list(reversed(found.values()))


def _evaluations(folder: Path) -> list[dict[str, Any]]:
    """What each evaluation of a run came to, in order; one that is damaged is named."""
    return [_evaluation(path, stamp(path)) for path in sorted(folder.glob("*.json"))]


@lru_cache(maxsize=1024)
def _evaluation(path: Path, stamp: Stamp) -> dict[str, Any]:
    step, _, name = path.stem.partition(" ")
    told = {"step": int(step) if step.isdigit() else 0, "name": name, "file": path.name}
    try:
        return {**told, "success": Evaluation.model_validate_json(path.read_bytes()).success}
    except (OSError, ValidationError):
        return {**told, "problem": f"{path} is not an evaluation, or is damaged"}


def _json(path: Path) -> Any:
    """What a JSON file holds; None where it is not there or damaged."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _mean(chunk: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [float(line[name]) for line in chunk if _is_number(line.get(name))]
    return sum(values) / len(values) if values else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A config's values by their dotted keys."""
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{prefix}{key}.")
        else:
            yield prefix + key, inner
