"""Scenes: the episodes of a run's step with what is known of where they were played."""

from functools import lru_cache
from pathlib import Path

from understudy.config import TrainConfig
from understudy.domains.base import Slice, TaskSource, find
from understudy.domains.recall import recall
from understudy.errors import ConfigError, TaskError
from understudy.run import episode_file, read_config
from understudy.trajectory import Trajectory, read_trajectories
from understudy.viewer.episode import Scene
from understudy.viewer.voice import voice_of


def episodes_of(folder: Path, step: int) -> tuple[Trajectory, ...]:
    """The episodes that a run keeps of a step; a ConfigError where it keeps none."""
    file = episode_file(folder, step)
    stat = file.stat()
    return _read(file, stat.st_mtime_ns, stat.st_size)


def scene(folder: Path, step: int, number: int) -> Scene:
    """The scene of a step's episode, counted from 1; a ConfigError where there is none."""
    episodes = episodes_of(folder, step)
    if not 1 <= number <= len(episodes):
        raise ConfigError(f"step {step} of {folder} has no episode {number}; it has 1 to {len(episodes)}")
    return _set(episodes[number - 1], read_config(folder), folder)


def _set(episode: Trajectory, config: TrainConfig, folder: Path) -> Scene:
    voice, scripted = voice_of(config, folder), config.user.kind == "scripted"
    try:
        source = _source(config.domain, config.slice)
        task = recall(source, episode.task)
    except (ConfigError, TaskError):
        return Scene(episode, None, None, scripted, voice)
    return Scene(episode, task, source, scripted, voice)


@lru_cache(maxsize=8)
def _read(file: Path, changed: int, size: int) -> tuple[Trajectory, ...]:
    return tuple(read_trajectories(file)[0])


@lru_cache(maxsize=8)
def _source(name: str, part: Slice) -> TaskSource:
    return find(name).slice(part)
