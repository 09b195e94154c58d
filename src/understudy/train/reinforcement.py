"""Reinforcement: play groups of episodes, then move the weights by their advantages."""

import dataclasses
import itertools
import random
import time
from collections.abc import Iterator, Sequence

from understudy.algorithms.advantages import (
    differing,
    episode_advantages,
    importance,
    kl_shaped,
    overlong_penalty,
    token_weights,
    turn_advantages,
)
from understudy.algorithms.critic import decisions
from understudy.batch import Batch, collate
from understudy.config import TrainConfig
from understudy.curriculum import learned
from understudy.engines.base import Engine
from understudy.errors import RolloutError
from understudy.rollout import play_groups
from understudy.train.critic import estimated, foresight
from understudy.train.lessons import lesson, lessons
from understudy.train.metrics import learning_rate, marked, spent, summarize
from understudy.train.situations import numbered
from understudy.train.state import Metrics, Training
from understudy.trajectory import Stop, Trajectory


def begin(training: Training) -> None:
    """Leave the demonstrated tasks behind, forget imitation's momentum, and remember the weights where it matters."""
    demonstrated = training.config.sft.demonstrations if training.config.sft.steps else 0
    training.tasks_used = max(training.tasks_used, demonstrated)
    training.engine.fresh_optimizer()
    training.engine.forget_reference()
    if training.config.algorithm.kl_coefficient:
        training.engine.keep_reference(training.config.algorithm.reference)


async def reinforce_step(training: Training, step: int) -> Metrics:
    """Play groups of episodes, then move the weights by their advantages."""
    config = training.config
    algorithm = config.algorithm
    number = step - config.prior
    started, used, drawn = time.perf_counter(), training.users.usage, training.tasks_used
    groups = await play_step(training, step)
    training.run.keep(step, itertools.chain.from_iterable(groups))
    refuse_faulty(groups, config.max_fault_rate)
    sampled = time.perf_counter()
    certified = await training.watch.step(training.run, step, number, groups)
    learning = time.perf_counter()
    moving = max(0, number - algorithm.held)
    moves = config.steps - algorithm.held
    rate = learning_rate(moving, moves, algorithm.learning_rate, algorithm.warmup, algorithm.decay)
    metrics = await _learn(training, lessons(groups, algorithm), number, rate)
    if algorithm.kl_coefficient and number % algorithm.reference.every == 0:
        training.engine.move_reference()
    done = time.perf_counter()
    seconds = {"sampling_seconds": sampled - started, "update_seconds": done - learning}
    rates = {"learning_rate": rate, "seconds": done - started, "reward/floor": training.floor}
    left_out = {"left_out": float(training.tasks_used - drawn - len(groups))}
    asked = spent(training.users, used, training.crew) | marked(training.judge, training.crew)
    return summarize(groups, algorithm.advantage) | left_out | certified | metrics | seconds | rates | asked


async def play_step(training: Training, step: int) -> list[list[Trajectory]]:
    """The step's groups, of the tasks that the curriculum wants, which learns from them."""
    config = training.config
    tasks = training.supply((step - config.prior - 1) / config.steps)
    groups = await play_groups(
        training.trained_on,
        tasks,
        training.agent,
        config.limits,
        size=config.algorithm.group_size,
        groups=config.algorithm.tasks_per_step,
        refill=config.algorithm.refill,
        seed=seed_of(config.seed, step),
        worth=lambda group: bool(lesson(group, config.algorithm.advantage)),
        crew=training.crew,
    )
    training.note_cost()
    training.tasks_used = tasks.used
    training.rates = learned(training.rates, groups, config.curriculum.memory)
    return groups


async def _learn(training: Training, groups: Sequence[Sequence[Trajectory]], number: int, rate: float) -> Metrics:
    if not groups:
        return {}
    config, engine = training.config, training.engine
    algorithm = config.algorithm
    episodes = [episode for group in groups for episode in group]
    numbers = [i for i, group in enumerate(groups) for _ in group]
    situations = numbered(episodes, numbers) if algorithm.advantage == "turn" else None
    batch = collate(episodes, numbers, temperature=config.sampling.temperature or 1.0, situations=situations)
    if algorithm.kl_coefficient:
        batch = await engine.reference(batch)
    if algorithm.valued:
        batch = await engine.values(batch)
    batch = with_advantages(batch, config)
    corrected: Metrics = {}
    if algorithm.importance_cap:
        batch, corrected = await _as_the_trainer_sees_it(engine, batch, algorithm.importance_cap)
    if number <= algorithm.held:
        batch = dataclasses.replace(batch, advantages=None)
    steps = optimizer_steps(batch, algorithm.updates_per_step, config, seed_of(config.seed, number))
    metrics = await engine.update(steps, algorithm.loss, rate)
    return metrics | foresight(batch, algorithm) | _apart(batch) | corrected


