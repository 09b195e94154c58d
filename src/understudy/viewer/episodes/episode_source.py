"""EpisodeSource: stored episodes with their tasks, tokenizer and training data."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.trajectory import Trajectory
from understudy.evaluation.stored_episodes import StoredEpisodes, open_stored_episodes
from understudy.runs.storage.trained_episodes import EpisodeTrainingData, read_trained_episodes
from understudy.viewer.episodes.decoder import TokenDecoder, load_decoder
from understudy.viewer.episodes.episode_view import EpisodeContext
from understudy.viewer.episodes.group import group_numbers
from understudy.viewer.episodes.training_view import TrainingView, build_training_view

TURN_PLACEHOLDER = "TURN"
"""Placeholder for the number of the turn in a fork's command."""


@dataclass(frozen=True)
class EpisodeSource:
    """The stored episodes of one training step or one evaluation."""

    stored: StoredEpisodes

    def context(self, number: int) -> EpisodeContext:
        """Return one episode with its task and task source. Both are None if either cannot be loaded."""
        episode, scripted = self.stored.episode(number), self.stored.scripted_users
        try:
            return EpisodeContext(episode, self.stored.task(episode), self.stored.source, scripted)
        except (ConfigError, TaskError, RolloutError):  # RolloutError: a server of the domain does not start
            return EpisodeContext(episode, None, None, scripted)

    def group(self, number: int) -> dict[int, Trajectory]:
        """Return the group of an episode, by number.

        For an evaluation, these are all trials of the episode's task. For a preference step, they are the conversations
        of a row.
        """
        current, episodes = self.stored.episode(number), self.stored.episodes
        if self.stored.step is None or self.stored.is_preferences:
            return {each: episode for each, episode in episodes.items() if episode.task_id == current.task_id}
        numbers = group_numbers(episodes, number, self.stored.config.algorithm.group_size)
        return {each: episodes[each] for each in numbers}

    def decoder(self) -> TokenDecoder | str:
        """Return the decoder of the tokens, or a text that says why there is none."""
        return load_decoder(self.stored.config, self.stored.folder)

    @property
    def training_data(self) -> dict[int, EpisodeTrainingData]:
        """The training data of the step's trained episodes, by number; {} for an evaluation."""
        return {} if self.stored.step is None else read_trained_episodes(self.stored.folder, self.stored.step)

    def training_view(self, number: int) -> TrainingView:
        """Return the training data of an episode, or why it was not trained on."""
        return build_training_view(self.stored, number, self.training_data, self.group(number))

    def fork_command(self, number: int) -> str:
        """Return the command that continues an episode, with TURN_PLACEHOLDER for the number of the turn."""
        where = (
            f"{self.stored.name}/{number}@{TURN_PLACEHOLDER}" if self.stored.name else f"{number}@{TURN_PLACEHOLDER}"
        )
        return f"understudy play {shlex.quote(str(self.stored.folder))} --fork {shlex.quote(where)}"


def open_episode_source(folder: Path, name: str = "") -> EpisodeSource:
    """Open a step or an evaluation of a folder. See `open_stored_episodes`."""
    return EpisodeSource(open_stored_episodes(folder, name))
