"""Training: a warm start on gold demonstrations, then reinforcement learning. One loop, one count of steps.

Steps 1 … sft.steps imitate; the steps after them play groups of episodes and move the weights by their advantages. All
that a step does follows from the config, its number and the weights, so that a resumed run equals an uninterrupted one.
"""

import asyncio
import functools
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

import torch

from understudy import formats
from understudy.agent import DemonstrationAgent, EngineAgent
from understudy.algorithms.advantages import episode_advantages, importance, kl_shaped, token_weights
from understudy.algorithms.options import Loss
from understudy.batch import Batch, collate
from understudy.certify import Watch, subject_of
from understudy.chat import Usage
from understudy.config import TrainConfig
from understudy.domains.base import TaskSource, find
from understudy.domains.mixture import shown
from understudy.engines.base import Engine
from understudy.engines.local.engine import LocalEngine
from understudy.errors import ConfigError, RolloutError, TaskError
from understudy.evaluate import Evaluation, evaluate, floor, held_out, inhabited, oracle, refuse_free
from understudy.formats import ChatFormat
from understudy.models import find_model
from understudy.rollout import episode_seed, play, play_groups, teaches
from understudy.run import Run, interruptible
from understudy.tasks import Task
from understudy.trajectory import Stop, Trajectory
from understudy.users import Cast

PROGRESS = "progress.json"
PATIENCE = 0.2  # seconds until Ctrl-C is noticed in an evaluation
T = TypeVar("T")
Metrics = dict[str, float]
Report = Callable[[str, int, int, Mapping[str, float]], None]
"""Told of progress: phase, how much of it is done, how much there is, and the metrics of a finished step. Where there
is nothing to do (0 of 0), the phase is a line that stays."""


@dataclass
class Training:
    """What a run is made of, and how many tasks of the stream it has used."""

    config: TrainConfig
    run: Run
    domain: TaskSource
    engine: Engine
    format: ChatFormat
    report: Report
    users: Cast
    watch: Watch
    tasks_used: int = 0
    demonstrations: list[Trajectory] = field(default_factory=list)
    interrupted: Callable[[], bool] = field(default=lambda: False)
    """Whether the user wishes the run to end (Ctrl-C)."""

    @functools.cached_property
    def played(self) -> TaskSource:
        """The domain with the users of the config; demonstrations, floor and oracle keep the scripted ones."""
        return inhabited(self.domain, self.users)

    @property
    def agent(self) -> EngineAgent:
        """The policy in training."""
        penalty = self.config.format.repair_penalty
        return EngineAgent(self.engine, self.format, self.config.sampling, repair_penalty=penalty)

    @property
    def total(self) -> int:
        """Steps of both phases."""
        return self.config.sft.steps + self.config.steps


def train(config: TrainConfig, run: Run, report: Report) -> list[tuple[str, Evaluation]]:
    """Train to the end, or to Ctrl-C, which writes a checkpoint. Returns the rows of the result table."""
    folder = find_model(config.model)
    domain = find(config.domain).slice(config.slice)
    if config.user.kind == "human":
        raise ConfigError("user.kind = 'human': no person can play the users of a training run; choose another kind")
    users = Cast(config.user)
    if not config.free_tasks:
        asyncio.run(refuse_free(domain, config.seed))
    engine = LocalEngine(folder, config.engine, config.seed)
    format = formats.configured(folder, config.format)
    subject = subject_of(config, folder, engine, format)
    watch = Watch(subject, config.certify, functools.partial(shown, domain), folder, config.format.thinking)
    training = Training(config, run, domain, engine, format, report, users, watch)
    report(str(engine.choice), 0, 0, {})
    try:
        return asyncio.run(_train(training))
    finally:
        engine.close()


async def _train(training: Training) -> list[tuple[str, Evaluation]]:
    config, run = training.config, training.run
    _resume(training)
    await training.watch.begin(run)
    with interruptible() as training.interrupted:
        for step in range(run.step + 1, training.total + 1):
            await _before(training, step)
            if training.interrupted():
                _stop(training, step - 1)
            metrics = await (sft_step if step <= config.sft.steps else reinforce_step)(training, step)
            run.log(step, metrics)
            training.report("train", step, training.total, metrics)
            if _due(step, config.save_every) or step in (config.sft.steps, training.total):
                _save(training, step)
            if training.interrupted():
                _stop(training, step)
        rows = await _results(training)
    with run.model() as folder:
        training.engine.export(folder)
    return rows


