"""A run, as plain text: what ran, how it went, the result, and episodes to read."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.messages import Message, ToolCall
from understudy.metrics import named
from understudy.prompt import printable
from understudy.run import episode_file, episode_files, read_config, read_metrics, read_warnings
from understudy.trajectory import Trajectory, numbered_trajectories

FIRST = ("reward/average_reward", "reward/success_rate")
"""Metrics that are looked at first."""
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40


def view(folder: Path, step: int | None = None, episode: int | None = None) -> str:
    """A run's summary, or one of its episodes in full (counted from 1; of the last step kept unless one is given)."""
    config = read_config(folder)
    file = _episode_file(folder, step)
    if episode is not None or step is not None:
        return _episode(file, 1 if episode is None else episode)
    metrics = [named(line) for line in read_metrics(folder)]  # those of runs from before names had spaces
    sections = [_head(folder, config), _curves(metrics), _health(folder, metrics), _result(folder)]
    sections.append(_some_episodes(file))
    return "\n\n".join(section for section in sections if section)


def transcript(messages: Sequence[Message]) -> str:
    """A conversation to read."""
    return "\n".join(line for message in messages for line in message_lines(message))


def message_lines(message: Message) -> Iterator[str]:
    """One message: who, then what was said and done."""
    if message.content or not message.tool_calls:
        first, *rest = message.content.strip().splitlines() or ["(nothing)"]
        yield f"{message.role:>9} | {first}"
        yield from (f"{'':>9} | {line}" for line in rest)
    for call in message.tool_calls:
        yield f"{message.role:>9} > {call_text(call)}"


def call_text(call: ToolCall) -> str:
    """A call as `play` reads it."""
    if call.malformed:
        return f"{call.name} (malformed: {call.malformed})"
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """A curve in one line; where there are more values than `width`, each bar is a mean."""
    size = -(-len(values) // width)
    means = [sum(chunk) / len(chunk) for chunk in (values[i : i + size] for i in range(0, len(values), size))]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in means)


def _head(folder: Path, config: TrainConfig) -> str:
    sft, preferences, algorithm = config.sft, config.preferences, config.algorithm
    lines = {
        "run": str(folder),
        "domain": " ".join([config.domain, *config.slice.families, *config.slice.difficulties]),
        "model": f"{config.model}, {config.engine.finetune}, seed {config.seed}",
        "warm start": f"{sft.steps} steps of {sft.batch_size} demonstrations, learning rate {sft.learning_rate:g}",
        "preferred": f"{preferences.steps} steps of {preferences.kind}, {preferences.file}"
        if preferences.steps
        else "",
        "training": f"{config.steps} steps of {algorithm.tasks_per_step} tasks x {algorithm.group_size} episodes, "
        f"advantage {algorithm.advantage}, learning rate {algorithm.learning_rate:g}",
    }
    return "\n".join(f"{name:<11}{text}" for name, text in lines.items() if text)


def _curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Each metric that is a number: its curve, its first and its last value."""
    if not metrics:
        return "no step is done yet"
    names = dict.fromkeys([*FIRST, *itertools.chain(*metrics)])
    series = {name: _numbers(metrics, name) for name in names if name != "step"}
    rows = [
        f"{name:<36} {sparkline(values):<{_WIDTH}} {values[0]:>9.4g} -> {values[-1]:<9.4g}"
        for name, values in series.items()
        if values and not name.startswith("health/")
    ]
    return "\n".join([f"step {metrics[-1]['step']}; first and last value of each metric", *rows])


def _health(folder: Path, metrics: Sequence[Mapping[str, Any]]) -> str:
    """What was wrong with the run, the last of each kind, and in how many steps it was."""
    last = {warning["check"]: warning for warning in read_warnings(folder)}
    lines = []
    for check, warning in last.items():
        steps = sum(line.get(f"health/{check}") == 1.0 for line in metrics)
        head = f"{check}, in {steps} steps, the last time since step {warning['step']}"
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
    """The first episode that succeeded and the first that did not."""
    if file is None:
        return ""
    episodes, damaged = numbered_trajectories(file)
    chosen = {_succeeded(e): (n, e) for n, e in reversed(episodes.items())}
    shown = [_titled(file, n, episode) for n, episode in sorted(chosen.values(), key=lambda pair: pair[0])]
    return "\n\n".join([*damaged.values(), *shown])


def _episode(file: Path | None, number: int) -> str:
    if file is None:
        raise ConfigError("the run keeps no episodes yet")
    episodes, damaged = numbered_trajectories(file)
    if number not in episodes:
        none = f"{file} has no episode {number}; it has 1 to {max(episodes, default=0)}"
        raise ConfigError(damaged.get(number, none))
    return "\n\n".join([*damaged.values(), _titled(file, number, episodes[number])])


def _succeeded(episode: Trajectory) -> bool:
    return episode.score is not None and episode.score.reward >= 1.0


def _titled(file: Path, number: int, episode: Trajectory) -> str:
    return printable(f"{file.stem}, episode {number}: {episode_title(episode)}\n{transcript(episode.messages)}")


def episode_title(episode: Trajectory) -> str:
    """The task, and how it ended."""
    if episode.score is None:
        return f"{episode.task}: no score ({episode.fault}: {episode.error})"
    parts = ", ".join(f"{name} {value:g}" for name, value in episode.score.parts.items())
    credit = f" and {episode.score.credit:g} credit" if episode.score.credit else ""
    return f"{episode.task}: reward {episode.score.reward:g}{credit} ({parts}), {episode.stop}, {episode.turns} turns"
