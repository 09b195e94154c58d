"""Evaluation while and after a model is trained, and the rows of the result tables."""

import asyncio
from collections.abc import Coroutine
from typing import Literal, TypeVar

from understudy.agent import EngineAgent
from understudy.chat import Usage
from understudy.evaluate import episodes, floor, inhabited, oracle
from understudy.evaluation import Evaluation, summary
from understudy.results import Row
from understudy.train.exam import Exam
from understudy.train.reinforcement import refuse_faulty
from understudy.train.state import Metrics, Training
from understudy.trajectory import Trajectory

PATIENCE = 0.2  # seconds until Ctrl-C is noticed in an evaluation
T = TypeVar("T")
Tables = dict[str, list[Row]]
"""The rows of each exam, by its folder."""


async def evaluated(training: Training, step: int, name: str) -> Metrics:
    """What the weights after `step` come to in each exam; kept in the run, and not done again if it is there."""
    found: Metrics = {}
    for exam in training.exams:
        nothing = await _nothing(training, exam)
        file = f"{exam.folder}/{step:06} {name}.json"
        if (training.run.folder / file).exists():
            text = (training.run.folder / file).read_text(encoding="utf-8")
            evaluation = Evaluation.model_validate_json(text)
        else:
            evaluation, played = await _sit(training, exam, step, name)
            training.run.keep_evaluation(f"{step:06} {name}{exam.ending}", played)
            training.run.write(file, evaluation.model_dump_json())
        unseen = exam.folder == "tests" or training.config.eval.split == "test"
        found |= measured(evaluation, nothing, "test" if unseen else "eval")
    return found


def measured(evaluation: Evaluation, nothing: Evaluation, space: Literal["eval", "test"]) -> Metrics:
    """`eval/<domain>/…`, or `test/<domain>/…`: success, reward, and what doing nothing succeeds at."""
    found = {}
    for domain in sorted({result.domain for result in evaluation.results}):
        own, none = evaluation.of_domain(domain), nothing.of_domain(domain)
        earned = [reward for result in own.results for reward in result.rewards if reward is not None]
        if earned:
            of = f"{space}/{domain.replace('/', '_')}"
            found[f"{of}/success_rate"] = own.success.mean
            found[f"{of}/average_reward"] = sum(earned) / len(earned)
            found[f"{of}/floor"] = none.success.mean
    return found


async def results(training: Training) -> Tables:
    """The rows of the result tables: floor, oracle, and the model at each stage."""
    return {exam.folder: await _rows(training, exam) for exam in training.exams}


async def _nothing(training: Training, exam: Exam) -> Evaluation:
    """What doing nothing comes to in an exam; it is the same each time."""
    if exam.folder not in training.nothing:
        training.nothing[exam.folder] = await floor(exam.source, exam.tasks)
    return training.nothing[exam.folder]


async def _sit(training: Training, exam: Exam, step: int, name: str) -> tuple[Evaluation, list[Trajectory]]:
    """What the current weights make of an exam, and the episodes."""
    config = training.config.eval
    sampling = training.config.sampling.replace(temperature=config.temperature)
    what = name if exam.folder == "evaluations" else f"{name} on {exam.source.name}"
    playing = episodes(
        inhabited(exam.source, training.users),
        EngineAgent(training.engine, training.format, sampling),
        exam.tasks,
        training.config.limits,
        config.trials,
        config.seed,
        training.config.engine.sequences,
        lambda done, total: training.report(f"evaluate {what}", done, total, {}),
        crew=training.crew,
    )
    used = training.users.usage
    played = await _unless_interrupted(training, playing, step)
    training.note_cost()
    refuse_faulty([played], training.config.max_fault_rate)
    evaluation = summary(exam.source, exam.tasks, played, config.trials, config.seed)
    training.engine.forget()  # so that a run which is resumed, and finds the evaluation there, goes on alike
    if training.users.scripted:
        return evaluation, played
    usage = sum(training.crew.gather(training.users.usage - used), Usage())
    return evaluation.replace(usage={"users": usage}), played


async def _rows(training: Training, exam: Exam) -> list[Row]:
    rows = [("do nothing", await _nothing(training, exam)), ("gold", await oracle(exam.source, exam.tasks))]
    for path in sorted((training.run.folder / exam.folder).glob("*.json")):
        rows.append((path.stem.partition(" ")[2], Evaluation.model_validate_json(path.read_text(encoding="utf-8"))))
    return rows


async def _unless_interrupted(training: Training, work: Coroutine[None, None, T], step: int) -> T:
    """What the work comes to; Ctrl-C gives it up and ends the run, which on resuming does it again.

    Processes of a crew do not stop halfway: the others would wait for their share.
    """
    if training.crew.size > 1:
        return await work
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=PATIENCE)
        if training.ending and not task.done():
            task.cancel()
            await asyncio.wait([task])
            training.stop(step)
    return task.result()