async def _before(training: Training, step: int) -> None:
    """What a step waits for: the evaluation of the weights that it finds, and the beginning of reinforcement."""
    done = step - 1 - training.config.sft.steps  # steps of reinforcement
    if step == 1:
        await _evaluate(training, 0, "base model")
    elif done == 0:
        await _evaluate(training, step - 1, "warm start")
    elif done > 0 and _due(done, training.config.eval.every):
        await _evaluate(training, step - 1, f"step {step - 1}")
    if done == 0:
        _begin_reinforcement(training)


async def sft_step(training: Training, step: int) -> Metrics:
    """Imitate one batch of demonstrations."""
    config = training.config.sft
    started = time.perf_counter()
    if not training.demonstrations:
        training.demonstrations = await demonstrate(training)
    order = _order(len(training.demonstrations), training.config.seed)
    chosen = itertools.islice(order, (step - 1) * config.batch_size, step * config.batch_size)
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
    agent = DemonstrationAgent(training.format)
    count, limits = training.config.sft.demonstrations, training.config.limits
    tasks = itertools.islice(_stream(training, 0), count)
    seed = training.config.seed
    episodes = [await play(training.domain, task, agent, limits, episode_seed(seed, task, 0)) for task in tasks]
    failed = next((episode for episode in episodes if episode.reward < 1.0), None)
    if failed:
        cut = f"limits.{failed.stop} is too low for it" if failed.stop is not Stop.DONE else "see: understudy check"
        raise TaskError(f"the gold episode of task {failed.task} earns {failed.reward:g}; {cut}")
    training.tasks_used = max(training.tasks_used, count)
    return episodes


async def reinforce_step(training: Training, step: int) -> Metrics:
    """Play groups of episodes, then move the weights by their advantages."""
    config = training.config
    algorithm = config.algorithm
    started, used = time.perf_counter(), training.users.usage
    groups = await play_groups(
        training.played,
        _stream(training, training.tasks_used),
        training.agent,
        config.limits,
        size=algorithm.group_size,
        groups=algorithm.tasks_per_step,
        refill=algorithm.refill,
        seed=_seed(config.seed, step),
    )
    training.tasks_used += len(groups)
    training.run.keep(step, itertools.chain.from_iterable(groups))
    _refuse_faulty(groups, config.max_fault_rate)
    sampled = time.perf_counter()
    number = step - config.sft.steps
    certified = await training.watch.step(training.run, step, number, groups)
    learning = time.perf_counter()
    rate = learning_rate(number, config.steps, algorithm.learning_rate, algorithm.warmup, final=1.0)
    metrics = await _learn(training, [_scored(group) for group in groups if teaches(group)], rate)
    done = time.perf_counter()
    seconds = {"sampling_seconds": sampled - started, "update_seconds": done - learning}
    rates = {"learning_rate": rate, "seconds": done - started}
    return summarize(groups) | certified | metrics | seconds | rates | _spent(training.users, used)


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


def summarize(groups: Sequence[Sequence[Trajectory]]) -> Metrics:
    """What one step's episodes came to. Rates of replies and tool errors are per reply of the agent."""
    episodes = [episode for group in groups for episode in group]
    whole = [episode for episode in episodes if episode.score]
    turns = sum(episode.turns for episode in whole)
    counts = sum((Counter(episode.counts) for episode in whole), Counter[str]())
    stops = Counter(str(episode.stop) for episode in episodes)
    n = max(1, len(whole))
    return {
        "reward": sum(episode.reward for episode in whole) / n,
        "success": sum(episode.score.reward >= 1.0 for episode in whole if episode.score) / n,
        "episodes": float(len(episodes)),
        "groups": float(len(groups)),
        "equal_groups": float(sum(not teaches(group) for group in groups)),
        "turns": turns / n,
        "sampled_tokens": float(sum(sum(episode.mask) for episode in whole)),
        "episode_tokens": sum(len(episode.tokens) for episode in whole) / n,
        **{f"replies/{name}": count / max(1, turns) for name, count in sorted(counts.items())},
        **{f"stop/{name}": count / len(episodes) for name, count in sorted(stops.items())},
        **_fault_rates(episodes),
    }


def _spent(users: Cast, before: Usage) -> Metrics:
    """What users whom a language model plays were asked since `before`."""
    return {} if users.scripted else {f"users/{name}": float(value) for name, value in users.usage - before}


