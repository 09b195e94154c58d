"""Evaluations during and after training."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

from understudy.clients.chat import ModelUsage
from understudy.core.tasks import Split
from understudy.evaluation.reports.files import read_report
from understudy.evaluation.reports.report import EvalReport
from understudy.evaluation.result import EvalResult
from understudy.evaluation.runner import EvalContext, play_baselines, play_eval, report_eval, write_report
from understudy.runs.agents import eval_sampling, make_model_player
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.storage.episode_store import REPORT_FILE
from understudy.train.checkpointing import finish_checkpoint
from understudy.train.eval_sets import EvalSet, base_eval_sets
from understudy.train.phases.rl import validate_fault_rate
from understudy.train.state import Metrics, TrainingContext

POLL_SECONDS = 0.2  # seconds until Ctrl-C is noticed in an evaluation
T = TypeVar("T")


async def evaluate_step(context: TrainingContext, step: int, stage: str) -> Metrics | None:
    """Evaluate the weights after `step` on each eval set. Return the metrics, or None if the run has to stop.

    Each evaluation is stored in the run. If it is stored already, its report is read instead.
    """
    metrics: Metrics = {}
    for eval_set in base_eval_sets(context.config, context.eval_sets) if step == 0 else context.eval_sets:
        folder = context.run.evaluation_folder(step, stage, eval_set.name)
        if (folder / REPORT_FILE).is_file():
            report: EvalReport | None = read_report(folder)
        else:
            report = await _run_eval(context, eval_set, step, stage, folder)
        if report is None:
            return None
        noop = next(row.result for row in report.rows if row.result.kind == "noop")
        rate, name = report.agent_rows[-1].result.success_rate, f" on {eval_set.name}" if eval_set.name else ""
        summary = f"success {rate.mean:.3f} [{rate.low:.3f}, {rate.high:.3f}] of {rate.tasks} tasks"
        context.report(f"{stage}{name}: {summary}; doing nothing {noop.success_rate.mean:.3f}", 0, 0, {})
        prefix = _metric_prefix(eval_set, context.config.eval.split)
        metrics |= eval_metrics(report.agent_rows[-1].result, noop, prefix)
    return metrics


def eval_metrics(eval_result: EvalResult, noop_result: EvalResult, prefix: str) -> Metrics:
    """Return the success rate, the mean reward and the noop success rate of each domain.

    Their names are `<prefix>/<domain>/success_rate`, `…/reward` and `…/noop_success_rate`. A domain without a scored
    episode is left out.
    """
    metrics = {}
    for domain in sorted({result.domain for result in eval_result.task_results}):
        domain_result, domain_noop = eval_result.filter_domain(domain), noop_result.filter_domain(domain)
        rewards = [reward for result in domain_result.task_results for reward in result.rewards if reward is not None]
        if rewards:
            name = f"{prefix}/{domain.replace('/', '_')}"
            metrics[f"{name}/success_rate"] = domain_result.success_rate.mean
            metrics[f"{name}/reward"] = sum(rewards) / len(rewards)
            metrics[f"{name}/noop_success_rate"] = domain_noop.success_rate.mean
    return metrics


def _metric_prefix(eval_set: EvalSet, split: Split) -> str:
    """Return the prefix of an evaluation's metrics.

    It is `test` for test tasks of the training domains, `eval` for other held-out tasks, and `eval/NAME` for other eval
    sets.
    """
    if eval_set.name:
        return f"eval/{eval_set.name}"
    return "test" if split == "test" else "eval"


async def _run_eval(
    context: TrainingContext, eval_set: EvalSet, step: int, stage: str, folder: Path
) -> EvalReport | None:
    """Evaluate the current weights into `folder`. Return the report, or None if the run has to stop."""
    run = context.run
    checkpoint = run.last_checkpoint if run.step == step else None
    if context.writer.step == step:
        checkpoint = run.checkpoint_folder(step)
    spec = EvalSpec(
        name=f"step {step}",
        agent="model",
        checkpoint=str(checkpoint.resolve()) if checkpoint else "",
        config=eval_set.config,
    )
    eval_set.baselines = eval_set.baselines or await play_baselines(eval_set.source, eval_set.tasks)
    eval_context = _make_eval_context(context, eval_set)
    what = f"{stage} on {eval_set.name}" if eval_set.name else stage

    def on_progress(done: int, total: int) -> None:
        context.report(f"evaluate {what}", done, total, {})

    on_progress(0, len(eval_set.tasks) * eval_set.config.eval.trials)
    playing = play_eval(spec, eval_context, folder, on_progress)
    used = context.users.usage
    played = await _unless_interrupted(context, playing)
    if played is None:
        return None
    context.gather_costs()
    episodes = [episode for repeat in played for episode in repeat]
    validate_fault_rate(episodes, context.config.max_fault_rate, context.run.resume_command)
    context.engine.reset_prefix_cache()  # a resumed run skips this evaluation, so training must not reuse its prefixes
    usage = {}
    if not context.users.is_scripted:
        usage["users"] = sum(context.process_group.all_gather(context.users.usage - used), ModelUsage())
    report = await report_eval(spec, eval_context, played, usage)
    finish_checkpoint(context)  # a result without its checkpoint could not be resumed from
    write_report(folder, report)
    return report


def _make_eval_context(context: TrainingContext, eval_set: EvalSet) -> EvalContext:
    return EvalContext(
        context.cost_tracker,
        make_model_player(context.config, context.engine, context.format, eval_sampling(context.config)),
        context.users,
        eval_set.source,
        eval_set.tasks,
        concurrency=context.config.engine.max_num_seqs,
        process_group=context.process_group,
        on_episode=context.on_episode,
        baselines=eval_set.baselines,
    )


async def _unless_interrupted(context: TrainingContext, work: Coroutine[None, None, T]) -> T | None:
    """Return the result of `work`. If the run has to stop before it is done, cancel it and return None.

    With several processes a run that has to stop does not cancel the work, because the others would wait for this
    process's share.
    """
    if context.process_group.world_size > 1:
        return await work
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=POLL_SECONDS)
            if context.should_stop and not task.done():
                return None
        return task.result()
    finally:
        if not task.done():  # the run has to stop, or the caller was cancelled
            task.cancel()
            await asyncio.wait([task])
