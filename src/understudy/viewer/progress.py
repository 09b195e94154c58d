"""The progress of a running run: the step or evaluation under way, and estimates of the time left."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from understudy.core.records import Record
from understudy.runs.config import TrainConfig
from understudy.runs.phases import phase_spans
from understudy.runs.storage.status import RunStatus

RECENT_STEPS = 5
"""Number of last steps of a phase whose durations the estimates use."""
_MIN_SHARE = 0.1  # share of an activity that must be done before its own speed is used
PHASE_TITLES = {"sft": "SFT", "preferences": "preferences", "rl": "RL"}


class RunProgress(Record):
    """The progress of a run."""

    phase: str
    """Phase of the step under way: `SFT`, `preferences` or `RL`; empty when all steps are done."""
    step: int
    """The step under way. During an evaluation, the last finished step."""
    activity: str
    """Such as `sample` or `evaluate sft`; `start` before the first."""
    done: int
    total: int
    """Finished and all parts of the activity, such as episodes; 0 if it has no parts."""
    step_seconds_left: float | None = None
    """Estimate for the step or evaluation under way. None if nothing is known yet."""
    phase_seconds_left: float | None = None
    """Estimate for the phase, without its evaluations."""


def run_progress(config: TrainConfig, status: RunStatus, metrics: Sequence[Mapping[str, Any]]) -> RunProgress:
    """Return the progress of a run with this status. `metrics` are those of its finished steps."""
    is_evaluation = status.activity.startswith("evaluate")
    step = min(status.step + 1, config.total_steps)
    span = next((span for span in phase_spans(config) if span.first_step <= step <= span.last_step), None)
    found = RunProgress(
        phase=PHASE_TITLES[span.name] if span and status.step < config.total_steps else "",
        step=status.step if is_evaluation else step,
        activity=status.activity or "start",
        done=status.done,
        total=status.total if status.total > 1 else 0,
    )
    elapsed = max(0.0, time.time() - status.activity_started_at) if status.activity_started_at else 0.0
    if is_evaluation:
        return found.replace(step_seconds_left=_by_speed(status, elapsed))
    if span is None or not found.phase:
        return found
    recent = [line for line in metrics if span.first_step <= line["step"] <= span.last_step][-RECENT_STEPS:]
    whole, sampling = _mean(recent, "time/step_seconds"), _mean(recent, "time/rollout_seconds") or 0.0
    if status.activity == "sample":
        left = _sampling_left(status, elapsed, sampling)
        left = None if left is None else left + max(0.0, (whole or sampling) - sampling)
    else:
        left = None if whole is None else max(0.0, whole - sampling - elapsed)
    later = None if left is None or whole is None else left + whole * (span.last_step - step)
    return found.replace(step_seconds_left=left, phase_seconds_left=later)


def _sampling_left(status: RunStatus, elapsed: float, usual: float) -> float | None:
    """Return the seconds left until all episodes are played: by the usual duration until it is exceeded."""
    return usual - elapsed if usual > elapsed else _by_speed(status, elapsed)


def _by_speed(status: RunStatus, elapsed: float) -> float | None:
    """Return the seconds left if the rest takes as long for each part as what is done. None at the beginning."""
    if not status.total or status.done < max(1, _MIN_SHARE * status.total):
        return None
    return elapsed * (status.total - status.done) / status.done


def _mean(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [line[name] for line in lines if isinstance(line.get(name), int | float)]
    return sum(values) / len(values) if values else None
