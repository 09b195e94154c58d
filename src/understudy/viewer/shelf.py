"""Shelf: stored episodes as the page shows them, with what makes text of their tokens and what they taught."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from understudy.assess.stored import Stored, open_stored
from understudy.errors import ConfigError, RolloutError, TaskError
from understudy.trajectory import Trajectory
from understudy.viewer.advantages import advantages
from understudy.viewer.episode import Scene
from understudy.viewer.group import grouped, neighbours
from understudy.viewer.voice import Voice, voice_of

TURN = "TURN"
"""What stands in the command of a fork for the number of a turn."""


@dataclass(frozen=True)
class Shelf:
    """The stored episodes of a folder that have one name."""

    stored: Stored

    def scene(self, number: int) -> Scene:
        """One episode with what is known of where it was played."""
        episode, scripted = self.stored.episode(number), self.stored.scripted
        try:
            return Scene(episode, self.stored.task(episode), self.stored.source, scripted)
        except (ConfigError, TaskError, RolloutError):  # the last where a server of the domain does not start
            return Scene(episode, None, None, scripted)

    def group(self, number: int) -> dict[int, Trajectory]:
        """The episodes of the same task: of a step those that are learned from together, of an evaluation all."""
        mine, episodes = self.stored.episode(number), self.stored.episodes
        if self.stored.step is None:
            return {each: episode for each, episode in episodes.items() if episode.task == mine.task}
        numbers = neighbours(episodes, number, self.stored.config.algorithm.group_size)
        return {each: episodes[each] for each in numbers}

    def voice(self) -> Voice | str:
        """What makes text of the tokens, or why there is nothing that does."""
        return voice_of(self.stored.config, self.stored.folder)

    def advantages(self) -> dict[int, float | None]:
        """Of every episode of a step; of an evaluation nobody learns, and so they have none."""
        if self.stored.step is None:
            return {}
        episodes, config = self.stored.episodes, self.stored.config
        groups = grouped(episodes, config.algorithm.group_size)
        known = advantages([[episodes[number] for number in group] for group in groups], config)
        pairs = zip(groups, known or (), strict=False)
        return {number: value for numbers, values in pairs for number, value in zip(numbers, values, strict=True)}

    def fork(self, number: int) -> str:
        """The command that goes on with an episode, with a place for the number of the turn."""
        where = f"{self.stored.name}/{number}@{TURN}" if self.stored.name else f"{number}@{TURN}"
        return f"understudy play {shlex.quote(str(self.stored.folder))} --fork {shlex.quote(where)}"


def shelf(folder: Path, name: str = "") -> Shelf:
    """See `open_stored`."""
    return Shelf(open_stored(folder, name))
