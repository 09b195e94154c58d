"""SFT: supervised fine-tuning on demonstrations."""

import itertools
import random
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from understudy.algorithms.advantages import token_weights
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import LossConfig
from understudy.core.trajectory import Trajectory
from understudy.envs.task_source import TaskSource
from understudy.evaluation.evaluate import play_demonstrations
from understudy.formats import ChatFormat
from understudy.runs.config import TrainConfig
from understudy.train.metrics import learning_rate
from understudy.train.state import UPDATE, Metrics, TrainingContext, TrainingProgress

MAX_DOMINANT_TOKENS = 3
MIN_DOMINANT_LOSS = 2.0
"""Mean loss in nats from which a token is named: a probability of 0.14 or less."""


class SFTPhase:
    """Trains on demonstrations: gold episodes of the first training tasks, and those of `sft.dataset_file`."""

    def __init__(
        self, context: TrainingContext, progress: TrainingProgress, demonstrations: Sequence[Trajectory]
    ) -> None:
        self._context, self._progress = context, progress
        self._demonstrations = demonstrations
        self._order: DrawnOrder | None = None

    def start(self) -> None:
        """Do nothing: the engine is new."""

    async def run_step(self, step: int) -> Metrics:
        """Train on one batch of demonstrations."""
        config = self._context.config.sft
        started = time.perf_counter()
        self._progress.tasks_used = max(self._progress.tasks_used, config.num_gold_episodes)
        self._context.report(UPDATE, 0, 1, {})
        if self._order is None:
            families = [f"{episode.domain}/{episode.family}" for episode in self._demonstrations]
            self._order = DrawnOrder(shuffled_epochs(families, self._context.config.seed), config.batch_size)
        batch = collate([self._demonstrations[i] for i in self._order.take_batch(step)])
        batch = batch.replace(advantages=token_weights(batch.mask, "token_mean"))
        rate = learning_rate(step, config.steps, config.learning_rate, config.warmup_steps, min_lr_ratio=0.1)
        computed: list[Tensor] = []
        metrics = await self._context.engine.update(
            [batch], LossConfig(kind="nll"), rate, lambda _, logprobs: computed.append(logprobs)
        )
        seconds = time.perf_counter() - started
        vocabulary = self._context.certifier.target.vocabulary
        losses = {vocabulary.decode([token]): loss for token, loss in dominant_losses(batch, computed[0]).items()}
        return metrics | {
            **{f"token_loss/{text}": loss for text, loss in losses.items()},
            "learning_rate": rate,
            "step_seconds": seconds,
            "tokens_per_second": metrics["computed_tokens"] / seconds,
        }


def dominant_losses(batch: Batch, logprobs: Tensor) -> dict[int, float]:
    """Return the mean loss of each of the few tokens that have at least half of a batch's loss together.

    They are the `MAX_DOMINANT_TOKENS` with the largest total loss, except those with a mean below
    `MIN_DOMINANT_LOSS`. Where most tokens still have a loss, no few of them have half of it, and nothing is returned.
    """
    losses = -logprobs[batch.mask]
    tokens, index = torch.unique(batch.tokens[batch.mask], return_inverse=True)
    totals = torch.zeros(len(tokens)).index_add_(0, index, losses)
    means = totals / index.bincount()
    largest = totals.topk(min(MAX_DOMINANT_TOKENS, len(tokens))).indices
    dominant = largest[means[largest] >= MIN_DOMINANT_LOSS]
    if totals[dominant].sum() < losses.sum() / 2:
        return {}
    return dict(zip(tokens[dominant].tolist(), means[dominant].tolist(), strict=True))


async def play_gold(config: TrainConfig, domain: TaskSource, format: ChatFormat) -> list[Trajectory]:
    """Return the gold episodes that SFT trains on, in the model's tokens. Raise TaskError if one does not earn 1."""
    tasks = itertools.islice(domain.stream("train", config.seed), config.sft.num_gold_episodes)
    return await play_demonstrations(domain, tasks, format, config.limits, config.seed)


class DrawnOrder:
    """The batches of an endless order of indices, for steps that follow each other."""

    def __init__(self, order: Iterator[int], batch_size: int) -> None:
        self._order, self._batch_size = order, batch_size
        self._num_drawn = 0

    def take_batch(self, step: int) -> list[int]:
        """Return the indices of a step, counted from 1, after those of earlier steps. A resumed run skips these."""
        skipped = (step - 1) * self._batch_size - self._num_drawn
        self._num_drawn = step * self._batch_size
        return list(itertools.islice(self._order, skipped, skipped + self._batch_size))


def shuffled_epochs(strata: Sequence[str], seed: int) -> Iterator[int]:
    """Yield the indices of `strata` in endless epochs, each shuffled differently.

    The indices of each stratum are spread evenly over an epoch, so any stretch of it has about its share.
    """
    members: dict[str, list[int]] = {}
    for index, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(index)
    for epoch in itertools.count():
        rng = random.Random(f"{seed}/{epoch}")
        places = {}
        for _, indices in sorted(members.items()):
            offset = rng.random()
            for rank, index in enumerate(rng.sample(indices, len(indices))):
                places[index] = (rank + offset) / len(indices)
        yield from sorted(places, key=lambda index: places[index])
