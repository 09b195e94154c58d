"""Evaluations of runs, written without playing, for tests of code that reads them."""

from collections.abc import Sequence
from pathlib import Path

from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.evaluation.reports.files import read_report
from understudy.evaluation.reports.report import EvalReport
from understudy.evaluation.result import EvalResult, ResultRow
from understudy.evaluation.runner import write_report
from understudy.runs.config import TrainConfig
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.run import Run, list_run_evaluations
from understudy.runs.storage.episode_store import EpisodeStore
from understudy.runs.storage.task_store import TaskStore

NO_RESULT = EvalResult(domain="toy", seed=0, trials=1, task_results=())


def write_run_evaluation(
    run: Run,
    step: int,
    stage: str,
    result: EvalResult = NO_RESULT,
    episodes: Sequence[Trajectory] = (),
    tasks: Sequence[Task] = (),
    eval_set: str = "",
    config: TrainConfig | None = None,
) -> Path:
    """Write an evaluation of the weights after a step, as the training loop does. Return its folder."""
    folder = run.evaluation_folder(step, stage, eval_set)
    spec = EvalSpec(name=f"step {step}", agent="model", config=config or run.config)
    store = EpisodeStore(folder, spec)
    for episode in episodes:
        store.add(episode)
    TaskStore(folder).add(tasks)
    write_report(folder, EvalReport(rows=(ResultRow(name=spec.name, result=result.replace(kind="agent")),)))
    return folder


def run_results(run: Path, eval_set: str = "") -> dict[str, EvalResult]:
    """Return the result of each evaluation of a run, by the name of its folder."""
    evaluations = [each for each in list_run_evaluations(run) if each.eval_set == eval_set]
    return {each.name: read_report(each.folder).agent_rows[-1].result for each in evaluations}
