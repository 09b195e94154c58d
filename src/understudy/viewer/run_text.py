"""A run as plain text: config, metrics, health, result and episodes."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.terminal import escape_control_characters
from understudy.core.trajectory import Trajectory, read_numbered_trajectories
from understudy.runs.config import TrainConfig
from understudy.runs.phases import phase_spans
from understudy.runs.run import (
    episode_file,
    episode_files,
    list_damaged_lines,
    read_metrics,
    read_run_config,
    read_warnings,
)
from understudy.runs.storage.annotations import RUN_ITEM, read_annotations
from understudy.runs.storage.status import RunStatus, read_run_status
from understudy.viewer.progress import PHASE_TITLES, run_progress

MAIN_METRICS = ("rollout/reward", "rollout/success_rate")
"""Metrics that are shown first."""
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40


def format_run(folder: Path, step: int | None = None, episode: int | None = None) -> str:
    """Return a run's summary as text, or one episode if `step` or `episode` is given.

    `step` defaults to the last step with stored episodes, and `episode`, which counts from 1, to 1. Raise ConfigError
    if the folder is not a run or the episode does not exist.
    """
    config = read_run_config(folder)
    file = _episode_file(folder, step)
    if episode is not None or step is not None:
        if file is None:
            raise ConfigError("the run has no stored episodes yet")
        return format_episode(file, 1 if episode is None else episode)
    metrics = read_metrics(folder)
    sections = [_head(folder, config, metrics), _curves(metrics, config), _health(folder, metrics), _result(folder)]
    sections.append(_some_episodes(file))
    return "\n\n".join(section for section in sections if section)


def format_transcript(messages: Sequence[Message]) -> str:
    """Return a conversation as text."""
    return "\n".join(line for message in messages for line in format_message(message))


def format_message(message: Message) -> Iterator[str]:
    """Yield the lines of one message: its text with the role, then its tool calls."""
    if message.content or not message.tool_calls:
        first, *rest = message.content.strip().splitlines() or ["(empty)"]
        yield f"{message.role:>9} | {first}"
        yield from (f"{'':>9} | {line}" for line in rest)
    for call in message.tool_calls:
        yield f"{message.role:>9} > {format_call(call)}"


def format_call(call: ToolCall) -> str:
    """Return a tool call in the syntax that `understudy play` accepts."""
    if call.parse_error:
        return f"{call.name} (malformed: {call.parse_error})"
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Return a curve as one line of bars, at most `width`. If there are more values, each bar is a mean of several.

    `values` must not be empty.
    """
    size = -(-len(values) // width)
    means = [sum(chunk) / len(chunk) for chunk in (values[i : i + size] for i in range(0, len(values), size))]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in means)


