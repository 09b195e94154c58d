"""The training loop: SFT, then preferences, then RL, with one count of steps.

Steps 1 to `sft.steps` train on demonstrations, the next `preferences.steps` on preferences, and the rest by RL. A step
depends only on the config, its number, the weights and the progress, so a resumed run equals an uninterrupted one.
"""

import functools
from collections.abc import Callable, Iterator, Sequence

from understudy.clients.cost import COST_FILE, CostTracker
from understudy.core.event_loop import run_async
from understudy.core.interruption import interruptible
from understudy.core.shared_state import SharedState
from understudy.core.trajectory import Trajectory
from understudy.engines.factory import open_engine
from understudy.engines.interface import Engine, require_critic, require_reference
from understudy.engines.local.gpu_usage import GPUUsage
from understudy.engines.local.machine import detect_machine, peak_memory_bytes
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.envs.task_source import find_tool_specs, list_sources
from understudy.evaluation.reports.files import read_run_report
from understudy.evaluation.reports.report import RunReport
from understudy.formats.tool_template import write_tool_template
from understudy.rollouts.rollout import EpisodeCallback
from understudy.runs.config import TrainConfig
from understudy.runs.health import check_initial_eval, check_step, health_metrics
from understudy.runs.metrics import add_prefixes
from understudy.runs.phases import PhaseSpan, eval_name_after, has_checkpoint_after, phase_spans
from understudy.runs.run import Run
from understudy.runs.trackers import TrackerProcesses
from understudy.train.background import BackgroundWriter
from understudy.train.certify import RunCertifier, make_certification_target
from understudy.train.checkpointing import (
    finish_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    start_checkpoint,
    stop_run,
)
from understudy.train.completion import complete_run_config, fit_run
from understudy.train.data_files import DataFiles
from understudy.train.evaluation import evaluate_step
from understudy.train.phases.phases import TrainPhase, make_phases
from understudy.train.phases.sft import play_gold
from understudy.train.planning.memory import GIB, format_measured_peak, summarize_memory_plan
from understudy.train.preparation import PreparedRun, config_warnings, context_warnings, prepare_run
from understudy.train.state import ProgressReporter, TrainingContext, TrainingProgress
from understudy.train.step_records import has_eval_record, log_eval, log_step, report_issues, stop_unhealthy_run


