"""Reinforcement: play groups of episodes, then move the weights by their advantages."""

import itertools
import time
from collections.abc import Sequence

import torch

from understudy.algorithms.advantages import episode_advantages, importance, kl_shaped, token_weights
from understudy.batch import Batch, collate
from understudy.config import TrainConfig
from understudy.curriculum import learned
from understudy.engines.base import Engine
from understudy.errors import RolloutError
from understudy.rollout import play_groups, teaches
from understudy.train.metrics import learning_rate, spent, summarize
from understudy.train.state import Metrics, Training
from understudy.trajectory import Stop, Trajectory


def begin(training: Training) -> None:
    """Leave the demonstrated tasks behind, forget imitation's momentum, and remember the weights where it matters."""
    demonstrated = training.config.sft.demonstrations if training.config.sft.steps else 0
    training.tasks_used = max(training.tasks_used, demonstrated)
    training.engine.fresh_optimizer()
    if training.config.algorithm.kl_coefficient:
        training.engine.keep_reference()


async def reinforce_step(training: Training, step: int) -> Metrics:
    """Play groups of episodes, then move the weights by their advantages."""
    config = training.config
    algorithm = config.algorithm
    number = step - config.sft.steps
    started, used, drawn = time.perf_counter(), training.users.usage, training.tasks_used
    groups = await _play_groups(training, step)
    training.run.keep(step, itertools.chain.from_iterable(groups))
    _refuse_faulty(groups, config.max_fault_rate)
    sampled = time.perf_counter()
    certified = await training.watch.step(training.run, step, number, groups)
    learning = time.perf_counter()
    rate = learning_rate(number, config.steps, algorithm.learning_rate, algorithm.warmup, final=1.0)
    metrics = await _learn(training, [_scored(group) for group in groups if teaches(group)], rate)
    done = time.perf_counter()
    seconds = {"sampling_seconds": sampled - started, "update_seconds": done - learning}
    rates = {"learning_rate": rate, "seconds": done - started}
    left_out = {"left_out": float(training.tasks_used - drawn - len(groups))}
    return summarize(groups) | left_out | certified | metrics | seconds | rates | spent(training.users, used)


async def _play_groups(training: Training, step: int) -> list[list[Trajectory]]:
    """The step's groups, of the tasks that the curriculum wants, which learns from them."""
    config = training.config
    tasks = training.supply((step - config.sft.steps - 1) / config.steps)
    groups = await play_groups(
        training.played,
        tasks,
        training.agent,
        config.limits,
        size=config.algorithm.group_size,
        groups=config.algorithm.tasks_per_step,
        refill=config.algorithm.refill,
        seed=_seed(config.seed, step),
    )
    training.tasks_used = tasks.used
    training.rates = learned(training.rates, groups, config.curriculum.memory)
    return groups


async def _learn(training: Training, groups: Sequence[Sequence[Trajectory]], rate: float) -> Metrics:
    if not groups:
        return {}
    algorithm = training.config.algorithm
    episodes = [episode for group in groups for episode in group]
    numbers = [i for i, group in enumerate(groups) for _ in group]
    batch = collate(episodes, numbers, temperature=training.config.sampling.temperature or 1.0)
    if algorithm.kl_coefficient:
        batch = await training.engine.reference(batch)
    batch = with_advantages(batch, training.config)
    if algorithm.importance_cap:
        batch = await _as_the_trainer_sees_it(training.engine, batch, algorithm.importance_cap)
    steps = optimizer_steps(batch, algorithm.updates_per_step, training.config)
    return await training.engine.update(steps, algorithm.loss, rate)


async def _as_the_trainer_sees_it(engine: Engine, batch: Batch, cap: float) -> Batch:
    """The batch with the trainer's log-probabilities, and advantages weighed by how far the sampler's are from them."""
    assert batch.advantages is not None
    seen = await engine.forward(batch)
    weights = importance(seen.logprobs, batch.logprobs, batch.mask, cap)
    return seen.with_(advantages=batch.advantages * weights)


def with_advantages(batch: Batch, config: TrainConfig) -> Batch:
    """The batch with every token's advantage; the loss's mean is folded in by `optimizer_steps`."""
    algorithm = config.algorithm
    advantages = episode_advantages(algorithm.advantage, batch.rewards, batch.group)[:, None] * batch.mask
    if batch.ref_logprobs is not None:
        args = batch.logprobs, batch.ref_logprobs, batch.mask, algorithm.kl_coefficient, algorithm.kl_kind
        advantages = kl_shaped(advantages, *args)
    return batch.with_(advantages=advantages)


def optimizer_steps(batch: Batch, count: int, config: TrainConfig) -> list[Batch]:
    """The batch in `count` parts of whole rows, interleaved so that each has some of every group; means folded in."""
    assert batch.advantages is not None
    parts = [batch.rows(torch.arange(i, len(batch), count)) for i in range(min(count, len(batch)))]
    limit = config.limits.max_turns * config.sampling.max_tokens
    weigh = [token_weights(part.mask, config.algorithm.per, limit) for part in parts]
    return [part.with_(advantages=part.advantages * w) for part, w in zip(parts, weigh, strict=True)]  # type: ignore[operator]


def _seed(seed: int, step: int) -> int:
    return seed * 1_000_003 + step


def _scored(group: Sequence[Trajectory]) -> list[Trajectory]:
    return [episode for episode in group if episode.score is not None]


def _refuse_faulty(groups: Sequence[Sequence[Trajectory]], most: float) -> None:
    """Stop when the machinery fails too often: what is left of the episodes is no fair sample."""
    episodes = [episode for group in groups for episode in group]
    faulty = [episode for episode in episodes if episode.stop is Stop.FAULT]
    if len(faulty) > most * len(episodes):
        first = faulty[0]
        raise RolloutError(
            f"{len(faulty)} of {len(episodes)} episodes failed, more than max_fault_rate = {most}; "
            f"the first, task {first.task}: {first.error}",
            first.fault or "engine",
        )