def format_run_state(config: TrainConfig, status: RunStatus, metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of a run in one line: how it ended, or what it does now and the time that is left."""
    if status.state != "running":
        is_named = not status.reason or status.reason.startswith(status.state)
        return status.reason or status.state if is_named else f"{status.state}: {status.reason}"
    found = run_progress(config, status, metrics)
    parts = f" {found.done} of {found.total}" if found.total else ""
    where = f"{found.phase} step {found.step} of {config.total_steps}" if found.phase else f"step {found.step}"
    times = {"step": found.step_seconds_left, found.phase: found.phase_seconds_left}
    left = [f"{timedelta(seconds=round(each))} left of this {name}" for name, each in times.items() if each is not None]
    return ", ".join([f"running, {where}", f"{found.activity}{parts}", *left])


def _head(folder: Path, config: TrainConfig, metrics: Sequence[Mapping[str, Any]]) -> str:
    own = read_annotations(folder).get(RUN_ITEM)
    sft, preferences, algorithm = config.sft, config.preferences, config.algorithm
    lines = {
        "run": str(folder),
        "state": format_run_state(config, read_run_status(folder), metrics),
        "tags": ", ".join(own.tags) if own else "",
        "note": own.note if own else "",
        "domain": " ".join(
            [config.domain_text, *config.slice.domains, *config.slice.families, *config.slice.difficulties]
        ),
        "model": f"{config.model}, {config.engine.finetune}, seed {config.seed}",
        "SFT": f"{sft.steps} steps of {sft.batch_size} demonstrations, learning rate {sft.learning_rate}",
        "preferences": f"{preferences.steps} steps of {preferences.kind}, {preferences.dataset_file}"
        if preferences.steps
        else "",
        "RL": f"{config.steps} steps of {algorithm.groups_per_batch} tasks x {algorithm.group_size} episodes, "
        f"advantage {algorithm.advantage_estimator}, learning rate {algorithm.learning_rate}",
    }
    shown = "\n".join(f"{name:<12}{text}" for name, text in lines.items() if text)
    return escape_control_characters(shown)


def _curves(metrics: Sequence[Mapping[str, Any]], config: TrainConfig) -> str:
    """Return a line for each numeric metric: its curve, first value and last value.

    A metric of `train/` has a line for each phase, because the phases have different losses.
    """
    if not metrics:
        return "no step is complete yet"
    names = dict.fromkeys([*MAIN_METRICS, *itertools.chain(*metrics)])
    spans = {PHASE_TITLES[span.name]: span for span in phase_spans(config)}
    series = {name: _numbers(metrics, name) for name in names if name != "step" and not name.startswith("train/")}
    for name in (name for name in names if name.startswith("train/")):
        for title, span in spans.items():
            steps = [line for line in metrics if span.first_step <= line["step"] <= span.last_step]
            series[f"{name} {title}"] = _numbers(steps, name)
    rows = [
        f"{name:<36} {sparkline(values):<{_WIDTH}} {values[0]:>9.4g} -> {values[-1]:<9.4g}"
        for name, values in series.items()
        if values and not name.startswith("health/")
    ]
    return "\n".join([f"step {metrics[-1]['step']}; first and last value of each metric", *rows])


def _health(folder: Path, metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return the latest health warning of each check, and the number of steps in which the check failed."""
    last = {warning["check"]: warning for warning in read_warnings(folder)}
    lines = list_damaged_lines(folder)
    for check, warning in last.items():
        steps = sum(line.get(f"health/{check}") == 1.0 for line in metrics)
        times = "1 step" if steps == 1 else f"{steps} steps"
        head = f"{check}: failed in {times}, latest warning at step {warning['step']}"
        lines += [f"{head}: {warning['text']}", f"    {warning['remedy']}"]
    return "\n".join(["health", *lines]) if lines else ""


def _numbers(metrics: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    values = (line.get(name) for line in metrics)
    return [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]


def _result(folder: Path) -> str:
    path = folder / "result.md"
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def _episode_file(folder: Path, step: int | None) -> Path | None:
    if step is not None:
        return episode_file(folder, step)
    files = episode_files(folder)
    return files[max(files)] if files else None


def _some_episodes(file: Path | None) -> str:
    """Return a file's damaged lines, then its first successful and its first unsuccessful episode, as text."""
    if file is None:
        return ""
    episodes, damaged = read_numbered_trajectories(file)
    chosen = {e.score is not None and e.score.reward >= 1.0: (n, e) for n, e in reversed(episodes.items())}
    shown = [_titled(file, n, episode) for n, episode in sorted(chosen.values(), key=lambda pair: pair[0])]
    return "\n\n".join([*damaged.values(), *shown])


def format_episode(file: Path, number: int) -> str:
    """Return an episode of a file as text, by its number from 1. Raise ConfigError if it does not exist."""
    episodes, damaged = read_numbered_trajectories(file)
    if number not in episodes:
        none = f"{file} has no episode {number}; it has 1 to {max(episodes, default=0)}"
        raise ConfigError(damaged.get(number, none))
    return "\n\n".join([*damaged.values(), _titled(file, number, episodes[number])])


def list_episodes(file: Path) -> str:
    """Return the titles of the episodes of a file, each with its number, as text."""
    episodes, damaged = read_numbered_trajectories(file)
    titles = (f"{number:>6}  {format_episode_title(episode)}" for number, episode in episodes.items())
    return escape_control_characters("\n".join([*damaged.values(), *titles]))


def _titled(file: Path, number: int, episode: Trajectory) -> str:
    return escape_control_characters(
        f"{file.stem}, episode {number}: {format_episode_title(episode)}\n{format_transcript(episode.messages)}"
    )


def format_episode_title(episode: Trajectory) -> str:
    """Return an episode's task, reward and end as one line."""
    if episode.is_ungraded:
        return f"{episode.task_id}: not graded, {episode.stop_reason}, {episode.num_turns} turns"
    if episode.score is None:
        return f"{episode.task_id}: no score ({episode.fault}: {episode.error})"
    parts = ", ".join(f"{name} {value:g}" for name, value in episode.score.parts.items())
    bonus = f" and shaping bonus {episode.score.shaping_bonus:g}" if episode.score.shaping_bonus else ""
    reward = f"reward {episode.score.reward:g}{bonus} ({parts})"
    return f"{episode.task_id}: {reward}, {episode.stop_reason}, {episode.num_turns} turns"
