"""Forks of what is stored: a reference such as 21/5@3 made the episode, its task, and what it goes on with."""

import re
from dataclasses import dataclass
from pathlib import Path

from understudy.assess.stored import Stored, open_stored
from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.fork import Fork, fork_at
from understudy.kept import HEAD
from understudy.tasks import Task
from understudy.users import Cast

_REFERENCE = re.compile(r"(?:(?P<name>[^/@]+)/)?(?P<number>\d+)(?:@(?P<turn>\d+))?")


@dataclass(frozen=True, slots=True)
class Left:
    """An episode that is left before a turn, to go on with."""

    fork: Fork
    task: Task
    config: TrainConfig
    """Where it goes on: the config that was given, with the domain that the episode was played in."""


def find_fork(what: str, reference: str, config: TrainConfig, task: str = "") -> Left:
    """The fork that a reference names in the folder of a run or of an evaluation; @1 is meant where no turn is given.

    `config` is what it goes on with: the folder's own, perhaps with another model or other users. Any other folder,
    or a `task` named beside it, is a `ConfigError`.
    """
    if task:
        raise ConfigError(f"--fork {reference} has a task of its own; leave out --task {task}")
    folder = Path(what)
    if not (folder / "config.toml").is_file() and not (folder / HEAD).is_file():
        text = f"--fork {reference} is an episode of a run or of an evaluation, and {what} is neither"
        raise ConfigError(f"{text}; name its folder")
    stored, number, turn = _named(folder, reference)
    episode = stored.episode(number)
    found = stored.task(episode)
    if found is None:
        raise ConfigError(f"{config.domain} has no task {episode.task} any more; an episode of it cannot be forked")
    where = {"domain": stored.config.domain, "slice": stored.config.slice} if stored.of_tests else {}
    own = (stored.config.model, stored.config.format) == (config.model, config.format)
    fork = fork_at(episode, turn, Cast(config.user), own)
    return Left(fork, found, config.replace(**where))


def _named(folder: Path, reference: str) -> tuple[Stored, int, int]:
    match, of_run = _REFERENCE.fullmatch(reference), not (folder / HEAD).is_file()
    if not match or (of_run and not match["name"]):
        shape = "21/5@3: a step, an episode of it," if of_run else "5@3: an episode"
        raise ConfigError(f"--fork {reference!r} is not like {shape} and a turn of its agent")
    return open_stored(folder, match["name"] or ""), int(match["number"]), int(match["turn"] or 1)
