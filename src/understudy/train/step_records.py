"""Records of steps and evaluations in the run's folder: metrics, and health issues, which may stop the run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NoReturn

from understudy.core.errors import RunStoppedError
from understudy.core.trajectory import Trajectory
from understudy.runs.health import HealthCheckResult, health_metrics
from understudy.runs.run import Run, read_metrics, read_warnings
from understudy.train.state import Metrics, TrainingContext, TrainingProgress


def log_step(context: TrainingContext, progress: TrainingProgress, step: int, metrics: Mapping[str, float]) -> None:
    """Record the metrics of a training step. Call it before the checkpoint, so that no checkpoint lacks its metrics."""
    context.log_metrics(step, metrics, "train")
    progress.history.append({"step": step, **metrics})


def log_eval(
    context: TrainingContext,
    progress: TrainingProgress,
    step: int,
    metrics: Metrics,
    results: Sequence[HealthCheckResult],
) -> None:
    """Record the metrics of the evaluation after a step. Raise RunStoppedError if an issue stops the run."""
    halts = report_issues(context, progress, step, results)
    context.log_metrics(step, metrics | health_metrics(results), "eval")
    if halts:
        stop_unhealthy_run(context.run, step, halts[0])


def has_eval_record(run: Run, step: int) -> bool:
    """Return whether the evaluation after a step is recorded."""
    return any(record["step"] == step for record in read_metrics(run.folder, "eval"))


def report_issues(
    context: TrainingContext, progress: TrainingProgress, step: int, results: Sequence[HealthCheckResult]
) -> list[HealthCheckResult]:
    """Report and record the issues that the previous step did not have. Return all issues that stop the run."""
    bad = [result for result in results if not result.ok]
    before = progress.history[-1] if progress.history else {}
    logged = {(warning["step"], warning["check"]) for warning in read_warnings(context.run.folder)} if bad else set()
    for issue in bad:
        if not before.get(f"health/{issue.check}"):
            context.report(f"step {step}: health/{issue}", 0, 0, {})
            if (step, issue.check) not in logged:  # a run that was killed and resumed may have logged it before
                warning = {"check": issue.check, "text": issue.message, "remedy": issue.remedy}
                context.run.log_warning(step, warning)
    return [issue for issue in bad if issue.check in context.config.health.stop_on]


def report_exceptions(context: TrainingContext, step: int, episodes: Sequence[Trajectory]) -> None:
    """Report and record the exceptions that user code raised in the episodes, once in a run for each place in it."""
    counts = Counter((report.what, report.location) for episode in episodes for report in episode.exceptions)
    if not counts:
        return
    reports = {(report.what, report.location): report for episode in episodes for report in episode.exceptions}
    logged = {(warning.get("what"), warning.get("location")) for warning in read_warnings(context.run.folder)}
    for place, report in reports.items():
        if place not in logged:
            text = f"{report}, in {counts[place]} of {len(episodes)} episodes"
            context.report(f"step {step}: {text}; health.jsonl has the traceback", 0, 0, {})
            remedy = "mend the code, or raise ToolError if the agent's call is wrong"
            context.run.log_warning(
                step,
                {
                    "check": "user_code",
                    "text": text,
                    "remedy": remedy,
                    "what": report.what,
                    "location": report.location,
                    "traceback": report.traceback,
                },
            )


def stop_unhealthy_run(run: Run, step: int, issue: HealthCheckResult) -> NoReturn:
    """Raise RunStoppedError because of a health issue of a step.

    The step has a checkpoint if its weights are finite.
    """
    raise RunStoppedError(
        f"stopped after step {step} by a check of health.stop_on ({issue}); to resume from step {run.step} anyway: "
        f"{run.resume_command} health.stop_on=[]",
        "engine",
    )
