"""Prepare a training run before its model is loaded, and check its config."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from understudy.algorithms.custom import validate_custom_functions
from understudy.clients.chat import DEFAULT_ENDPOINT, Budget, find_endpoint, open_chat_model
from understudy.clients.cost import CostTracker, validate_prices
from understudy.core.errors import ConfigError
from understudy.engines.models import find_model
from understudy.engines.models.folder import validate_trainable
from understudy.engines.unsupported import raise_unsupported
from understudy.envs.task_source import TaskSource, list_file_summaries, list_notes
from understudy.envs.users import UserSimulatorFactory
from understudy.evaluation.evaluate import validate_noop_reward, validate_room
from understudy.formats import ChatFormat
from understudy.rollouts.agent import NoopAgent
from understudy.rollouts.reward_shaping import RewardJudge, ShapedEnvironmentFactory, ShapingConfig
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.rollouts.supervised import validate_source_tools
from understudy.runs.config import TrainConfig
from understudy.runs.endpoints import (
    AGENT_KEY,
    FAILURE_JUDGE_KEY,
    REWARD_JUDGE_KEY,
    USER_KEY,
    endpoint_configs,
    training_endpoint_names,
)
from understudy.runs.model_format import ModelFormat, choose_format
from understudy.runs.trackers import validate_trackers
from understudy.sources.task_files.source_matching import load_episode_class
from understudy.train.data_files import DataFiles, read_data_files
from understudy.train.engine_support import unsupported_settings
from understudy.train.eval_sets import EvalSet, make_eval_sets
from understudy.train.experts import expert_notes
from understudy.train.reference import validate_reference
from understudy.train.unused_settings import unused_settings
from understudy.train.users import make_users

_NUM_PROBED_TASKS = 8
"""Number of tasks that are probed for progress scores. A mixture needs several, since its domains differ in scoring."""


@dataclass(frozen=True)
class PreparedRun:
    """The parts of a run, except its engine."""

    model_folder: Path
    """The folder of the model."""
    model_format: ModelFormat
    model_notes: Sequence[str]
    """What training does not do for this kind of model."""
    domain: TaskSource
    eval_sets: Sequence[EvalSet]
    users: UserSimulatorFactory
    noop_reward: float
    """The reward of the noop agent on tasks of the training split."""
    data_files: DataFiles
    reward_judge: RewardJudge | None
    """Grades failed episodes, if `algorithm.shaping` asks for it."""
    cost_tracker: CostTracker
    """Counts the cost of the user model and the reward judge."""

    @property
    def format(self) -> ChatFormat:
        """The model's chat format."""
        return self.model_format.format

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know of the model, its tokens, the data files, the sources of tasks and their users."""
        notes = (*self.model_notes, *self.model_format.notes, *self.data_files.notes)
        return (*notes, *list_notes(self.domain), *self.users.notes)


async def prepare_run(
    config: TrainConfig, today: date | None = None, done_steps: int = 0, cost_tracker: CostTracker | None = None
) -> PreparedRun:
    """Find and check what a config names, for a run that has finished `done_steps` steps.

    `today` is the date that chat templates print. `cost_tracker` counts the cost of the user model and the reward
    judge. Raise ConfigError if a setting is invalid, or TaskError if doing nothing solves tasks.
    """
    validate_trackers(config.trackers)
    for key, name in (
        (AGENT_KEY, config.agent_endpoint),
        (FAILURE_JUDGE_KEY, config.eval.failure_judge_endpoint),
        (REWARD_JUDGE_KEY, config.algorithm.shaping.judge_endpoint),
        (USER_KEY, config.user.endpoint),
    ):
        if name != DEFAULT_ENDPOINT:  # the run may call none of them
            find_endpoint(config.endpoints, name, key)
    if config.agent.name:
        from understudy.rollouts.program import validate_program  # MCP takes long to import

        validate_program(config.agent)
    if config.data.reward:
        load_episode_class(config.data.reward)
    folder = find_model(config.model)
    if config.engine.kind == "local":  # before the tasks are checked, which takes longer
        validate_trainable(folder)
    domain = config.open_source()
    eval_sets = make_eval_sets(config, domain)
    validate_reference(config, folder)
    validate_custom_functions(config.algorithm.advantage_estimator, config.algorithm.loss)
    validate_prices(config.cost_limit, endpoint_configs(config, training_endpoint_names(config)))
    _validate_files_used(config)
    cost_tracker = cost_tracker or CostTracker()
    reward_judge = make_reward_judge(config, cost_tracker.budget_for("judge"))
    raise_unsupported(unsupported_settings(config))
    users = make_users(config, domain, cost_tracker.budget_for("users"))
    noop_reward = await validate_noop_reward(domain, config.seed, allow_noop_solvable=config.allow_noop_solvable)
    if config.steps and config.algorithm.shaping.progress_weight:
        await _validate_progress_scores(config, domain)
    model_format = choose_format(folder, config, today)
    sources = (domain, *(eval_set.source for eval_set in eval_sets))
    validate_source_tools(model_format.format, sources)
    summaries = [summary for source in sources for summary in list_file_summaries(source)]
    files = read_data_files(config, domain, model_format.format, done_steps, summaries)
    if config.steps and done_steps < config.total_steps:
        reply = config.sampling.max_response_tokens
        await validate_room(domain, model_format.format, config.limits, reply, config.seed)
    notes = (*expert_notes(config, folder),)
    return PreparedRun(
        folder, model_format, notes, domain, eval_sets, users, noop_reward, files, reward_judge, cost_tracker
    )


def make_reward_judge(config: TrainConfig, budget: Budget | None = None) -> RewardJudge | None:
    """Return the judge that grades failed episodes, if `algorithm.shaping` asks for one.

    Raise ConfigError if its endpoint is unknown, has no model or names a key that is not set.
    """
    name = training_endpoint_names(config).get(REWARD_JUDGE_KEY)
    return RewardJudge(open_chat_model(config.endpoints, name, REWARD_JUDGE_KEY, "grader", budget)) if name else None


def config_warnings(config: TrainConfig) -> list[str]:
    """Return warnings about settings that are allowed but have side effects or no effect, one line each."""
    lines = list(unused_settings(config))
    if not config.steps:
        return lines
    sampling = config.sampling
    if sampling.temperature == 0:
        lines.append(
            "sampling.temperature = 0: RL does not explore, since episodes of a group differ only by their users, and "
            "groups of equal rewards teach nothing; set sampling.temperature=1 (docs/finetuning.md)"
        )
    if biased := _biased_sampling(config):
        named = ", ".join(f"sampling.{name} = {value}" for name, value in biased.items())
        lines.append(
            f"{named}: replies are sampled from a different distribution than the trained one; see docs/finetuning.md"
        )
    reference = config.algorithm.reference
    if reference.kind == "ema" and reference.sync_steps >= config.steps:
        lines.append(
            f"algorithm.reference.sync_steps = {reference.sync_steps}, but the run has {config.steps} steps: the "
            "reference is never updated, as with kind=frozen"
        )
    if config.algorithm.critic_warmup_steps >= config.steps:
        lines.append(
            f"algorithm.critic.warmup_steps = {config.algorithm.critic_warmup_steps}, but the run has {config.steps} "
            "steps: only the critic is trained, and the policy stays as it is"
        )
    return lines


def _biased_sampling(config: TrainConfig) -> dict[str, Any]:
    """Return the sampling parameters by which the sampled distribution differs from the trained one."""
    sampling = config.sampling
    names = {"repetition_penalty", "frequency_penalty", "presence_penalty"}
    if not (sampling.records_masks and config.engine.kind == "local"):
        names |= {"top_p", "top_k", "min_p"}
    return sampling.model_dump(include=names, exclude_defaults=True)


def context_warnings(config: TrainConfig, context: int) -> list[str]:
    """Return a warning if episodes may reach the end of the model's context of `context` tokens."""
    longest = config.limits.max_episode_tokens
    if longest <= context:
        return []
    return [f"limits.max_episode_tokens = {longest}, but the model's context is {context}: episodes end at the context"]


async def _validate_progress_scores(config: TrainConfig, domain: TaskSource) -> None:
    """Raise ConfigError if `shaping.progress_weight` is set but the domain reports no progress."""
    shaped = ShapedEnvironmentFactory(domain, ShapingConfig(progress_weight=config.algorithm.shaping.progress_weight))
    for task in itertools.islice(domain.stream("train", config.seed), _NUM_PROBED_TASKS):
        await play_episode(shaped, task, NoopAgent(), EpisodeLimits(), config.seed)


def _validate_files_used(config: TrainConfig) -> None:
    for name, phase in (("sft", config.sft), ("preferences", config.preferences)):
        if phase.dataset_file and not phase.steps:
            raise ConfigError(
                f"{name}.dataset_file = {phase.dataset_file!r}, but {name}.steps = 0, so the file is not used; "
                "set both or neither"
            )
