"""Collect: episodes of an agent, and from them files of what is learned from them."""

import asyncio
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy.agent import Agent, EngineAgent
from understudy.collect.episodes import Kept, Played, Progress, played, stored
from understudy.collect.lessons import By, Lessons, balanced, demonstrations, judged, preferences
from understudy.data.write import output
from understudy.domains.base import TaskSource, find
from understudy.domains.mixture import shown
from understudy.errors import ConfigError, TaskError
from understudy.evaluate import held_out, inhabited, named_agent, open_model
from understudy.records import Record
from understudy.tasks import Split
from understudy.trajectory import Trajectory
from understudy.users import Cast

HELD_OUT: tuple[Split, ...] = ("validation", "test")


class Selection(Record):
    """What is taken of the episodes."""

    pairs: int = 4
    """Pairs of a task, at most."""
    most: int = 0
    """At most so many of each `by`; 0 takes all."""
    by: By = "family"
    seed: int = 0


def play_now(
    what: Played, out: Path, checkpoint: Path | None, concurrency: int, resume: bool, progress: Progress
) -> tuple[Kept, list[Trajectory]]:
    """Episodes of an agent, and where they are kept until they are written as lessons beside `out`."""
    config = what.config
    source = find(config.domain).slice(config.slice)
    tasks = held_out(source, what.split, what.tasks, what.seed)
    if not tasks:
        raise ConfigError(f"{config.domain} has no {what.split} tasks in this slice")
    agent = _agent(what, checkpoint)
    kept = Kept(out, what, resume)
    at_once = 1 if config.user.kind == "human" else concurrency
    users = inhabited(source, Cast(config.user))
    return kept, asyncio.run(played(users, agent, tasks, config.limits, what, kept, at_once, progress))


def of_run(run: Path, source: TaskSource, even_held_out: bool) -> list[Trajectory]:
    """The episodes that a run has stored. One of a held-out task is a `ConfigError`, unless they are wanted too."""
    episodes = list(stored(run))
    held = {task.id for split in HELD_OUT for task in source.tasks(split)}
    if not even_held_out and (found := [episode.task for episode in episodes if episode.task in held]):
        raise ConfigError(f"{run} has episodes of held-out tasks, such as {found[0]}; {_LOUD}")
    return episodes


def refuse_held_out(split: Split, even_held_out: bool) -> None:
    """Tasks that measure are not learned from, unless that is asked for."""
    if split in HELD_OUT and not even_held_out:
        raise ConfigError(f"{split} tasks are there to measure what was learned; {_LOUD}")


_LOUD = "what learns from them cannot be measured by them any more. If you want that, say --even-held-out"


def write(
    episodes: Sequence[Trajectory], source: TaskSource, outputs: Mapping[str, Path], how: Selection, resume: bool
) -> str:
    """Write lessons of each kind (`out`, `preferences`, `judged`) to its file; what there is of them, as text."""
    tools = functools.partial(shown, source)
    makers: dict[str, Any] = {
        "out": demonstrations,
        "preferences": functools.partial(preferences, most=how.pairs),
        "judged": judged,
    }
    found = {path: makers[name](episodes, tools) for name, path in outputs.items()}
    texts = []
    for path, lessons in found.items():
        kept = balanced(lessons, how.most, how.by, how.seed) if how.most else lessons
        if not kept.found:
            raise TaskError(f"{path}: of {len(episodes)} episodes there is none to write:\n{kept}")
        texts.append(f"{path}: {len(kept.found):,}\n{kept}")
        _write(kept, path, resume)
    return "\n".join(texts)


def _write(lessons: Lessons[Any], path: Path, resume: bool) -> None:
    with output(path, resume=resume) as made:
        for _, lesson in lessons.found:
            made.write(lesson)


def _agent(what: Played, checkpoint: Path | None) -> Agent:
    """The agent by its name; a model samples as it does in training, so that trials of a task differ."""
    if what.agent != "model":
        return named_agent(what.agent, what.config)
    return EngineAgent(*open_model(what.config, checkpoint), what.config.sampling)


def refuse_existing_outputs(paths: Iterable[Path]) -> None:
    """Files are JSONL, each its own, and none is written over."""
    seen = set[Path]()
    for path in paths:
        if path.suffix != ".jsonl":
            raise ConfigError(f"{path}: conversations are written as .jsonl")
        if path in seen or path.exists():
            raise ConfigError(f"{path} is there already; give another name, or remove it")
        if not path.parent.is_dir():
            raise ConfigError(f"there is no folder {path.parent} to write {path.name} to")
        seen.add(path)
