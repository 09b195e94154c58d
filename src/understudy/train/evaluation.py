"""Evaluation while and after a model is trained, and the rows of the result table."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from understudy.agent import EngineAgent
from understudy.evaluate import Evaluation, evaluate, floor, held_out, oracle
from understudy.tasks import Split, Task
from understudy.train.state import Metrics, Training

PATIENCE = 0.2  # seconds until Ctrl-C is noticed in an evaluation
T = TypeVar("T")


async def evaluated(training: Training, step: int, name: str) -> Metrics:
    """What the weights after `step` come to on held-out tasks; kept in the run, and not done again if it is there."""
    if training.nothing is None:
        training.nothing = await floor(training.domain, _tasks(training))
    path = training.run.folder / evaluation_file(step, name)
    if path.exists():
        evaluation = Evaluation.model_validate_json(path.read_text(encoding="utf-8"))
    else:
        evaluation = await _evaluate(training, step, name)
        training.run.write(evaluation_file(step, name), evaluation.model_dump_json())
    return measured(evaluation, training.nothing, training.config.eval.split)


def evaluation_file(step: int, name: str) -> str:
    """Where a run keeps an evaluation."""
    return f"evaluations/{step:06} {name}.json"


def measured(evaluation: Evaluation, nothing: Evaluation, split: Split) -> Metrics:
    """`eval/<domain>/…`, or `test/<domain>/…`: success, reward, and what doing nothing succeeds at."""
    space, found = "test" if split == "test" else "eval", {}
    for domain in sorted({result.domain for result in evaluation.results}):
        own, none = evaluation.of_domain(domain), nothing.of_domain(domain)
        earned = [reward for result in own.results for reward in result.rewards if reward is not None]
        if earned:
            of = f"{space}/{domain.replace('/', '_')}"
            found[f"{of}/success_rate"] = own.success.mean
            found[f"{of}/average_reward"] = sum(earned) / len(earned)
            found[f"{of}/floor"] = none.success.mean
    return found


def _tasks(training: Training) -> list[Task]:
    config = training.config.eval
    return held_out(training.domain, config.split, config.tasks, config.seed)


async def _evaluate(training: Training, step: int, name: str) -> Evaluation:
    config = training.config.eval
    sampling = training.config.sampling.replace(temperature=config.temperature)
    evaluating = evaluate(
        training.played,
        EngineAgent(training.engine, training.format, sampling),
        _tasks(training),
        training.config.limits,
        config.trials,
        config.seed,
        training.config.engine.sequences,
        lambda done, total: training.report(f"evaluate {name}", done, total, {}),
    )
    used = training.users.usage
    evaluation = await _unless_interrupted(training, evaluating, step)
    training.engine.forget()  # so that a run which is resumed, and finds the evaluation there, goes on alike
    if training.users.scripted:
        return evaluation
    return evaluation.replace(usage={"users": training.users.usage - used})


async def _unless_interrupted(training: Training, work: Coroutine[None, None, T], step: int) -> T:
    """What the work comes to; Ctrl-C gives it up and ends the run, which on resuming does it again."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=PATIENCE)
        if training.interrupted() and not task.done():
            task.cancel()
            await asyncio.wait([task])
            training.stop(step)
    return task.result()


async def results(training: Training) -> list[tuple[str, Evaluation]]:
    """The rows of the result table: floor, oracle, and the model at each stage."""
    tasks = _tasks(training)
    nothing = training.nothing or await floor(training.domain, tasks)
    rows = [("do nothing", nothing), ("gold", await oracle(training.domain, tasks))]
    for path in sorted((training.run.folder / "evaluations").glob("*.json")):
        rows.append((path.stem.partition(" ")[2], Evaluation.model_validate_json(path.read_text(encoding="utf-8"))))
    return rows
