"""Plan a run for a target success rate: which phases it needs, how many steps, and about how long they take.

The plan starts from a measurement: groups of episodes of the model on training tasks, sampled as in training, for about
a minute. It answers two questions. Is there something to learn from by RL: do episodes of a group earn different
rewards? And how far is the target, in log-odds of success?

`EPISODES_PER_LOGIT` is a rule of thumb from runs of one small model (docs/results.md), so the numbers of steps are
orders of magnitude.
"""

import itertools
import math
import time
from collections.abc import Sequence
from typing import Literal

from understudy.core.errors import ConfigError
from understudy.core.records import Record
from understudy.core.tasks import Task
from understudy.engines.factory import open_engine
from understudy.evaluation.evaluate import play_episodes, replace_users
from understudy.evaluation.result import EvalResult, summarize_episodes
from understudy.evaluation.statistics import MeanEstimate
from understudy.rollouts.agent import EngineAgent
from understudy.rollouts.rollout import RolloutRequest
from understudy.runs.config import TrainConfig
from understudy.train.completion import complete_config
from understudy.train.eval_sets import base_eval_sets
from understudy.train.planning import forecast
from understudy.train.planning.fitting import fit_to_machine
from understudy.train.planning.forecast import RunForecast, format_duration
from understudy.train.planning.preflight import measure_gold_episodes, measured_speeds
from understudy.train.preparation import PreparedRun, prepare_run

MIN_TRAINABLE_GROUPS = 2.0
"""Mean number of groups of a step whose rewards differ, below which RL makes no use of most steps."""
EPISODES_PER_LOGIT = (950, 1450, 2050)
"""RL episodes for each unit of log-odds of success: the fastest, the median and the slowest of three seeds of the
preset `retail_easy` (SmolLM2-135M, 1,280 episodes each): 0.405 to 0.725, 0.480 to 0.690 and 0.610 to 0.745."""
SFT_PASSES = 1.5
"""Passes over the demonstrations, as in the presets."""
START_AFTER_SFT = 0.4
"""Success rate that is assumed after SFT, because it cannot be measured before: the lowest of three seeds of the
preset `retail_easy`."""
MAX_MEASURED_TASKS = 64

PhaseName = Literal["sft", "preferences", "rl"]


class PlannedPhase(Record):
    """A phase of training that the plan advises or leaves out."""

    name: PhaseName
    steps: int
    """Steps; 0 if the phase is not needed."""
    reason: str