def _apart(batch: Batch) -> Metrics:
    """The divergence from the reference, as sampled: nats a token, on average; nothing where there is no reference."""
    if batch.ref_logprobs is None:
        return {}
    return {"reference_kl": float((batch.logprobs - batch.ref_logprobs)[batch.mask].mean())}


async def _as_the_trainer_sees_it(engine: Engine, batch: Batch, cap: float) -> tuple[Batch, Metrics]:
    """The batch with the trainer's log-probabilities, and advantages weighed by how far the sampler's are from them.

    The metrics say how far that is, which the update, on policy by now, cannot tell any more.
    """
    assert batch.advantages is not None
    seen = await engine.forward(batch)
    weights = importance(seen.logprobs, batch.logprobs, batch.mask, cap)
    ratio = (seen.logprobs - batch.logprobs)[batch.mask].exp()
    return seen.with_(advantages=batch.advantages * weights), {
        "sampler_ratio": float(ratio.mean()),
        "sampler_ratio_error": float((ratio - 1).square().mean()),
        "importance_capped": float((ratio > cap).float().mean()),
    }


def with_advantages(batch: Batch, config: TrainConfig) -> Batch:
    """The batch with every token's advantage; the loss's mean is folded in by `optimizer_steps`.

    With a critic it has returns as well. Rewards are those that advantages are made of: less what is taken for length.
    """
    algorithm = config.algorithm
    overlong = overlong_penalty(batch.lengths, config.limits.max_tokens, algorithm.overlong.margin)
    batch = batch.with_(rewards=batch.rewards - algorithm.overlong.penalty * overlong)
    if algorithm.valued:
        batch = estimated(batch, algorithm)
    elif batch.situations is not None:
        turns = turn_advantages(batch.rewards, batch.situations, batch.mask, algorithm.turn.lam)
        batch = batch.with_(advantages=turns * differing(batch.rewards, batch.group)[:, None])
    else:
        episodes = episode_advantages(algorithm.advantage, batch.rewards, batch.group)
        batch = batch.with_(advantages=episodes[:, None] * batch.mask)
    if batch.ref_logprobs is None or (algorithm.valued and algorithm.kl_kind == "k1"):
        return batch
    assert batch.advantages is not None
    args = batch.logprobs, batch.ref_logprobs, batch.mask, algorithm.kl_coefficient, algorithm.kl_kind
    return batch.with_(advantages=kl_shaped(batch.advantages, *args))


def optimizer_steps(batch: Batch, count: int, config: TrainConfig, seed: int = 0) -> list[Batch]:
    """For each epoch the batch in `count` parts of whole rows, each with some of every group; means folded in."""
    count = min(count, len(batch))
    orders = _orders(batch.group.tolist(), config.algorithm.epochs, seed)
    return [_weighed(batch.rows(order[i::count]), config) for order in orders for i in range(count)]


def _orders(group: Sequence[int], epochs: int, seed: int) -> Iterator[list[int]]:
    """Rows as they come, then groups and the rows of each shuffled anew; rows of a group stay together."""
    members: dict[int, list[int]] = {}
    for row, number in enumerate(group):
        members.setdefault(number, []).append(row)
    yield list(range(len(group)))
    for epoch in range(1, epochs):
        draw = random.Random(f"{seed}/{epoch}")
        groups = draw.sample(list(members.values()), len(members))
        yield [row for rows in groups for row in draw.sample(rows, len(rows))]


def _weighed(part: Batch, config: TrainConfig) -> Batch:
    """One optimizer step's batch, with what each token and each value weighs in it."""
    algorithm = config.algorithm
    limit = config.limits.max_turns * config.sampling.max_tokens
    if part.advantages is not None:
        part = part.with_(advantages=part.advantages * token_weights(part.mask, algorithm.per, limit))
    if part.returns is None:
        return part
    steps = decisions(part.mask, algorithm.critic.step == "turn")
    return part.with_(value_weights=token_weights(steps, algorithm.per, limit))


def seed_of(seed: int, step: int) -> int:
    """The seed of a step's tasks and episodes."""
    return seed * 1_000_003 + step


def refuse_faulty(groups: Sequence[Sequence[Trajectory]], most: float) -> None:
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
