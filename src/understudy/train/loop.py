"""Training: a warm start on gold demonstrations, then reinforcement learning. One loop, one count of steps.

Steps 1 … sft.steps imitate; the steps after them play groups of episodes and move the weights by their advantages. All
that a step does follows from the config, its number and the weights, so that a resumed run equals an uninterrupted one.
"""

import asyncio
import functools

from understudy import memory
from understudy.certify import Watch, subject_of
from understudy.config import TrainConfig
from understudy.domains.mixture import shown
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.machine import find_machine, peak_bytes
from understudy.run import Run, interruptible
from understudy.train import reinforcement
from understudy.train.evaluation import Tables, evaluate_now, results
from understudy.train.imitation import sft_step
from understudy.train.preparation import doubts, prepare
from understudy.train.reinforcement import reinforce_step
from understudy.train.state import Report, Training


def train(config: TrainConfig, run: Run, report: Report) -> Tables:
    """Train to the end, or to Ctrl-C, which writes a checkpoint. Returns the rows of the result tables."""
    prepared = prepare(config)
    folder, domain = prepared.folder, prepared.domain
    machine = find_machine(config.engine)
    planned = memory.plan(memory.read_shape(folder), config.engine, memory.load_of(config), machine)
    for line in (*doubts(config), memory.as_text(planned)):
        report(line, 0, 0, {})
    engine = LocalEngine(folder, config.engine, config.seed)
    if config.algorithm.valued:
        engine.add_critic(config.algorithm.critic)
    subject = subject_of(config, folder, engine, prepared.format)
    watch = Watch(subject, config.certify, functools.partial(shown, domain), folder, config.format.thinking)
    parts = (domain, engine, prepared.format, report, prepared.users, watch, prepared.exams)
    training = Training(config, run, *parts, device=machine.device)
    report(str(engine.choice), 0, 0, {})
    try:
        tables = asyncio.run(_train(training))
        report(memory.beside(planned, peak_bytes(machine.device)), 0, 0, {})
        return tables
    finally:
        engine.close()


async def _train(training: Training) -> Tables:
    config, run = training.config, training.run
    training.resume()
    if training.overspent:
        training.stop(run.step)
    await training.watch.begin(run)
    with interruptible() as training.interrupted:
        for step in range(run.step + 1, training.total + 1):
            await _before(training, step)
            if training.ending:
                training.stop(step - 1)
            metrics = await (sft_step if step <= config.sft.steps else reinforce_step)(training, step)
            metrics |= {"peak_memory_gib": peak_bytes(training.device) / memory.GIB}
            run.log(step, metrics)
            training.report("train", step, training.total, metrics)
            if _due(step, config.save_every) or step in (config.sft.steps, training.total):
                training.save(step)
            if training.ending:
                training.stop(step)
        tables = await results(training)
    with run.model() as folder:
        training.engine.export(folder)
    return tables


async def _before(training: Training, step: int) -> None:
    """What a step waits for: the evaluation of the weights that it finds, and the beginning of reinforcement."""
    done = step - 1 - training.config.sft.steps  # steps of reinforcement
    if step == 1:
        await evaluate_now(training, 0, "base model")
    elif done == 0:
        await evaluate_now(training, step - 1, "warm start")
    elif done > 0 and _due(done, training.config.eval.every):
        await evaluate_now(training, step - 1, f"step {step - 1}")
    if done == 0:
        reinforcement.begin(training)


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0
