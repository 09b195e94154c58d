"""Play an agent on tasks and store the episodes in the folder of an evaluation.

    evals/retail-gpt-4.1-mini-001/
      spec.json         an `EvalSpec`: which agent plays which tasks, and how
      tasks.jsonl       the tasks
      episodes.jsonl    the episodes in the order in which they end, except those with a fault that is not the agent's
      cost.jsonl        the cost of each request to an endpoint (agent, users, judge)
      replies/          the replies of endpoints, until all episodes have a score
      report.json       the results, written last; report.md holds the same as Markdown

Three commands write such folders by `play_eval`:

    understudy eval            evals/DOMAIN-NAME-001
    understudy train           RUN/evaluations/000010 sft, and `000010 sft ood` for the tasks of `eval.ood_domains`.
                               The cost of the users is in the run's own cost.jsonl.
    understudy data collect    OUT.episodes, until OUT is written. There is no report.

An interrupted `eval` or `data collect`, even a killed one, is resumed with the episodes that are missing. The replies
of an episode under way are stored, so no request is paid twice. A training run that is resumed drops an unfinished
evaluation and repeats it, so that the run equals one that was not interrupted.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from understudy.clients.chat import ChatModel, ModelUsage, open_chat_model
from understudy.clients.cost import COST_FILE, CostTracker, validate_prices
from understudy.core.errors import ConfigError
from understudy.core.files import RETRY_HINT, atomic_write, os_errors_as_config_errors
from understudy.core.tasks import SPLITS, Task
from understudy.core.trajectory import Trajectory
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.envs.task_source import CompositeSource, TaskSource
from understudy.envs.users import UserSimulatorFactory
from understudy.evaluation.comparison import validate_comparable
from understudy.evaluation.evaluate import (
    eval_tasks,
    evaluate_gold,
    evaluate_noop,
    play_episodes,
    replace_users,
)
from understudy.evaluation.failures.explain import find_failures
from understudy.evaluation.failures.judge import judge_failures
from understudy.evaluation.noise import estimate_noise
from understudy.evaluation.prompt_variants import RewordedPrompts, measure_prompt_spread
from understudy.evaluation.reports.as_json import report_to_dict
from understudy.evaluation.reports.markdown import report_to_markdown
from understudy.evaluation.reports.report import EvalReport
from understudy.evaluation.result import EvalResult, ResultRow, repeat_name, summarize_episodes
from understudy.rollouts.agent import Agent, NoopAgent
from understudy.rollouts.rollout import (
    EnvironmentFactory,
    EpisodeCallback,
    Player,
    ProgressCallback,
    RolloutRequest,
    episode_seed,
    report_nothing,
)
from understudy.runs.agents import make_player, validate_model_format
from understudy.runs.config import TrainConfig
from understudy.runs.endpoints import FAILURE_JUDGE_KEY, endpoint_configs, eval_endpoint_names
from understudy.runs.eval_spec import EvalSpec, is_eval_folder
from understudy.runs.storage.episode_store import (
    EPISODES_FILE,
    REPLY_CACHE_FOLDER,
    REPORT_FILE,
    SPEC_FILE,
    EpisodeStore,
    read_episodes,
    validate_same_spec,
    with_reply_cache,
)
from understudy.runs.storage.task_store import TaskStore, validate_same_tasks


@dataclass
class EvalContext:
    """The agent, users, tasks and services of an evaluation."""

    cost_tracker: CostTracker
    agent: Player
    users: UserSimulatorFactory
    source: TaskSource
    tasks: Sequence[Task]
    judge: ChatModel | None = None
    concurrency: int = 64
    strip_tokens: bool = False
    """Whether episodes are stored without their tokens."""
    process_group: ProcessGroup = SINGLE_PROCESS
    on_episode: EpisodeCallback = lambda episode: None
    """Gets each episode that this process has played or read."""
    baselines: tuple[ResultRow, ...] = ()
    """Results of noop and gold. `run_eval` plays them if this is empty."""
    warnings: tuple[str, ...] = ()
    """What a user should know of the agent before the evaluation."""


def prepare_eval(
    spec: EvalSpec,
    folder: Path | None,
    cost_limit: Decimal,
    concurrency: int,
    human_agent: Agent | None = None,
    baseline: EvalReport | None = None,
) -> EvalContext:
    """Check an evaluation and create its agent, users and tasks, before anything is written.

    `human_agent` replaces the spec's agent if a person plays. `baseline` is the report that it will be compared with.
    Without a folder nothing is stored. The agent is created last, so that other mistakes are found before a model is
    loaded. Raise ConfigError if something is missing or wrong.
    """
    used = eval_endpoint_names(spec.agent, spec.config, spec.judge_failures)
    validate_prices(cost_limit, endpoint_configs(spec.config, used))
    if folder and is_eval_folder(folder):
        validate_same_spec(folder, spec)
    source, tasks = load_eval_tasks(spec.config)
    if baseline:
        validate_comparable(tasks, source.name, baseline)
    if folder:
        validate_same_tasks(folder, tasks)
    config = with_reply_cache(spec.config, folder) if folder else spec.config
    cost_tracker = CostTracker(cost_limit, folder / COST_FILE if folder else None)
    users = UserSimulatorFactory(config.user, config.endpoints, cost_tracker.budget_for("users"))
    judge = None
    if spec.judge_failures:
        budget = cost_tracker.budget_for("judge")
        judge = open_chat_model(
            config.endpoints, config.eval.failure_judge_endpoint, FAILURE_JUDGE_KEY, "grader", budget
        )
    checkpoint = Path(spec.checkpoint) if spec.checkpoint else None
    warnings: tuple[str, ...] = ()
    if folder and is_eval_folder(folder) and _is_complete(folder, spec, tasks):
        agent: Player = NoopAgent()  # it is never asked, so the evaluated model need not exist any more
    else:
        if spec.agent == "model" and not human_agent:
            warnings = validate_model_format(config, source, tasks)
        agent = human_agent or make_player(spec.agent, config, checkpoint, cost_tracker.budget_for("agent"))
    alone = human_agent is not None or config.user.kind == "human"
    concurrency = 1 if alone else concurrency
    return EvalContext(cost_tracker, agent, users, source, tasks, judge, concurrency, warnings=warnings)


async def run_eval(
    spec: EvalSpec,
    context: EvalContext,
    folder: Path | None = None,
    on_progress: ProgressCallback = report_nothing,
) -> EvalReport:
    """Play the episodes that are not stored yet and return the report. With a folder, the report is written there."""
    context.baselines = context.baselines or await play_baselines(context.source, context.tasks)
    played = await play_eval(spec, context, folder, on_progress)
    report = await report_eval(spec, context, played)
    if folder:
        # Verdicts of a judge are stored only as replies, and resuming must not pay for them again.
        write_report(folder, report, keep_replies=report.fault_count > 0 or spec.judge_failures)
    return report


async def play_eval(
    spec: EvalSpec,
    context: EvalContext,
    folder: Path | None = None,
    on_progress: ProgressCallback = report_nothing,
) -> list[list[Trajectory]]:
    """Play the episodes that are not stored yet. Return all episodes, one list for each repeat.

    With a folder, each episode is stored there as it ends.
    """
    store = None
    if folder:
        store = EpisodeStore(folder, spec, context.strip_tokens)
        with os_errors_as_config_errors(folder, RETRY_HINT):
            TaskStore(folder).add(context.tasks)
    played = list[list[Trajectory]]()
    for number in range(spec.repeats):
        played.append(await _play_repeat(spec, context, store, number, on_progress))
        if spec.wordings and not any(message.role == "system" for each in played[0] for message in each.messages):
            raise ConfigError("these tasks have no system message to word differently; leave out --prompt-variants")
    return played


async def play_baselines(source: TaskSource, tasks: Sequence[Task]) -> tuple[ResultRow, ...]:
    """Return the results of noop and gold."""
    noop, gold = await evaluate_noop(source, tasks), await evaluate_gold(source, tasks)
    return ResultRow(name="noop", result=noop), ResultRow(name="gold", result=gold)


async def report_eval(
    spec: EvalSpec,
    context: EvalContext,
    played: Sequence[Sequence[Trajectory]],
    usage: dict[str, ModelUsage] | None = None,
) -> EvalReport:
    """Return the report of an evaluation: the baselines, the agent, and why episodes failed.

    `usage` is the usage of endpoints by role; that of the context if it is not given.
    """
    tasks = {task.id: task for task in context.tasks}
    episodes = [episode for each in played for episode in each]
    failures = await find_failures(context.source, tasks, episodes, context.users.is_scripted)
    if context.judge:
        failures = await judge_failures(context.judge, tasks, episodes, failures)
    results = _results(spec, context, played)
    results[0] = results[0].replace(usage=context.cost_tracker.usage_by_role if usage is None else usage)
    names = row_names(spec)
    rows = [ResultRow(name=name, result=result) for name, result in zip(names, results, strict=True)]
    baselines = [row for row in context.baselines if row.name not in names]  # the agent may be noop or gold itself
    prompts = measure_prompt_spread([*spec.wordings], results)
    noise = estimate_noise(results[:1] if spec.wordings else results)
    return EvalReport(rows=(*baselines, *rows), failures=tuple(failures), noise=noise, prompts=prompts)


def row_names(spec: EvalSpec) -> list[str]:
    """Return the name of each repeat's row. The first one is the agent's."""
    if spec.wordings:
        return [f"{spec.name}, {wording}" if number else spec.name for number, wording in enumerate(spec.wordings)]
    return [repeat_name(spec.name, number) for number in range(spec.repeats)]


def write_report(folder: Path, report: EvalReport, keep_replies: bool = False) -> None:
    """Write report.md and report.json. Remove the stored replies, unless episodes are missing, which resuming plays."""
    with os_errors_as_config_errors(folder, "continue with --resume"):
        atomic_write(folder / "report.md", report_to_markdown(report))
        atomic_write(folder / REPORT_FILE, json.dumps(report_to_dict(report), indent=1) + "\n")
    if not keep_replies:
        shutil.rmtree(folder / REPLY_CACHE_FOLDER, ignore_errors=True)


def validate_new_eval_folder(folder: Path) -> None:
    """Raise ConfigError if the folder of a new evaluation is a file or has content."""
    if (folder / SPEC_FILE).exists():
        raise ConfigError(f"{folder} holds an evaluation; resume it with --resume {folder}, or give another --out")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} {'is not empty' if folder.is_dir() else 'is a file'}; give another --out")


def load_eval_tasks(config: TrainConfig) -> tuple[TaskSource, list[Task]]:
    """Return the domain of a config, and the tasks of an evaluation there.

    Of a file of tasks that has only one split, these are the tasks of that split.
    """
    source = config.open_source()
    is_file = isinstance(source, CompositeSource) and source.file_summaries()
    splits = [split for split in SPLITS if source.tasks(split)] if is_file else []
    settings = config.eval.replace(split=splits[0]) if len(splits) == 1 else config.eval
    return source, eval_tasks(source, settings)


def _is_complete(folder: Path, spec: EvalSpec, tasks: Sequence[Task]) -> bool:
    """Return whether the folder has an episode for each trial of each task in each repeat."""
    try:
        stored = {(episode.task_id, episode.seed) for episode in read_episodes(folder / EPISODES_FILE)}
    except ConfigError:  # a line was cut off by a crash; the store repairs the file
        return False
    config, attempts = spec.config.eval, range(spec.config.limits.max_retries + 1)
    firsts = (
        (task.id, episode_seed(config.seed + number, task, trial))
        for number in range(spec.repeats)
        for task in tasks
        for trial in range(config.trials)
    )
    return all(any((name, first + attempt) in stored for attempt in attempts) for name, first in firsts)


async def _play_repeat(
    spec: EvalSpec,
    context: EvalContext,
    store: EpisodeStore[EvalSpec] | None,
    number: int,
    on_progress: ProgressCallback,
) -> list[Trajectory]:
    """Play one repeat, with the seed of the config plus `number`."""
    config = spec.config.eval
    size = len(context.tasks) * config.trials
    environments: EnvironmentFactory = replace_users(context.source, context.users)
    if spec.wordings:
        environments = RewordedPrompts(environments, *[*spec.wordings.items()][number])
    request = RolloutRequest(
        environments,
        context.agent,
        spec.config.limits,
        config.seed + number,
        context.process_group,
        context.on_episode,
        on_progress=lambda ended, _: on_progress(number * size + ended, spec.repeats * size),
    )
    return await play_episodes(request, context.tasks, config.trials, context.concurrency, store)


def _results(spec: EvalSpec, context: EvalContext, played: Sequence[Sequence[Trajectory]]) -> list[EvalResult]:
    config = spec.config.eval
    return [
        summarize_episodes(context.source, context.tasks, episodes, config.trials, config.seed + number)
        for number, episodes in enumerate(played)
    ]
