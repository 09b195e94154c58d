"""Evaluation while and after a model is trained, and the rows of the result tables."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from understudy.agent import EngineAgent
from understudy.evaluate import Evaluation, evaluate, floor, inhabited, oracle
from understudy.results import Row
from understudy.train.exam import Exam
from understudy.train.state import Training

PATIENCE = 0.2  # seconds until Ctrl-C is noticed in an evaluation
T = TypeVar("T")
Tables = dict[str, list[Row]]
"""The rows of each exam, by its folder."""


async def evaluate_now(training: Training, step: int, name: str) -> None:
    """Evaluate the current weights, those after `step`, and keep what it came to."""
    for exam in training.exams:
        evaluation = await _sit(training, exam, step, name)
        training.run.write(f"{exam.folder}/{step:06} {name}.json", evaluation.model_dump_json())


async def results(training: Training) -> Tables:
    """The rows of the result tables: floor, oracle, and the model at each stage."""
    await evaluate_now(training, training.total, "trained" if training.config.steps else "warm start")
    return {exam.folder: await _rows(training, exam) for exam in training.exams}


async def _sit(training: Training, exam: Exam, step: int, name: str) -> Evaluation:
    """What the current weights make of an exam."""
    config = training.config.eval
    sampling = training.config.sampling.replace(temperature=config.temperature)
    what = name if exam.folder == "evaluations" else f"{name} on {exam.source.name}"
    evaluating = evaluate(
        inhabited(exam.source, training.users),
        EngineAgent(training.engine, training.format, sampling),
        exam.tasks,
        training.config.limits,
        config.trials,
        config.seed,
        training.config.engine.sequences,
        lambda done, total: training.report(f"evaluate {what}", done, total, {}),
    )
    used = training.users.usage
    evaluation = await _unless_interrupted(training, evaluating, step)
    if not training.users.scripted:
        evaluation = evaluation.replace(usage={"users": training.users.usage - used})
    return evaluation


async def _rows(training: Training, exam: Exam) -> list[Row]:
    rows = [("do nothing", await floor(exam.source, exam.tasks)), ("gold", await oracle(exam.source, exam.tasks))]
    for path in sorted((training.run.folder / exam.folder).glob("*.json")):
        rows.append((path.stem.partition(" ")[2], Evaluation.model_validate_json(path.read_text(encoding="utf-8"))))
    return rows


async def _unless_interrupted(training: Training, work: Coroutine[None, None, T], step: int) -> T:
    """What the work comes to; Ctrl-C gives it up and ends the run, which on resuming does it again."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=PATIENCE)
        if training.ending and not task.done():
            task.cancel()
            await asyncio.wait([task])
            training.stop(step)
    return task.result()
