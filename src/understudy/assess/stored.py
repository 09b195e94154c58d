"""Stored: episodes on disk with what made them, of an evaluation's folder, or of one step or evaluation of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from understudy.assess.sitting import TASKS, begun
from understudy.checkpoints import damage
from understudy.config import TrainConfig
from understudy.domains.base import Slice, TaskSource, find
from understudy.domains.recall import recall
from understudy.errors import ConfigError, TaskError
from understudy.kept import EPISODES, HEAD
from understudy.run import OF_TESTS, episode_file, episode_files, evaluation_files, read_config
from understudy.settings import dump, parse
from understudy.tasks import Task, read_tasks
from understudy.trajectory import Trajectory, numbered_trajectories
from understudy.weights import config_of, last_weights

Lines = tuple[Mapping[int, Trajectory], Mapping[int, str]]
"""The episodes of a file by the numbers of their lines, and what is wrong with the others."""


@dataclass(frozen=True)
class Stored:
    """Episodes by number: that of their line, from 1."""

    folder: Path
    name: str
    """Which of the folder's they are: `12` of a step of training, `000010 warm start` of an evaluation of the run; ""
    of an evaluation's own folder, which has no others."""
    config: TrainConfig
    """What they were played with: domain and slice are theirs."""
    episodes: Mapping[int, Trajectory]
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """By id, where they are stored with the episodes."""
    damaged: Mapping[int, str] = field(default_factory=dict)
    """What is wrong with a line that holds none, by its number."""

    @property
    def step(self) -> int | None:
        """The step of training that they were learned from; None where they are an evaluation's."""
        return int(self.name) if self.name.isdecimal() else None

    @property
    def says(self) -> str:
        """Which they are, in words; "" where there are no others."""
        return f"step {self.name}" if self.step is not None else self.name

    @property
    def of_tests(self) -> bool:
        """Whether they were played in the domains that a run never trains on."""
        return self.name.endswith(OF_TESTS)

    @property
    def scripted(self) -> bool:
        """Whether their users needed no model."""
        return self.config.user.kind == "scripted"

    @property
    def source(self) -> TaskSource:
        """Where they were played; a `ConfigError` where that is not at hand."""
        return _source(self.config.domain, self.config.slice)

    def episode(self, number: int) -> Trajectory:
        """One episode; a `ConfigError` where there is none."""
        if number in self.damaged:
            raise ConfigError(self.damaged[number])
        if number not in self.episodes:
            where = f"{self.folder} has no episode {number}" + (f" of {self.says}" if self.says else "")
            raise ConfigError(f"{where}; it has 1 to {max(self.episodes, default=0)}")
        return self.episodes[number]

    def task(self, episode: Trajectory) -> Task | None:
        """The task of an episode; None where the source has none of its id any more."""
        return self.tasks.get(episode.task) or recall(self.source, episode.task)


def open_stored(folder: Path, name: str = "") -> Stored:
    """The episodes of that name in the folder of a run, or those in an evaluation's, which have none.

    A `ConfigError` where there are none of that name.
    """
    if (folder / HEAD).is_file():
        if name:
            raise ConfigError(f"{folder} is an evaluation, whose episodes are of no step; leave out {name!r}")
        episodes, damaged = _read(folder / EPISODES)
        return Stored(folder, "", begun(folder).config, episodes, _tasks(folder / TASKS), damaged)
    config = read_config(folder)
    if name.isdecimal():
        episodes, damaged = _read(episode_file(folder, int(name)))
        return Stored(folder, name, config, episodes, damaged=damaged)
    files = evaluation_files(folder)
    if name not in files:
        kept = "; ".join(stored_names(folder)) or "none"
        raise ConfigError(f"{folder} keeps no episodes of {name!r}; it does of: {kept}")
    played_on = _of_tests(config) if name.endswith(OF_TESTS) else config
    episodes, damaged = _read(files[name])
    return Stored(folder, name, played_on, episodes, damaged=damaged)


def stored_names(folder: Path) -> list[str]:
    """Of which evaluations and steps a run keeps episodes: evaluations first, the last before those before it."""
    evaluations = sorted(
        evaluation_files(folder), key=lambda name: (name.endswith(OF_TESTS), -int(name.partition(" ")[0]))
    )
    return [*evaluations, *(str(step) for step in sorted(episode_files(folder), reverse=True))]


def config_of_stored(what: str, settings: Sequence[str] = ()) -> TrainConfig:
    """As `config_of`, and that of an evaluation where `what` is the folder of one."""
    if Path(what, HEAD).is_file():
        return parse(TrainConfig, dump(begun(Path(what)).config), settings)
    return config_of(what, settings)


def weights_of_stored(what: str) -> Path | None:
    """The checkpoint that an evaluation was of, or a run's last one; None where there is none."""
    if not Path(what, HEAD).is_file():
        return last_weights(what)
    named = begun(Path(what)).checkpoint
    if named and (fault := damage(Path(named))):
        raise ConfigError(f"the checkpoint {named} that {what} evaluated is damaged or gone ({fault}); name a --model")
    return Path(named) if named else None


def _of_tests(config: TrainConfig) -> TrainConfig:
    """The config with the domains that are never trained on in the place of those that are."""
    return config.replace(domain=f"mix:{','.join(config.eval.tests)}", slice=config.test_slice)


def _tasks(file: Path) -> dict[str, Task]:
    try:
        return {task.id: task for task in read_tasks(file)} if file.is_file() else {}
    except TaskError as e:
        raise ConfigError(str(e)) from e


def _read(file: Path) -> Lines:
    if not file.is_file():
        return {}, {}
    stat = file.stat()
    return _read_as_it_is(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _read_as_it_is(file: Path, changed: int, size: int) -> Lines:
    return numbered_trajectories(file)


@lru_cache(maxsize=8)
def _source(name: str, part: Slice) -> TaskSource:
    return find(name).slice(part)
