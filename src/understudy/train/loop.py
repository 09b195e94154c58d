"""Training: a warm start on gold demonstrations, then reinforcement learning. One loop, one count of steps.

Steps 1 … sft.steps imitate; the steps after them play groups of episodes and move the weights by their advantages. All
that a step does follows from the config, its number and the weights, so that a resumed run equals an uninterrupted one.
"""

import asyncio
import functools

from understudy import formats
from understudy.certify import Watch, subject_of
from understudy.config import TrainConfig
from understudy.domains.base import find
from understudy.domains.mixture import shown
from understudy.engines.local.engine import LocalEngine
from understudy.errors import ConfigError
from understudy.evaluate import refuse_free
from understudy.health import as_metrics, of_start, of_step
from understudy.metrics import named
from understudy.models import find_model
from understudy.run import Run, interruptible
from understudy.trackers import Trackers
from understudy.train import reinforcement
from understudy.train.evaluation import Tables, evaluated, results
from understudy.train.exam import exams
from understudy.train.findings import halt, tell
from understudy.train.imitation import sft_step
from understudy.train.reinforcement import reinforce_step
from understudy.train.state import Report, Training
from understudy.users import Cast


def train(config: TrainConfig, run: Run, report: Report) -> Tables:
    """Train to the end, or to Ctrl-C, which writes a checkpoint. Returns the rows of the result tables."""
    folder = find_model(config.model)
    domain = find(config.domain).slice(config.slice)
    examined = exams(config, domain)
    if config.user.kind == "human":
        raise ConfigError("user.kind = 'human': no person can play the users of a training run; choose another kind")
    users = Cast(config.user)
    floor = asyncio.run(refuse_free(domain, config.seed, allowed=config.free_tasks))
    engine = LocalEngine(folder, config.engine, config.seed)
    if config.algorithm.valued:
        engine.add_critic(config.algorithm.critic)
    format = formats.configured(folder, config.format)
    subject = subject_of(config, folder, engine, format)
    watch = Watch(subject, config.certify, functools.partial(shown, domain), folder, config.format.thinking)
    training = Training(config, run, domain, engine, format, report, users, watch, examined, floor=floor)
    report(str(engine.choice), 0, 0, {})
    try:
        return asyncio.run(_train(training))
    finally:
        engine.close()


async def _train(training: Training) -> Tables:
    config, run = training.config, training.run
    training.resume()
    with (
        interruptible() as training.interrupted,
        Trackers(config.trackers, config.tracking, run.folder, config.model_dump(mode="json")) as training.trackers,
    ):
        await training.watch.begin(run)
        await _complete(training, run.step)
        for step in range(run.step + 1, training.total + 1):
            await _step(training, step)
            await _complete(training, step)
        tables = await results(training)
        with run.model() as folder:
            training.engine.export(folder)
        for line in training.trackers.close():
            training.report(line, 0, 0, {})
    return tables


async def _step(training: Training, step: int) -> None:
    """One step of imitation or of reinforcement: what it came to is examined before its weights are kept."""
    config = training.config
    if step == config.sft.steps + 1:
        reinforcement.begin(training)
    metrics = named(await (sft_step if step <= config.sft.steps else reinforce_step)(training, step))
    findings = of_step(metrics, training.history, config.health)
    training.pending = metrics | as_metrics(findings)
    training.report("train", step, training.total, training.pending)
    halts = tell(training, step, findings)
    sound = not any(finding.check == "finite" and not finding.ok for finding in findings)
    if sound and (halts or _due(step, config.save_every) or _evaluation(config, step)):
        training.save(step)
    if halts:
        halt(training, step, halts[0])


async def _complete(training: Training, step: int) -> None:
    """What belongs to a step after its weights are kept: their evaluation, where it is due, and its line of metrics."""
    config = training.config
    name, metrics = _evaluation(config, step), {}
    if name:
        if training.interrupted():
            training.stop(step)
        metrics = await evaluated(training, step, name)
        if step == config.sft.steps and config.steps and training.pending is not None:
            findings = of_start(metrics, config.health)
            metrics |= as_metrics(findings)
            if halts := tell(training, step, findings):
                training.finish(step, metrics)
                halt(training, step, halts[0])
    training.finish(step, metrics)
    if training.interrupted():
        training.stop(step)


def _evaluation(config: TrainConfig, step: int) -> str | None:
    """What the evaluation after a step is called, where there is one; 0 is before the first."""
    done = step - config.sft.steps  # steps of reinforcement
    if done == config.steps:
        return "trained" if config.steps else "warm start"
    if step == 0:
        return "base model"
    if done == 0:
        return "warm start"
    return f"step {step}" if done > 0 and _due(done, config.eval.every) else None


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0
