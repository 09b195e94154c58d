"""The batch of an RL step with the trainer's log-probabilities, as records for the run's folder."""

from collections.abc import Sequence

import torch
from torch import Tensor

from understudy.algorithms.batch import Batch
from understudy.core.trajectory import Trajectory
from understudy.runs.storage.trained_episodes import EpisodeTrainingData, compress_advantages, round_values


class TrainedBatch:
    """The rewards and advantages of an RL step. `add_logprobs` adds the trainer's log-probabilities."""

    def __init__(self, episodes: Sequence[Trajectory], batch: Batch, num_minibatches: int) -> None:
        """Store `batch`, whose rows are `episodes`. Its advantages must not have token weights yet."""
        self._episodes, self._batch = episodes, batch
        self._num_minibatches = min(num_minibatches, len(batch))
        self._logprobs = torch.full(batch.tokens.shape, torch.nan)

    def add_logprobs(self, index: int, logprobs: Tensor) -> None:
        """Store the log-probabilities of minibatch `index`. Those of later epochs are ignored."""
        if index < self._num_minibatches:
            self._logprobs[index :: self._num_minibatches] = logprobs

    def replace_logprobs(self, logprobs: Tensor) -> None:
        """Store the log-probabilities of all rows under the weights that sampled them.

        They replace the log-probabilities of `add_logprobs`, which the update computes.
        """
        self._logprobs, self._num_minibatches = logprobs, 0

    def trained_episodes(self, played: Sequence[Trajectory]) -> list[EpisodeTrainingData]:
        """Return a record for each row. Its number is the position of its episode in `played`, counted from 1."""
        assert self._batch.advantages is not None
        numbers = {id(episode): number for number, episode in enumerate(played, 1)}
        rewards, advantages = self._batch.rewards.tolist(), self._batch.advantages.tolist()
        skipped = self._logprobs.isnan().all(1).tolist()
        records = []
        for row, episode in enumerate(self._episodes):
            sampled = self._logprobs[row][self._batch.mask[row]].tolist()
            records.append(
                EpisodeTrainingData(
                    number=numbers[id(episode)],
                    reward=rewards[row],
                    advantages=compress_advantages(episode, advantages[row][: len(episode.tokens)]),
                    logprobs=() if skipped[row] else round_values(sampled),
                    optimizer_steps=row % self._num_minibatches if self._num_minibatches else 0,
                )
            )
        return records
