"""Training: a warm start on demonstrations, then preferences, then reinforcement. One loop, one count of steps.

Steps 1 … sft.steps imitate; the next preferences.steps learn from better and worse conversations; the steps after them
play groups of episodes and move the weights by their advantages. All that a step does follows from the config, its
number and the weights, so that a resumed run equals an uninterrupted one.
"""

import asyncio
import functools
from collections.abc import Iterator

from understudy import formats
from understudy.certify import Watch, subject_of
from understudy.config import TrainConfig
from understudy.domains.base import find
from understudy.domains.mixture import shown
from understudy.engines.local.engine import LocalEngine
from understudy.errors import ConfigError
from understudy.evaluate import refuse_free
from understudy.models import find_model
from understudy.run import Run, interruptible
from understudy.train.evaluation import Tables, evaluate_now, results
from understudy.train.exam import exams
from understudy.train.lessons import refuse_idle
from understudy.train.phases import Phase, phases
from understudy.train.preferences import read_preferences
from understudy.train.state import Report, Training
from understudy.users import Cast


def train(config: TrainConfig, run: Run, report: Report) -> Tables:
    """Train to the end, or to Ctrl-C, which writes a checkpoint. Returns the rows of the result tables."""
    folder = find_model(config.model)
    domain = find(config.domain).slice(config.slice)
    examined = exams(config, domain)
    if config.user.kind == "human":
        raise ConfigError("user.kind = 'human': no person can play the users of a training run; choose another kind")
    refuse_idle(config.algorithm, folder)
    users = Cast(config.user)
    if not config.free_tasks:
        asyncio.run(refuse_free(domain, config.seed))
    engine = LocalEngine(folder, config.engine, config.seed)
    if config.algorithm.valued:
        engine.add_critic(config.algorithm.critic)
    format = formats.configured(folder, config.format)
    subject = subject_of(config, folder, engine, format)
    watch = Watch(subject, config.certify, functools.partial(shown, domain), folder, config.format.thinking)
    training = Training(config, run, domain, engine, format, report, users, watch, examined)
    report(str(engine.choice), 0, 0, {})
    try:
        return asyncio.run(_train(training))
    finally:
        engine.close()


async def _train(training: Training) -> Tables:
    config, run = training.config, training.run
    training.resume()
    if config.preferences.steps and run.step < config.prior:
        training.preferences = read_preferences(config, training.format, run)
    await training.watch.begin(run)
    with interruptible() as training.interrupted:
        for step, phase in _steps(config, run.step):
            await _before(training, step, phase)
            if training.interrupted():
                training.stop(step - 1)
            metrics = await phase.step(training, step)
            run.log(step, metrics)
            training.report("train", step, training.total, metrics)
            if _due(step, config.save_every) or step == phase.last:
                training.save(step)
            if training.interrupted():
                training.stop(step)
        tables = await results(training, _weights(config, training.total))
    with run.model() as folder:
        training.engine.export(folder)
    return tables


async def _before(training: Training, step: int, phase: Phase) -> None:
    """What a step waits for: the evaluation of the weights that it finds, and the beginning of its phase."""
    config, done = training.config, step - phase.first
    if done == 0:
        await evaluate_now(training, step - 1, _weights(config, step - 1))
        if phase.begin:
            phase.begin(training)
    elif phase.first > config.prior and _due(done, config.eval.every):
        await evaluate_now(training, step - 1, f"step {step - 1}")


def _steps(config: TrainConfig, done: int) -> Iterator[tuple[int, Phase]]:
    """The steps that are still to do, each with its phase."""
    for phase in phases(config):
        yield from ((step, phase) for step in range(max(done + 1, phase.first), phase.last + 1))


def _weights(config: TrainConfig, step: int) -> str:
    """What the result table calls the weights after the last step of a phase, or before the first one."""
    found = [phase.weights for phase in phases(config) if phase.last == step]
    return found[0] if found else "base model" if config.total else "warm start"


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0