def learning_rate(step: int, steps: int, peak: float, warmup: int, final: float) -> float:
    """Rises linearly over `warmup` steps, then falls linearly to `final` times the peak. Steps count from 1."""
    rising = min(1.0, step / max(1, warmup))
    falling = 1.0 - (1.0 - final) * max(0, step - warmup) / max(1, steps - warmup)
    return peak * rising * falling


def _order(count: int, seed: int) -> Iterator[int]:
    """Demonstrations in endless epochs, each shuffled anew."""
    for epoch in itertools.count():
        yield from random.Random(f"{seed}/{epoch}").sample(range(count), count)


def _stream(training: Training, used: int) -> Iterator[Task]:
    """The training tasks after the first `used`."""
    return itertools.islice(training.domain.stream("train", training.config.seed), used, None)


def _seed(seed: int, step: int) -> int:
    return seed * 1_000_003 + step


def _scored(group: Sequence[Trajectory]) -> list[Trajectory]:
    return [episode for episode in group if episode.score is not None]


def _fault_rates(episodes: Sequence[Trajectory]) -> Metrics:
    faults = Counter(str(episode.fault) for episode in episodes if episode.stop is Stop.FAULT)
    return {f"fault/{name}": count / len(episodes) for name, count in sorted(faults.items())}


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


def _begin_reinforcement(training: Training) -> None:
    """Leave the demonstrated tasks behind, forget imitation's momentum, and remember the weights where it matters."""
    demonstrated = training.config.sft.demonstrations if training.config.sft.steps else 0
    training.tasks_used = max(training.tasks_used, demonstrated)
    training.engine.fresh_optimizer()
    if training.config.algorithm.kl_coefficient:
        training.engine.keep_reference()


async def _evaluate(training: Training, step: int, name: str) -> None:
    """Evaluate the current weights, those after `step`, and keep what it came to."""
    config = training.config.eval
    tasks = held_out(training.domain, config.split, config.tasks, config.seed)
    sampling = training.config.sampling.replace(temperature=config.temperature)
    evaluating = evaluate(
        training.played,
        EngineAgent(training.engine, training.format, sampling),
        tasks,
        training.config.limits,
        config.trials,
        config.seed,
        training.config.engine.sequences,
        lambda done, total: training.report(f"evaluate {name}", done, total, {}),
    )
    used = training.users.usage
    evaluation = await _unless_interrupted(training, evaluating, step)
    if not training.users.scripted:
        evaluation = evaluation.replace(usage={"users": training.users.usage - used})
    training.run.write(f"evaluations/{step:06} {name}.json", evaluation.model_dump_json())


async def _unless_interrupted(training: Training, work: Coroutine[None, None, T], step: int) -> T:
    """What the work comes to; Ctrl-C gives it up and ends the run, which on resuming does it again."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=PATIENCE)
        if training.interrupted() and not task.done():
            task.cancel()
            await asyncio.wait([task])
            _stop(training, step)
    return task.result()


async def _results(training: Training) -> list[tuple[str, Evaluation]]:
    """The rows of the result table: floor, oracle, and the model at each stage."""
    config = training.config
    last = "trained" if config.steps else "warm start"
    await _evaluate(training, training.total, last)
    tasks = held_out(training.domain, config.eval.split, config.eval.tasks, config.eval.seed)
    rows = [("do nothing", await floor(training.domain, tasks)), ("gold", await oracle(training.domain, tasks))]
    for path in sorted((training.run.folder / "evaluations").glob("*.json")):
        rows.append((path.stem.partition(" ")[2], Evaluation.model_validate_json(path.read_text(encoding="utf-8"))))
    return rows


def _stop(training: Training, step: int) -> NoReturn:
    """End the run after `step`, so that it can be resumed from there."""
    if training.run.step != step:
        _save(training, step)
    raise KeyboardInterrupt(f"stopped after step {step}; go on with: {training.run.how_to_resume}")


def _save(training: Training, step: int) -> None:
    with training.run.checkpoint(step) as folder:
        training.engine.save(folder)
        (folder / PROGRESS).write_text(json.dumps({"tasks_used": training.tasks_used}), encoding="utf-8")


def _resume(training: Training) -> None:
    """Take up the run's last checkpoint, where there is one."""
    if training.run.last is not None:
        training.engine.load(training.run.last)
        progress = json.loads((training.run.last / PROGRESS).read_text(encoding="utf-8"))
        training.tasks_used = progress["tasks_used"]


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0
