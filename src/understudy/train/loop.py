"""Training: a warm start on demonstrations, then preferences, then reinforcement. One loop, one count of steps.

Steps 1 … sft.steps imitate; the next preferences.steps learn from better and worse conversations; the steps after them
play groups of episodes and move the weights by their advantages. All that a step does follows from the config, its
number and the weights, so that a resumed run equals an uninterrupted one.
"""

import asyncio
import functools
from collections.abc import Iterator

from understudy import memory
from understudy.certify import Watch, subject_of
from understudy.config import TrainConfig
from understudy.crew import ALONE, Crew
from understudy.domains.mixture import shown
from understudy.engines.local.machine import find_machine, peak_bytes
from understudy.engines.opening import open_engine
from understudy.health import as_metrics, of_start, of_step
from understudy.interruption import interruptible
from understudy.metrics import named
from understudy.resumption import reinforced
from understudy.run import Run
from understudy.trackers import Trackers
from understudy.train.evaluation import Tables, evaluated, results
from understudy.train.findings import halt, tell
from understudy.train.phases import Phase, phases
from understudy.train.preparation import cut_short, doubts, prepare
from understudy.train.state import Report, Training


def train(config: TrainConfig, run: Run, report: Report, crew: Crew = ALONE) -> Tables:
    """Train to the end, or to Ctrl-C, which writes a checkpoint. Returns the rows of the result tables.

    All processes of a crew call this, each with a run of its own.
    """
    prepared = prepare(config, run.began, run.step)
    prepared.files.refuse_changed(run)
    folder, domain = prepared.folder, prepared.domain
    machine = find_machine(config.engine)
    planned = memory.planned(config, folder, machine, crew.size)
    for line in (*doubts(config), *prepared.files.notes, *map(memory.as_text, planned)):
        report(line, 0, 0, {})
    engine = open_engine(folder, config.fitted, config.seed, crew)
    if config.algorithm.valued:
        engine.add_critic(config.algorithm.critic)
    subject = subject_of(config, folder, engine, prepared.format)
    watch = Watch(subject, config.certify, functools.partial(shown, domain), folder, config.format.thinking)
    parts = (domain, engine, prepared.format, report, prepared.users, watch, prepared.exams, crew)
    training = Training(config, run, *parts, device=machine.device, floor=prepared.floor)
    training.handed_over, training.preferences = prepared.files.demonstrations, prepared.files.preferences
    for line in (str(engine.choice), *cut_short(config, engine.context)):
        report(line, 0, 0, {})
    try:
        tables = asyncio.run(_train(training))
        for plan in planned:
            report(memory.beside(plan, peak_bytes(machine.device)), 0, 0, {})
        return tables
    finally:
        engine.close()


async def _train(training: Training) -> Tables:
    config, run = training.config, training.run
    training.resume()
    if training.overspent:
        training.stop(run.step)
    followed = config.trackers if training.crew.rank == 0 else ()
    with (
        interruptible() as wished,
        Trackers(followed, config.tracking, run.folder, config.model_dump(mode="json")) as training.trackers,
    ):
        training.interrupted = lambda: any(training.crew.gather(wished()))
        await training.watch.begin(run)
        await _complete(training, run.step)
        for step, phase in _steps(config, run.step):
            await _step(training, step, phase)
            await _complete(training, step)
        tables = await results(training)
        with run.model() as folder:
            training.engine.export(folder)
        for line in training.trackers.close():
            training.report(line, 0, 0, {})
    return tables


async def _step(training: Training, step: int, phase: Phase) -> None:
    """One step of a phase: what it came to is examined before its weights are kept."""
    config = training.config
    if step == phase.first and phase.begin:
        phase.begin(training)
    metrics = await phase.step(training, step)
    metrics = named(metrics | {"peak_memory_gib": peak_bytes(training.device) / memory.GIB})
    findings = of_step(metrics, training.history, config.health)
    training.pending = metrics | as_metrics(findings)
    training.report("train", step, training.total, training.pending)
    halts = tell(training, step, findings)
    sound = not any(finding.check == "finite" and not finding.ok for finding in findings)
    if sound and (halts or saved_after(config, step)):
        training.save(step)
    if halts:
        if training.run.step != step or not evaluation_after(config, step):  # else its line is written when resumed
            training.finish(step, {})
        halt(training, step, halts[0])


async def _complete(training: Training, step: int) -> None:
    """What belongs to a step after its weights are kept: their evaluation, where it is due, and its line of metrics."""
    config = training.config
    name, metrics = evaluation_after(config, step), {}
    if name:
        if training.ending:
            training.stop(step)
        metrics = await evaluated(training, step, name)
        if step == config.prior and config.steps and training.pending is not None:
            findings = of_start(metrics, config.health)
            metrics |= as_metrics(findings)
            if halts := tell(training, step, findings):
                training.finish(step, metrics)
                halt(training, step, halts[0])
    training.finish(step, metrics)
    if training.ending:
        training.stop(step)


def _steps(config: TrainConfig, done: int) -> Iterator[tuple[int, Phase]]:
    """The steps that are still to do, each with its phase."""
    for phase in phases(config):
        yield from ((step, phase) for step in range(max(done + 1, phase.first), phase.last + 1))


def evaluation_after(config: TrainConfig, step: int) -> str | None:
    """What the evaluation after a step is called, where there is one; 0 is before the first."""
    ends = {phase.last: phase.weights for phase in phases(config)}
    if step in ends:
        return ends[step]
    if step == 0:
        return "base model"
    done = step - config.prior  # steps of reinforcement
    return reinforced(config, step) if done > 0 and due(done, config.eval.every) else None


def saved_after(config: TrainConfig, step: int) -> bool:
    """Whether there is a checkpoint after a step, whatever it comes to."""
    return due(step, config.save_every) or evaluation_after(config, step) is not None


def due(step: int, every: int) -> bool:
    """Whether a step is one of every so many; 0 is none."""
    return bool(every) and step % every == 0