def train(
    config: TrainConfig,
    run: Run,
    report: ProgressReporter,
    process_group: ProcessGroup = SINGLE_PROCESS,
    on_episode: EpisodeCallback = lambda episode: None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> RunReport:
    """Run `train_async` in an event loop of its own. Raise RuntimeError if one is running."""
    return run_async(train_async(config, run, report, process_group, on_episode, on_interrupt))


async def train_async(
    config: TrainConfig,
    run: Run,
    report: ProgressReporter,
    process_group: ProcessGroup = SINGLE_PROCESS,
    on_episode: EpisodeCallback = lambda episode: None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> RunReport:
    """Train to the end and return the results. All processes of a group call this, each with its own `run`.

    `on_episode` gets each episode that this process has played. The signal handler of the first Ctrl-C calls
    `on_interrupt` (see `core.interruption`).

    On Ctrl-C, write a checkpoint and raise KeyboardInterrupt. At `cost_limit`, and for the checks of `health.stop_on`,
    raise RolloutError.
    """
    config, completed = complete_run_config(config, run)
    fitted = fit_run(config, run, process_group)
    config, plan = fitted.config, fitted.plan
    tracker = CostTracker(file=run.folder / COST_FILE)
    prepared = await prepare_run(config, run.created_at, run.step, tracker)
    prepared.data_files.validate_unchanged(run)
    shared = SharedState(code for leaf in list_sources(prepared.domain) for code in leaf.episode_code())
    # Before anything else is played: limits that are too small for the gold episodes are refused here.
    gold = await play_gold(config, prepared.domain, prepared.format) if run.step < config.sft.steps else []
    machine = detect_machine(config.engine.export_engine_config)
    notes = (*machine.warnings, *config_warnings(config), *prepared.notes, *shared.find_changed())
    planned = [line for line in (fitted.changes, plan and summarize_memory_plan(plan)) if line]
    for line in (*run.warnings, *completed, *planned, *notes):
        report(line, 0, 0, {})
    engine = open_engine(
        prepared.model_folder,
        config.resolved_engine,
        config.seed,
        process_group,
        trained_tokens=prepared.model_format.trained_tokens,
    )
    tracker_names = config.trackers if process_group.rank == 0 else ()
    try:
        if config.algorithm.uses_critic:
            require_critic(engine).add_critic(config.algorithm.critic)
        if config.algorithm.kl_coef or config.preferences.steps:
            require_reference(engine)
        for line in (str(engine.sampler_choice), *context_warnings(config, engine.context_length)):
            report(line, 0, 0, {})
        with (
            interruptible(on_interrupt) as is_interrupted,
            TrackerProcesses(tracker_names, config.tracking, run.folder, config.model_dump(mode="json")) as trackers,
            GPUUsage(machine.device) as gpu_usage,
            BackgroundWriter() as writer,
        ):
            context = TrainingContext(
                config=config,
                run=run,
                domain=prepared.domain,
                engine=engine,
                format=prepared.format,
                users=prepared.users,
                eval_sets=prepared.eval_sets,
                certifier=_make_certifier(prepared, config, engine, process_group),
                trackers=trackers,
                report=report,
                on_episode=on_episode,
                is_interrupted=lambda: any(process_group.all_gather(is_interrupted())),
                process_group=process_group,
                reward_judge=prepared.reward_judge,
                noop_reward=prepared.noop_reward,
                device=machine.device,
                gpu_usage=gpu_usage,
                cost_tracker=prepared.cost_tracker,
                writer=writer,
            )
            result = await _train(context, prepared.data_files, gold)
            if plan:
                report(format_measured_peak(plan, peak_memory_bytes(plan.device)), 0, 0, {})
            return result
    finally:
        engine.close()


def _make_certifier(
    prepared: PreparedRun, config: TrainConfig, engine: Engine, process_group: ProcessGroup
) -> RunCertifier:
    target = make_certification_target(config, prepared.model_folder, engine, prepared.format)
    tools = functools.partial(find_tool_specs, prepared.domain)
    thinking = config.format.enable_thinking
    return RunCertifier(target, config.certify, tools, prepared.model_folder, thinking, process_group)


async def _train(context: TrainingContext, data_files: DataFiles, gold: Sequence[Trajectory]) -> RunReport:
    config, run = context.config, context.run
    read_run_report(run.folder)  # a damaged report of an earlier evaluation is named now, not after the last step
    progress = load_checkpoint(run, context.engine)
    if context.over_cost_limit:
        stop_run(context, progress, run.step)
    await context.certifier.certify_start(run)
    await _evaluate(context, progress, run.step)
    phases = make_phases(context, progress, data_files, gold)
    for step, span in _steps(config, run.step):
        if step == span.first_step:
            phases[span.name].start()
        await _step(context, progress, step, phases[span.name])
        await _evaluate(context, progress, step)
    finish_checkpoint(context)
    prune_checkpoints(context)  # a run that was killed after its last step has left some
    result = read_run_report(run.folder)
    with run.write_model() as folder:
        context.engine.export(folder)
        if not config.engine.uses_lora:
            write_tool_template(folder, config.format)
    for line in context.trackers.close():
        context.report(line, 0, 0, {})
    return result


async def _step(context: TrainingContext, progress: TrainingProgress, step: int, phase: TrainPhase) -> None:
    """Train one step. Its metrics are checked and written before its checkpoint."""
    config = context.config
    metrics = await phase.run_step(step)
    finish_checkpoint(context)  # that of the last step; an error of the disk is told here
    peak = {"peak_memory_gib": peak_memory_bytes(context.device) / GIB}
    metrics = add_prefixes(metrics | peak | context.gpu_usage.pop_metrics())
    results = check_step(metrics, progress.history, config.health, config.algorithm.health_remedies)
    metrics |= health_metrics(results)
    context.report("train", step, config.total_steps, metrics)
    halts = report_issues(context, progress, step, results)
    log_step(context, progress, step, metrics)
    is_finite = not any(result.check == "finite" and not result.ok for result in results)
    if is_finite and (halts or has_checkpoint_after(config, step)):
        if step in [span.last_step for span in phase_spans(config)[:-1]]:
            context.engine.reset_optimizer()  # as the next phase does; without moments the file takes a third
        start_checkpoint(context, progress, step)
    if halts:
        finish_checkpoint(context)
        stop_unhealthy_run(context.run, step, halts[0])


async def _evaluate(context: TrainingContext, progress: TrainingProgress, step: int) -> None:
    """Evaluate the weights after a step if an evaluation is due and not recorded.

    Stop the run on Ctrl-C or at `cost_limit`. This is checked before, during and after the evaluation.
    """
    config = context.config
    if context.should_stop:
        stop_run(context, progress, step)
    name = eval_name_after(config, step)
    if name is None or has_eval_record(context.run, step):
        return
    metrics = await evaluate_step(context, step, name)
    if metrics is None:
        stop_run(context, progress, step)
    starts_rl = step == config.steps_before_rl and config.steps > 0
    log_eval(context, progress, step, metrics, check_initial_eval(metrics, config.health) if starts_rl else [])
    if context.should_stop:
        stop_run(context, progress, step)


def _steps(config: TrainConfig, done: int) -> Iterator[tuple[int, PhaseSpan]]:
    """Yield the steps after the first `done`, each with its phase."""
    for span in phase_spans(config):
        yield from ((step, span) for step in range(max(done + 1, span.first_step), span.last_step + 1))
