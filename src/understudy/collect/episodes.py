"""Where episodes come from: an agent that plays now, or the trajectories that a run has stored.

What is played is kept as it ends, in the folder `NAME.episodes` beside the output: `played.json`, which says what is
played, and `episodes.jsonl`. So an interrupted attempt is gone on with, and no reply of an endpoint is paid twice. An
episode that failed through no fault of the agent is not kept, and is played again.
"""

import asyncio
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from understudy.agent import Agent
from understudy.config import TrainConfig, differences
from understudy.domains.base import TaskSource
from understudy.errors import ConfigError
from understudy.records import Record
from understudy.rollout import Limits, episode_seed, play
from understudy.run import write_whole
from understudy.tasks import Split, Task
from understudy.trajectory import Stop, Trajectory, read_trajectories, write_trajectories

Progress = Callable[[int, int], None]


class Played(Record):
    """What is played. Episodes of something else are never mixed in."""

    agent: str
    split: Split
    tasks: int
    trials: int
    seed: int
    config: TrainConfig


def unfinished(out: Path) -> Path:
    """Where the episodes of an attempt are kept until `out` is written."""
    return out.with_name(f"{out.name}.episodes")


def refuse_unfinished(out: Path, resume: bool) -> None:
    """An attempt that was interrupted is gone on with when that is asked for, and never begun anew by chance."""
    if (folder := unfinished(out)).exists() and not resume:
        raise ConfigError(f"{folder} is unfinished; go on with it by --resume, or remove it")


class Kept:
    """The episodes that have ended so far."""

    def __init__(self, out: Path, what: Played) -> None:
        self.folder = unfinished(out)
        self._file = self.folder / "episodes.jsonl"
        self.folder.mkdir(exist_ok=True)
        self._begin(what)
        self._whole_lines()
        self.episodes = {(episode.task, episode.seed): episode for episode in _read(self._file)}

    def add(self, episode: Trajectory) -> None:
        """An episode that has ended, without its tokens: what is learned from a conversation is its messages."""
        bare = replace(episode, tokens=[], mask=[], logprobs=[])
        self.episodes[(episode.task, episode.seed)] = bare
        write_trajectories(self._file, [bare])

    def remove(self) -> None:
        """All is written elsewhere."""
        shutil.rmtree(self.folder)

    def _begin(self, what: Played) -> None:
        head = self.folder / "played.json"
        if not head.exists():
            write_whole(head, what.model_dump_json(indent=1) + "\n")
        if changed := differences(_head(head), what):
            text = f"{self.folder} was begun with other options (its own, and those given): {'; '.join(changed)}"
            raise ConfigError(f"{text}; give its own, or remove it to begin anew")

    def _whole_lines(self) -> None:
        """Drop a line that was cut off."""
        self._file.touch()
        text = self._file.read_bytes()
        self._file.write_bytes(text[: text.rfind(b"\n") + 1])


async def played(
    domain: TaskSource,
    agent: Agent,
    tasks: Sequence[Task],
    limits: Limits,
    what: Played,
    kept: Kept,
    concurrency: int,
    on_progress: Progress,
) -> list[Trajectory]:
    """The episodes of all tasks, `what.trials` each, at most `concurrency` at a time; those that are kept stay.

    An episode's seed is its task's and trial's, so that it is the same whatever is played beside it.
    """
    gate, done = asyncio.Semaphore(concurrency), itertools.count(1)

    async def episode(task: Task, trial: int) -> Trajectory:
        seed = episode_seed(what.seed, task, trial)
        ended = kept.episodes.get((task.id, seed))
        if ended is None:
            async with gate:
                ended = replace(await play(domain, task, agent, limits, seed), seed=seed)  # also of a second attempt
            if ended.stop is not Stop.FAULT:
                kept.add(ended)
        on_progress(next(done), len(tasks) * what.trials)
        return ended

    return list(await asyncio.gather(*(episode(task, trial) for task in tasks for trial in range(what.trials))))


def stored(run: Path) -> Iterator[Trajectory]:
    """The episodes of a run, step by step. A damaged line is a `ConfigError`."""
    files = sorted((run / "trajectories").glob("*.jsonl"))
    if not files:
        raise ConfigError(f"{run} has stored no episodes; give --agent to play some")
    for file in files:
        yield from _read(file)


def _head(file: Path) -> Played:
    try:
        return Played.model_validate_json(file.read_bytes())
    except ValidationError as e:
        raise ConfigError(f"{file} is damaged; remove its folder to begin anew") from e


def _read(file: Path) -> list[Trajectory]:
    whole, damaged = read_trajectories(file)
    if damaged:
        raise ConfigError(damaged[0])
    return whole
