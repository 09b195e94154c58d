"""Stored episodes with their config and tasks: those of a training step, of an evaluation, or of a run's evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.files import cached_until_changed
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory, read_numbered_trajectories
from understudy.envs.task_source import TaskSource
from understudy.runs.config import TrainConfig
from understudy.runs.eval_spec import is_eval_folder, read_spec
from understudy.runs.run import episode_file, episode_files, eval_set_of, list_run_evaluations, read_run_config
from understudy.runs.storage.episode_store import EPISODES_FILE
from understudy.runs.storage.task_store import read_stored_tasks

NumberedEpisodes = tuple[Mapping[int, Trajectory], Mapping[int, str]]
"""The episodes of a file and the errors of its damaged lines, both by line number."""


@dataclass(frozen=True)
class StoredEpisodes:
    """Stored episodes by number. The number is that of their line, from 1."""

    folder: Path
    name: str
    """Name among the episodes of the folder: `12` is a training step, `000010 sft` an evaluation of the run. Empty
    for the folder of an evaluation."""
    config: TrainConfig
    """Config that they were played with."""
    episodes: Mapping[int, Trajectory]
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """Stored tasks by id."""
    damaged_lines: Mapping[int, str] = field(default_factory=dict)
    """Error of each damaged line, by its number."""

    @property
    def step(self) -> int | None:
        """Training step that used them. None for an evaluation."""
        return int(self.name) if self.name.isdecimal() else None

    @property
    def is_preferences(self) -> bool:
        """True if they are conversations of a step of DPO or KTO."""
        return self.step is not None and self.config.sft.steps < self.step <= self.config.steps_before_rl

    @property
    def label(self) -> str:
        """Name for texts, such as `step 12`; empty for the folder of an evaluation."""
        return f"step {self.name}" if self.step is not None else self.name

    @property
    def eval_set(self) -> str:
        """Name of the eval set if they are of `eval.ood_domains` or `data.tests`; else empty."""
        return eval_set_of(self.name)

    @property
    def scripted_users(self) -> bool:
        """True if the users were scripted."""
        return self.config.user.kind == "scripted"

    @property
    def source(self) -> TaskSource:
        """The slice of the domain that they were played in. Raise ConfigError if it cannot be loaded."""
        return _source(self.config.model_dump_json(include={"domain", "data", "slice", "reward"}))

    def episode(self, number: int) -> Trajectory:
        """Return an episode. Raise ConfigError if it does not exist or its line is damaged."""
        if number in self.damaged_lines:
            raise ConfigError(self.damaged_lines[number])
        if number not in self.episodes:
            where = f"{self.folder} has no episode {number}" + (f" of {self.label}" if self.label else "")
            raise ConfigError(f"{where}; it has 1 to {max(self.episodes, default=0)}")
        return self.episodes[number]

    def task(self, episode: Trajectory) -> Task | None:
        """Return the task of an episode, or None if it is not stored."""
        return self.tasks.get(episode.task_id)


def open_stored_episodes(folder: Path, name: str = "") -> StoredEpisodes:
    """Open the episodes in the folder of an evaluation or a run.

    In a run, `name` is a step, such as `12`, or an evaluation, such as `000010 sft`. Raise ConfigError if no episodes
    are stored under this name.
    """
    if is_eval_folder(folder):
        if name:
            raise ConfigError(f"{folder} is an evaluation, whose episodes belong to no step; leave out {name!r}")
        return _open_evaluation(folder, folder, "")
    config = read_run_config(folder)
    if name.isdecimal():
        episodes, damaged = _read(episode_file(folder, int(name)))
        return StoredEpisodes(folder, name, config, episodes, read_stored_tasks(folder), damaged)
    evaluation = next((each for each in list_run_evaluations(folder) if each.name == name), None)
    if evaluation is None:
        stored = "; ".join(list_stored_names(folder)) or "none"
        raise ConfigError(f"{folder} stores no episodes of {name!r}; stored: {stored}")
    return _open_evaluation(evaluation.folder, folder, name)


def list_stored_names(folder: Path) -> list[str]:
    """Return the names of a run's evaluations and of its steps with stored episodes.

    The order is: evaluations, evaluations on other eval sets, steps. Within each kind the last comes first.
    """
    evaluations = sorted(list_run_evaluations(folder), key=lambda each: (bool(each.eval_set), -each.step))
    steps = sorted(episode_files(folder), reverse=True)
    return [*(each.name for each in evaluations), *map(str, steps)]


def _open_evaluation(evaluation: Path, folder: Path, name: str) -> StoredEpisodes:
    episodes, damaged = _read(evaluation / EPISODES_FILE)
    tasks = read_stored_tasks(evaluation)
    return StoredEpisodes(folder, name, read_spec(evaluation).config, episodes, tasks, damaged)


@cached_until_changed(4)
def _read(file: Path) -> NumberedEpisodes:
    return read_numbered_trajectories(file) if file.is_file() else ({}, {})


@lru_cache(maxsize=8)
def _source(config_json: str) -> TaskSource:
    return TrainConfig.model_validate_json(config_json).open_source()
