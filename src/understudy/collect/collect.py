"""Collect: episodes of an agent, and from them files of what is learned from them."""

import asyncio
import functools
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from understudy.agent import Agent, ChatAgent, EngineAgent
from understudy.chat import Payer, Usage
from understudy.collect.episodes import Played, stored, unfinished
from understudy.collect.lessons import By, balanced, demonstrations, judged, preferences
from understudy.config import TrainConfig
from understudy.data.write import output
from understudy.domains.base import TaskSource
from understudy.domains.mixture import shown
from understudy.errors import ConfigError, TaskError
from understudy.evaluate import Progress, episodes, held_out, inhabited
from understudy.kept import PAID, Kept, bare, caching, worth_resuming
from understudy.players import asked, named_agent, open_model
from understudy.purse import Purse, refuse_unpriced
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
    what: Played,
    source: TaskSource,
    out: Path,
    checkpoint: Path | None,
    concurrency: int,
    progress: Progress,
    cap: Decimal = Decimal(0),
) -> tuple[Kept[Played], list[Trajectory], dict[str, Usage]]:
    """Episodes of an agent, where they are kept until they are written as lessons beside `out`, and what was spent.

    Once agent and users have cost `cap`, over all attempts, that is a `ConfigError`; 0 sets none.
    """
    folder = unfinished(out)
    config = caching(what.config, folder)
    refuse_unpriced(cap, asked(what.agent, config))
    tasks = held_out(source, what.split, what.tasks, what.seed)
    if not tasks:
        raise ConfigError(f"{config.domain} has no {what.split} tasks in this slice")
    purse = Purse(cap, folder / PAID)
    users = Cast(config.user, purse.of("users"))
    agent = _agent(what.agent, config, checkpoint, purse.of("agent"))
    kept = Kept(folder, what, bare=True)  # what is learned from a conversation is its messages
    at_once, there = 1 if config.user.kind == "human" else concurrency, inhabited(source, users)
    playing = episodes(there, agent, tasks, config.limits, what.trials, what.seed, at_once, progress, kept)
    try:
        played = asyncio.run(playing)
    except ConfigError as e:
        if worth_resuming(folder):
            raise ConfigError(f"{e}; what has ended is kept, and --resume goes on with it") from e
        kept.remove()
        raise
    spent = {"users": users.usage, "agent": agent.usage if isinstance(agent, ChatAgent) else Usage()}
    return kept, played, purse.used(spent)


def of_run(run: Path, source: TaskSource, even_held_out: bool) -> list[Trajectory]:
    """The episodes that a run has stored. One of a held-out task is a `ConfigError`, unless they are wanted too."""
    episodes = [bare(episode) for episode in stored(run)]
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
    episodes: Sequence[Trajectory], source: TaskSource, outputs: Mapping[str, Path], how: Selection
) -> tuple[str, bool]:
    """Write lessons of each kind (`out`, `preferences`, `judged`) to its file.

    What there is of them, as text, and whether there is something in each; a file of nothing is not written. Where
    there is nothing for any, that is a `TaskError`.
    """
    tools = functools.partial(shown, source)
    makers: dict[str, Any] = {
        "out": demonstrations,
        "preferences": functools.partial(preferences, most=how.pairs),
        "judged": judged,
    }
    made = {path: makers[name](episodes, tools) for name, path in outputs.items()}
    kept = {path: balanced(each, how.most, how.by, how.seed) if how.most else each for path, each in made.items()}
    text = "\n".join(f"{path}: {len(lessons.found):,}\n{lessons}" for path, lessons in kept.items())
    if not any(lessons.found for lessons in kept.values()):
        raise TaskError(f"of {len(episodes)} episodes there is none to write\n{text}")
    for path, lessons in kept.items():
        if lessons.found:
            with output(path, resume=True) as file:
                for _, lesson in lessons.found:
                    file.write(lesson)
    return text, all(lessons.found for lessons in kept.values())


def _agent(name: str, config: TrainConfig, checkpoint: Path | None, payer: Payer) -> Agent:
    """The agent by its name; a model samples as it does in training, so that trials of a task differ."""
    if name != "model":
        return named_agent(name, config, payer=payer)
    return EngineAgent(*open_model(config, checkpoint), config.sampling)


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
