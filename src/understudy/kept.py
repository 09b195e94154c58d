"""Episodes that are kept as they end, so that an attempt which is interrupted, even by a kill, is gone on with.

A folder with `played.json`, which says what is played, and `episodes.jsonl`. An episode that failed through no fault of
the agent is not kept, and is played again. Episodes of something else are never mixed in.
"""

import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from understudy.config import TrainConfig, differences
from understudy.errors import ConfigError
from understudy.records import Record
from understudy.run import write_whole
from understudy.trajectory import Stop, Trajectory, read_trajectories, write_trajectories

R = TypeVar("R", bound=Record)
HEAD, EPISODES = "played.json", "episodes.jsonl"
PAID, REPLIES = "paid.jsonl", "replies"
"""Where models behind endpoints are asked: each request that was paid for, and the answers to them."""


class Kept(Generic[R]):
    """The episodes of an attempt that have ended so far.

    `bare` keeps them without their tokens.
    """

    def __init__(self, folder: Path, what: R, bare: bool = False) -> None:
        self.folder, self._bare = folder, bare
        self._file = folder / EPISODES
        folder.mkdir(parents=True, exist_ok=True)
        self._begin(what)
        self._whole_lines()
        self.episodes = {(episode.task, episode.seed): episode for episode in episodes_in(self._file)}

    def found(self, task: str, seeds: Iterable[int]) -> Trajectory | None:
        """The episode of a task that was played with one of these seeds."""
        return next((self.episodes[task, seed] for seed in seeds if (task, seed) in self.episodes), None)

    def add(self, episode: Trajectory) -> None:
        """Keep an episode that has ended; one of a fault is left out."""
        if episode.stop is Stop.FAULT:
            return
        kept = replace(episode, tokens=[], mask=[], logprobs=[]) if self._bare else episode
        self.episodes[kept.task, kept.seed] = kept
        write_trajectories(self._file, [kept])

    def remove(self) -> None:
        """All is written elsewhere."""
        shutil.rmtree(self.folder)

    def _begin(self, what: R) -> None:
        head = self.folder / HEAD
        if not head.exists():
            write_whole(head, what.model_dump_json(indent=1) + "\n")
        own = read_head(self.folder, type(what))
        if changed := differences(own, what):
            text = f"{self.folder} was begun with other options (its own, and those given): {'; '.join(changed)}"
            raise ConfigError(f"{text}; give its own, or remove it to begin anew")

    def _whole_lines(self) -> None:
        """Drop a line that was cut off."""
        self._file.touch()
        text = self._file.read_bytes()
        if text and not text.endswith(b"\n"):
            os.truncate(self._file, text.rfind(b"\n") + 1)  # to write it anew would empty it first


def caching(config: TrainConfig, folder: Path) -> TrainConfig:
    """The config with the replies of its endpoints kept in the folder, where they are kept nowhere yet."""
    cache = str(folder / REPLIES)
    chat, user, judging = (
        each if each.cache else each.replace(cache=cache) for each in (config.chat, config.user.chat, config.judge)
    )
    return config.replace(chat=chat, user=config.user.replace(chat=user), judge=judging)


def worth_resuming(folder: Path) -> bool:
    """Whether an episode has ended there, or a reply was paid for."""
    files = (folder / EPISODES, folder / PAID)
    return any(file.is_file() and file.stat().st_size for file in files)


def read_head(folder: Path, kind: type[R]) -> R:
    """What is played in a folder."""
    try:
        return kind.model_validate_json((folder / HEAD).read_bytes())
    except OSError as e:
        raise ConfigError(f"{folder} holds no episodes: it has no {HEAD} that can be read") from e
    except ValidationError as e:
        raise ConfigError(f"{folder / HEAD} is damaged; remove its folder to begin anew") from e


def episodes_in(file: Path) -> list[Trajectory]:
    """The episodes of a JSONL file. A damaged line is a `ConfigError`."""
    whole, damaged = read_trajectories(file)
    if damaged:
        raise ConfigError(damaged[0])
    return whole
