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

from understudy.config import TrainConfig
from understudy.disk import AGAIN, append, write_whole, writing
from understudy.errors import ConfigError
from understudy.records import Record
from understudy.settings import differences
from understudy.trajectory import Stop, Trajectory, line_of, read_trajectories

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
        with writing(folder, AGAIN):
            folder.mkdir(parents=True, exist_ok=True)
            self._begin(what)
            self._whole_lines()
        self.episodes = {(episode.task, episode.seed): episode for episode in episodes_in(self._file)}

    def found(self, task: str, seeds: Iterable[int]) -> Trajectory | None:
        """The episode of a task that was played with one of these seeds."""
        return next((self.episodes[task, seed] for seed in seeds if (task, seed) in self.episodes), None)

    def add(self, episode: Trajectory) -> Trajectory:
        """Keep an episode that has ended, and give it as it is kept; one of a fault is left out.

        Where it cannot be written, that is a `ConfigError`, and the file is as before.
        """
        if episode.stop is Stop.FAULT:
            return episode
        kept = bare(episode) if self._bare else episode
        with writing(self.folder, "go on by --resume"):
            append(self._file, line_of(kept))
        self.episodes[kept.task, kept.seed] = kept
        return kept

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
        with self._file.open("rb") as file:
            cut = next((len(line) for line in file if not line.endswith(b"\n")), 0)
        if cut:
            os.truncate(self._file, self._file.stat().st_size - cut)  # to write it anew would empty it first


def bare(episode: Trajectory) -> Trajectory:
    """The episode without its tokens, which take most of its memory."""
    return replace(episode, tokens=[], mask=[], logprobs=[])


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
        raise ConfigError(f"{damaged[0]}; remove that line, and what it held is left out, or played again")
    return whole
