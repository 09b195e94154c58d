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
        """Store `batch`, the rows of `episodes`. Its advantages must not have token weights yet."""
        self._episodes, self._batch = episodes, batch
        self._rows = batch.episode_rows()
        self._num_minibatches = min(num_minibatches, len(episodes))
        self._logprobs = torch.full(batch.tokens.shape, torch.nan)

    def add_logprobs(self, index: int, logprobs: Tensor) -> None:
        """Store the log-probabilities of minibatch `index`. Those of later epochs are ignored."""
        if index < self._num_minibatches:
            rows = [row for own in self._rows[index :: self._num_minibatches] for row in own]
            self._logprobs[rows] = logprobs

    def replace_logprobs(self, logprobs: Tensor) -> None:
        """Store the log-probabilities of all rows under the weights that sampled them.

        They replace the log-probabilities of `add_logprobs`, which the update computes.
        """
        self._logprobs, self._num_minibatches = logprobs, 0

    def trained_episodes(self, played: Sequence[Trajectory]) -> list[EpisodeTrainingData]:
        """Return a record for each episode. Its number is the position of the episode in `played`, counted from 1."""
        batch = self._batch
        assert batch.advantages is not None
        numbers = {id(episode): number for number, episode in enumerate(played, 1)}
        records = []
        for index, (episode, rows) in enumerate(zip(self._episodes, self._rows, strict=True)):
            advantages = [x for row in rows for x in batch.advantages[row, : int(batch.lengths[row])].tolist()]
            skipped = bool(self._logprobs[rows].isnan().all())
            sampled = self._logprobs[rows][batch.mask[rows]].tolist()
            records.append(
                EpisodeTrainingData(
                    number=numbers[id(episode)],
                    reward=float(batch.rewards[rows[0]]),
                    advantages=compress_advantages(episode.all_masks, advantages),
                    logprobs=() if skipped else round_values(sampled),
                    optimizer_steps=index % self._num_minibatches if self._num_minibatches else 0,
                )
            )
        return records
