"""Evaluation while and after a model is trained, and the rows of the result table."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from understudy.agent import EngineAgent
from understudy.evaluate import Evaluation, evaluate, floor, held_out, oracle
from understudy.train.state import Training

PATIENCE = 0.2  # seconds until Ctrl-C is noticed in an evaluation
T = TypeVar("T")


async def evaluate_now(training: Training, step: int, name: str) -> None:
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
            training.stop(step)
    return task.result()


async def results(training: Training, last: str) -> list[tuple[str, Evaluation]]:
    """The rows of the result table: floor, oracle, and the model at each stage; `last` is what the last is called."""
    config = training.config
    await evaluate_now(training, training.total, last)
    tasks = held_out(training.domain, config.eval.split, config.eval.tasks, config.eval.seed)
    rows = [("do nothing", await floor(training.domain, tasks)), ("gold", await oracle(training.domain, tasks))]
    for path in sorted((training.run.folder / "evaluations").glob("*.json")):
        rows.append((path.stem.partition(" ")[2], Evaluation.model_validate_json(path.read_text(encoding="utf-8"))))
    return rows
