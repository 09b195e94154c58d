"""Imitation: the warm start on demonstrations, gold ones and those of a file."""

import itertools
import random
import time
from collections.abc import Iterator

from understudy.algorithms.advantages import token_weights
from understudy.algorithms.options import Loss
from understudy.batch import collate
from understudy.evaluate import demonstrations
from understudy.train.metrics import learning_rate
from understudy.train.state import Metrics, Training
from understudy.trajectory import Trajectory


async def sft_step(training: Training, step: int) -> Metrics:
    """Imitate one batch of demonstrations."""
    config = training.config.sft
    started = time.perf_counter()
    if not training.demonstrations:
        training.demonstrations = [*await demonstrate(training), *training.handed_over]
    drawn = order(len(training.demonstrations), training.config.seed)
    chosen = itertools.islice(drawn, (step - 1) * config.batch_size, step * config.batch_size)
    batch = collate([training.demonstrations[i] for i in chosen])
    batch = batch.with_(advantages=token_weights(batch.mask, "token"))
    rate = learning_rate(step, config.steps, config.learning_rate, config.warmup, final=0.1)
    metrics = await training.engine.update([batch], Loss(kind="nll"), rate)
    seconds = time.perf_counter() - started
    return metrics | {
        "learning_rate": rate,
        "seconds": seconds,
        "tokens_per_second": metrics["computed_tokens"] / seconds,
    }


async def demonstrate(training: Training) -> list[Trajectory]:
    """Gold episodes in the model's own tokens: the first tasks of the training stream."""
    config, count = training.config, training.config.sft.demonstrations
    tasks = itertools.islice(training.stream(0), count)
    episodes = await demonstrations(training.domain, tasks, training.format, config.limits, config.seed)
    training.tasks_used = max(training.tasks_used, count)
    return episodes


def order(count: int, seed: int) -> Iterator[int]:
    """The numbers below `count` in endless epochs, each shuffled anew."""
    for epoch in itertools.count():
        yield from random.Random(f"{seed}/{epoch}").sample(range(count), count)