class TrainingPlan(Record):
    """The measurement, and the phases that follow from it."""

    target: float
    noop_reward: float
    """Mean reward of doing nothing on the training tasks."""
    success: MeanEstimate
    """The model's success rate on training tasks, sampled as in training."""
    group_size: int
    trainable_groups: float
    """Share of the measured groups whose rewards differ."""
    reward_std: float
    """Mean standard deviation of the rewards within a group."""
    episodes: int
    """Number of measured episodes."""
    measured_seconds: float
    phases: tuple[PlannedPhase, ...]
    rl_episodes: tuple[int, int, int]
    """RL episodes to the target: few, expected, many."""
    forecast: RunForecast
    settings: tuple[str, ...]
    """Settings that carry out the plan."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        success = self.success
        lines = [
            f"measured: {self.episodes} episodes of {success.tasks} training tasks in "
            f"{format_duration(self.measured_seconds)}",
            f"  success {success.mean:.3f} [{success.low:.3f}, {success.high:.3f}], "
            f"doing nothing {self.noop_reward:.3f}, target {self.target:.3f}",
            f"  {self.trainable_groups:.0%} of the groups of {self.group_size} have rewards that differ "
            f"(mean standard deviation {self.reward_std:.3f})",
            "plan:",
            *(f"  {phase.name:<12}{phase.steps or 'no':>6} steps  {phase.reason}" for phase in self.phases),
            "forecast:",
            *(
                f"  {phase.name:<12}{phase.steps:>6} steps  {format_duration(phase.seconds)}"
                for phase in self.forecast.phases
                if phase.steps
            ),
            f"  {'total':<12}{'':>12}  {format_duration(self.forecast.seconds)}"
            + (f", cost of the user model about {self.forecast.cost:.2f}" if self.forecast.cost else ""),
            f"settings: {' '.join(self.settings)}",
            *self.notes,
        ]
        return "\n".join(lines)


async def plan_training(config: TrainConfig, target: float, seconds: float = 60.0) -> TrainingPlan:
    """Measure the model of a config for about `seconds`, and plan its training to the success rate `target`.

    Groups of `algorithm.group_size` episodes are played until the time is over; at least one is. Raise ConfigError if
    the target is not between 0 and 1, and as a run would.
    """
    if not 0.0 < target < 1.0:
        raise ConfigError(f"--target {target:g}: a success rate between 0 and 1 is needed, such as 0.7")
    if config.engine.kind != "local":
        raise ConfigError(f"engine.kind = {config.engine.kind!r}: a plan is measured on this machine; leave it out")
    config, completed = complete_config(config)
    prepared = await prepare_run(config)
    fitted = fit_to_machine(config)
    if fitted.misfit:
        raise ConfigError(fitted.misfit)
    config = fitted.config
    started = time.perf_counter()
    result = await _measure(config, prepared, seconds)
    plan = await _plan(config, prepared, result, target, time.perf_counter() - started)
    return plan.replace(notes=(*completed, *plan.notes))


async def _measure(config: TrainConfig, prepared: PreparedRun, seconds: float) -> EvalResult:
    """Play groups of episodes on training tasks, one task after the other, until the time is over."""
    engine = open_engine(prepared.model_folder, config.resolved_engine, config.seed, trainable=False)
    agent = EngineAgent(engine, prepared.format, config.sampling, repair_penalty=config.format.repair_penalty)
    domain = replace_users(prepared.domain, prepared.users)
    request = RolloutRequest(domain, agent, config.limits, config.seed)
    tasks: list[Task] = []
    episodes = []
    deadline = time.perf_counter() + seconds
    trials = max(2, config.algorithm.group_size)
    try:
        for task in itertools.islice(prepared.domain.stream("train", config.seed), MAX_MEASURED_TASKS):
            tasks.append(task)
            episodes += await play_episodes(request, [task], trials, config.engine.max_num_seqs)
            if time.perf_counter() > deadline:
                break
    finally:
        engine.close()
    return summarize_episodes(prepared.domain, tasks, episodes, trials, config.seed)


async def _plan(
    config: TrainConfig, prepared: PreparedRun, result: EvalResult, target: float, seconds: float
) -> TrainingPlan:
    rewards = [[r for r in task.rewards if r is not None] for task in result.task_results]
    scored = [group for group in rewards if len(group) > 1]
    if not scored:
        raise ConfigError("no group has two episodes with a score, so nothing can be planned; see: understudy check")
    varied = sum(max(group) > min(group) for group in scored) / len(scored)
    phases, episodes, notes = decide_phases(config, result.success_rate, varied, target)
    steps = {phase.name: phase.steps for phase in phases}
    planned = config.replace(
        sft=config.sft.replace(steps=steps["sft"]),
        preferences=config.preferences.replace(steps=steps["preferences"]),
        steps=steps["rl"],
    )
    gold = await measure_gold_episodes(config, prepared)
    speeds, _ = await measured_speeds(config, prepared.model_folder)
    evaluated = [
        config.eval.trials * sum(len(eval_set.tasks) for eval_set in sets)
        for sets in (prepared.eval_sets, base_eval_sets(config, prepared.eval_sets))
    ]
    return TrainingPlan(
        target=target,
        noop_reward=prepared.noop_reward,
        success=result.success_rate,
        group_size=result.trials,
        trainable_groups=varied,
        reward_std=sum(map(_std, scored)) / len(scored),
        episodes=sum(map(len, rewards)),
        measured_seconds=seconds,
        phases=phases,
        rl_episodes=episodes,
        forecast=forecast.forecast_run(planned, gold, speeds, *evaluated),
        settings=(f"sft.steps={steps['sft']}", f"preferences.steps={steps['preferences']}", f"steps={steps['rl']}"),
        notes=notes,
    )


def decide_phases(
    config: TrainConfig, success: MeanEstimate, trainable_share: float, target: float
) -> tuple[tuple[PlannedPhase, ...], tuple[int, int, int], tuple[str, ...]]:
    """Return the phases, the RL episodes to the target (few, expected, many), and notes.

    `success` is the model's success rate on training tasks, and `trainable_share` the share of groups whose rewards
    differ. SFT is advised if a step has fewer than `MIN_TRAINABLE_GROUPS` such groups on average.
    """
    algorithm = config.algorithm
    trainable = trainable_share * algorithm.groups_per_batch
    needs_sft = success.mean < target and trainable < MIN_TRAINABLE_GROUPS
    start = max(success.mean, START_AFTER_SFT) if needs_sft else success.mean
    notes = []
    if needs_sft:
        demonstrations = config.sft.num_demonstrations
        sft_steps = math.ceil(SFT_PASSES * demonstrations / config.sft.batch_size)
        why = f"an RL step would have {trainable:.1f} groups whose rewards differ, fewer than {MIN_TRAINABLE_GROUPS:g}"
        sft = PlannedPhase(name="sft", steps=sft_steps, reason=f"{why}; {demonstrations} demonstrations")
        notes.append(
            f"The plan of RL assumes a success rate of {start:g} after SFT. For a better one, train with steps=0, "
            "and plan again with model=RUN/model."
        )
    else:
        reached = (
            "the target is reached" if success.mean >= target else f"RL has {trainable:.1f} groups a step to learn from"
        )
        sft = PlannedPhase(name="sft", steps=0, reason=reached)
    file = config.preferences.dataset_file
    preferences = PlannedPhase(
        name="preferences",
        steps=config.preferences.steps if file and success.mean < target else 0,
        reason=f"the pairs of {file}" if file else "no file of preferences (preferences.dataset_file)",
    )
    gap = max(0.0, _logit(target) - _logit(start))
    few, expected, many = (math.ceil(gap * rate) for rate in EPISODES_PER_LOGIT)
    played = algorithm.group_size * algorithm.groups_per_batch
    rl_steps = math.ceil(expected / played)
    rl = PlannedPhase(
        name="rl",
        steps=rl_steps,
        reason=f"from {start:.3f} to {target:.3f}: about {expected:,} episodes ({few:,} to {many:,}), {played} a step"
        if rl_steps
        else "the target is reached",
    )
    return (sft, preferences, rl), (few, expected, many), tuple(notes)


def _logit(rate: float) -> float:
    """Return the log-odds of a rate, which is kept 0.01 away from 0 and 1."""
    rate = min(max(rate, 0.01), 0.99)
    return math.log(rate / (1.0 - rate))


def _std(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
