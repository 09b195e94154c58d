"""Shelf: where stored episodes stand, those of a run's step or those of an evaluation, with what made them."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from understudy.assess.sitting import TASKS, begun
from understudy.config import TrainConfig
from understudy.domains.base import Slice, TaskSource, find
from understudy.domains.recall import recall
from understudy.errors import ConfigError, TaskError
from understudy.kept import EPISODES
from understudy.run import episode_file, read_config
from understudy.tasks import Task, read_tasks
from understudy.trajectory import Trajectory, numbered_trajectories
from understudy.viewer.advantages import advantages
from understudy.viewer.episode import Scene
from understudy.viewer.group import grouped, neighbours
from understudy.viewer.voice import Voice, voice_of


@dataclass(frozen=True)
class Shelf:
    """Episodes by number: that of their line, from 1."""

    folder: Path
    config: TrainConfig
    step: int | None
    """The step of a run; None for an evaluation."""
    episodes: Mapping[int, Trajectory]
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """By id, where they are stored with the episodes."""

    def episode(self, number: int) -> Trajectory:
        """One episode; a ConfigError where there is none."""
        if number not in self.episodes:
            raise ConfigError(f"{self.folder} has no episode {number}; it has 1 to {max(self.episodes, default=0)}")
        return self.episodes[number]

    def scene(self, number: int) -> Scene:
        """One episode with what is known of where it was played."""
        episode, scripted = self.episode(number), self.config.user.kind == "scripted"
        try:
            source = _source(self.config.domain, self.config.slice)
            task = self.tasks.get(episode.task) or recall(source, episode.task)
        except (ConfigError, TaskError):
            return Scene(episode, None, None, scripted)
        return Scene(episode, task, source, scripted)

    def group(self, number: int) -> dict[int, Trajectory]:
        """The episodes of the same task: of a step those that are learned from together, of an evaluation all."""
        mine = self.episode(number)
        if self.step is None:
            return {each: episode for each, episode in self.episodes.items() if episode.task == mine.task}
        numbers = neighbours(self.episodes, number, self.config.algorithm.group_size)
        return {each: self.episodes[each] for each in numbers}

    def voice(self) -> Voice | str:
        """What makes text of the tokens, or why there is nothing that does."""
        return voice_of(self.config, self.folder)

    def advantages(self) -> dict[int, float | None]:
        """Of every episode of a step; of an evaluation nobody learns, and so they have none."""
        if self.step is None:
            return {}
        groups = grouped(self.episodes, self.config.algorithm.group_size)
        known = advantages([[self.episodes[number] for number in group] for group in groups], self.config)
        pairs = zip(groups, known or (), strict=False)
        return {number: value for numbers, values in pairs for number, value in zip(numbers, values, strict=True)}

    def fork(self, number: int) -> str:
        """The command that goes on with an episode of a run, up to the turn; "" for an evaluation."""
        if self.step is None:
            return ""
        return f"understudy play {shlex.quote(str(self.folder))} --fork {self.step}/{number}@"


def of_step(run: Path, step: int) -> Shelf:
    """The episodes that a run keeps of a step; a ConfigError where it keeps none."""
    return Shelf(run, read_config(run), step, _read(episode_file(run, step)))


def of_evaluation(folder: Path) -> Shelf:
    """The episodes of an evaluation's folder; a ConfigError where it holds none."""
    tasks = {task.id: task for task in read_tasks(folder / TASKS)} if (folder / TASKS).is_file() else {}
    return Shelf(folder, begun(folder).config, None, _read(folder / EPISODES), tasks)


def _read(file: Path) -> Mapping[int, Trajectory]:
    stat = file.stat()
    return _read_as_it_is(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _read_as_it_is(file: Path, changed: int, size: int) -> Mapping[int, Trajectory]:
    return numbered_trajectories(file)[0]


@lru_cache(maxsize=8)
def _source(name: str, part: Slice) -> TaskSource:
    return find(name).slice(part)
