"""The rollout loop: it plays episodes and groups, applies limits and retries, and attributes faults."""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count, islice
from typing import Protocol

from pydantic import Field

from understudy.algorithms.config import AdvantageEstimator
from understudy.core.errors import ConfigError, Fault, RolloutError, TaskError
from understudy.core.event_loop import gather_or_cancel
from understudy.core.json_values import replace_surrogates
from understudy.core.records import Record
from understudy.core.secrets import mask_secrets
from understudy.core.tasks import Task
from understudy.core.trajectory import StopReason, Stopwatch, Trajectory
from understudy.core.user_code import user_code, wait_limit
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.envs.environment import Environment, StepResult
from understudy.rollouts.agent import Agent
from understudy.rollouts.group import Group

_LOGGER = logging.getLogger(__name__)


class EpisodeLimits(Record):
    """Limits at which an episode is truncated."""

    max_turns: int = Field(default=30, ge=1)
    """Maximum number of replies of the agent."""
    max_episode_tokens: int = Field(default=8192, ge=1)
    """Maximum number of tokens of an episode. An episode that reaches it gets no further reply. The limit does not
    apply to a model behind an API, whose tokens are unknown; the endpoint has its own limit."""
    max_retries: int = Field(default=2, ge=0)
    """New attempts after an infrastructure fault before the episode is dropped."""
    max_step_seconds: float = Field(default=1800.0, gt=0.0)
    """Time limit in seconds of each start, step, grading and end of an environment, with its user, tools and grader. A
    call that takes longer is cancelled, and the episode has a fault of the component that did not return. An endpoint,
    an MCP server and a Python tool have shorter limits of their own. Code that never awaits cannot be cancelled."""


class EnvironmentFactory(Protocol):
    """A `Domain`, or another factory of environments for tasks."""

    def environment(self, task: Task, *, seed: int) -> Environment:
        """Return a new environment for one episode of `task`."""


async def play_episode(
    environments: EnvironmentFactory, task: Task, agent: Agent, limits: EpisodeLimits, seed: int
) -> Trajectory:
    """Play one episode of a task, and retry it after an infrastructure fault at most `limits.max_retries` times.

    Each attempt has its own seed, also for the user simulator, because an attempt with the same seed would fail again.
    A fault that every attempt would have, such as an unpaid account at an endpoint, is not retried.
    """
    for attempt in range(limits.max_retries + 1):
        episode, error = await attempt_episode(environments, task, agent, limits, seed + attempt)
        if error is None:
            break
        _LOGGER.info("task %s, attempt %d: fault of %s: %s", task.id, attempt + 1, episode.fault, episode.error)
        if not error.is_repeatable:
            break
    reward = episode.score.reward if episode.score else None
    _LOGGER.debug(
        "task %s, seed %d: %s, reward %s, %d turns",
        task.id,
        episode.seed,
        episode.stop_reason,
        reward,
        episode.num_turns,
    )
    return episode


async def attempt_episode(
    environments: EnvironmentFactory, task: Task, agent: Agent, limits: EpisodeLimits, seed: int
) -> tuple[Trajectory, RolloutError | None]:
    """Play one episode of a task once. Return it and its fault, None if it has none."""
    try:
        with user_code("environment", "the environment", environments):
            environment = environments.environment(task, seed=seed)
    except RolloutError as e:
        episode = _new_trajectory(task, seed)
        _record_fault(episode, e)
        return episode, e
    return await _rollout(task, environment, agent, limits, seed)


async def play_group(
    environments: EnvironmentFactory,
    task: Task,
    agent: Agent,
    limits: EpisodeLimits,
    group_size: int,
    seed: int,
    first_trial: int = 0,
    on_episode: Callable[[Trajectory], None] = lambda episode: None,
) -> Group:
    """Play `group_size` episodes of one task concurrently: the task's trials from number `first_trial` on.

    Each episode has its own seed for its samples and its user simulator. `on_episode` gets each one when it has ended.
    """

    async def play(seed: int) -> Trajectory:
        episode = await play_episode(environments, task, agent, limits, seed)
        on_episode(episode)
        return episode

    seeds = [episode_seed(seed, task, first_trial + i) for i in range(group_size)]
    return Group(task, await gather_or_cancel(map(play, seeds)))


async def play_groups(
    environments: EnvironmentFactory,
    tasks: Iterator[Task],
    agent: Agent,
    limits: EpisodeLimits,
    *,
    group_size: int,
    num_groups: int,
    max_resampled_groups: int,
    seed: int,
    advantage_estimator: AdvantageEstimator = "group_mean",
    process_group: ProcessGroup = SINGLE_PROCESS,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_episode: Callable[[Trajectory], None] = lambda episode: None,
) -> list[Group]:
    """Play `num_groups` groups of episodes concurrently, and one more for each group without trainable episodes.

    At most `max_resampled_groups` further groups are played. All groups are returned. Which episodes are trainable
    depends on the `advantage_estimator`: by default, those of a group whose rewards differ. A task that the iterator
    yields again gets other seeds. In a `process_group` of several processes, each process plays its share of the
    episodes and returns all groups. `on_progress` is called with the numbers of finished and of started episodes of
    this process, `on_episode` with each of its episodes that has ended.
    """
    tasks_and_trials = _with_first_trial(tasks, group_size)
    if process_group.world_size > 1:
        return await _play_groups_in_waves(
            environments,
            tasks_and_trials,
            agent,
            limits,
            group_size,
            num_groups,
            num_groups + max_resampled_groups,
            seed,
            advantage_estimator,
            process_group,
            on_progress,
            on_episode,
        )
    num_ended, started = count(1), list[asyncio.Task[Group]]()

    def count_episode(episode: Trajectory) -> None:
        on_episode(episode)
        on_progress(next(num_ended), group_size * len(started))

    def start_group(task: Task, first_trial: int) -> asyncio.Task[Group]:
        return asyncio.ensure_future(
            play_group(environments, task, agent, limits, group_size, seed, first_trial, count_episode)
        )

    started += [start_group(task, first_trial) for task, first_trial in islice(tasks_and_trials, num_groups)]
    on_progress(0, group_size * len(started))
    running = set(started)
    try:
        while running:
            finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for group in sorted(finished, key=started.index):
                wasted = not group.result().trainable_episodes(advantage_estimator)
                resample = wasted and len(started) < num_groups + max_resampled_groups
                for task, first_trial in islice(tasks_and_trials, int(resample)):
                    started.append(start_group(task, first_trial))
                    running.add(started[-1])
    finally:  # groups still run here only if another one raised an error
        for group in running:
            group.cancel()
        await asyncio.gather(*started, return_exceptions=True)
    return [group.result() for group in started]


def _with_first_trial(tasks: Iterator[Task], group_size: int) -> Iterator[tuple[Task, int]]:
    """Yield each task with the number of its first unused trial."""
    num_trials = Counter[str]()
    for task in tasks:
        yield task, num_trials[task.id]
        num_trials[task.id] += group_size


async def _play_groups_in_waves(
    environments: EnvironmentFactory,
    tasks: Iterator[tuple[Task, int]],
    agent: Agent,
    limits: EpisodeLimits,
    group_size: int,
    num_groups: int,
    max_groups: int,
    seed: int,
    advantage_estimator: AdvantageEstimator,
    process_group: ProcessGroup,
    on_progress: Callable[[int, int], None],
    on_episode: Callable[[Trajectory], None],
) -> list[Group]:
    """Play the groups of `play_groups` in waves. Each wave has one group for every group without trainable episodes
    in the wave before.

    Both functions take tasks in order, so they play the same groups.
    """
    played: list[Group] = []
    num_ended = num_started = 0

    async def play(task: Task, seed: int) -> Trajectory:
        nonlocal num_ended
        episode = await play_episode(environments, task, agent, limits, seed)
        num_ended += 1
        on_episode(episode)
        on_progress(num_ended, num_started)
        return episode

    while wave := list(islice(tasks, num_groups)):
        share = process_group.shard(
            [(task, episode_seed(seed, task, first + i)) for task, first in wave for i in range(group_size)]
        )
        num_started += len(share)
        on_progress(num_ended, num_started)
        episodes = process_group.all_gather_shards(await gather_or_cancel(play(task, s) for task, s in share))
        new = [Group(task, episodes[i * group_size : (i + 1) * group_size]) for i, (task, _) in enumerate(wave)]
        played += new
        num_wasted = sum(not group.trainable_episodes(advantage_estimator) for group in new)
        num_groups = min(num_wasted, max_groups - len(played))
    return played


def episode_seed(seed: int, task: Task, trial: int) -> int:
    """Return the seed of an episode, a 32-bit hash of its arguments that is equal in every process."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{task.id}/{trial}".encode()).digest()[:4])


async def rollout(
    task: Task, environment: Environment, agent: Agent, limits: EpisodeLimits, seed: int = 0
) -> Trajectory:
    """Play one episode. An infrastructure fault ends it with `StopReason.FAULT` and without a score."""
    return (await _rollout(task, environment, agent, limits, seed))[0]


async def _rollout(
    task: Task, environment: Environment, agent: Agent, limits: EpisodeLimits, seed: int
) -> tuple[Trajectory, RolloutError | None]:
    """Play one episode as `rollout` does. Return it and its fault, None if it has none."""
    episode, has_ended = _new_trajectory(task, seed), False
    try:
        try:
            await _play(task, environment, agent, limits, episode)
            has_ended = True
        finally:
            await _close(environment, limits, raise_error=has_ended)
    except RolloutError as e:
        _record_fault(episode, e)
        return episode, e
    return episode, None


async def _close(environment: Environment, limits: EpisodeLimits, raise_error: bool) -> None:
    """Close an environment. If `raise_error` is False, an error of it is only logged: an earlier one is in flight."""
    try:
        async with _limited("environment", "closing the environment", limits):
            await environment.close()
    except (ConfigError, RolloutError, TaskError) as e:
        if raise_error:
            raise
        _LOGGER.info("closing the environment after an error failed too: %s", mask_secrets(str(e)))


def _new_trajectory(task: Task, seed: int) -> Trajectory:
    return Trajectory(task.id, task.domain, task.family, task.difficulty, seed)


def _record_fault(episode: Trajectory, error: RolloutError) -> None:
    episode.score, episode.stop_reason = None, StopReason.FAULT
    episode.fault, episode.error = error.fault, replace_surrogates(mask_secrets(str(error)))
    episode.add_exceptions([error.report] if error.report else [])


async def _play(task: Task, environment: Environment, agent: Agent, limits: EpisodeLimits, episode: Trajectory) -> None:
    with Stopwatch(episode.timings, "environment"):
        async with _limited("environment", "the start of the environment", limits):
            step = _validate_result("start", await environment.start())
    while step.score is None:
        stop = _limit_reached(episode, limits)
        reply = None
        if stop:
            episode.observe(step.messages)  # record the results of the last reply, without tokens
        else:
            turns = episode.num_turns
            with Stopwatch(episode.timings, "agent"):
                reply = await agent.act(task, episode, step.messages, environment.tools)
            if reply is not None and episode.num_turns == turns:  # `limits.max_turns` would never end the episode
                raise RolloutError(
                    f"the agent {type(agent).__name__} returned a reply that is not in the episode; call "
                    "episode.observe(new) and episode.act(reply) before `return reply`",
                    "agent",
                )
        if reply is None:
            async with _limited("grader", "the grader of the environment", limits):
                episode.score = await environment.grade(ended=False)
            episode.stop_reason = stop or StopReason.MAX_TOKENS
            return
        with Stopwatch(episode.timings, "environment"):
            async with _limited("environment", "a step of the environment", limits):
                step = _validate_result("step", await environment.step(reply))
        _count(episode, step.error_kinds)
        episode.add_exceptions(step.exceptions)
        await asyncio.sleep(0)  # agents and environments that never wait must not keep Ctrl-C from cancelling this
    episode.observe(step.messages)
    episode.score = step.score
    episode.stop_reason = StopReason.DONE


@asynccontextmanager
async def _limited(component: Fault, what: str, limits: EpisodeLimits) -> AsyncIterator[None]:
    """Attribute an exception of an environment's method, or that it does not return, to the component at fault."""
    async with wait_limit(limits.max_step_seconds, "limits.max_step_seconds"):
        with user_code(component, what):
            yield


def _validate_result(method: str, result: object) -> StepResult:
    """Return the result of an environment's method. Raise RolloutError if it is no StepResult."""
    if isinstance(result, StepResult):
        return result
    raise RolloutError(
        f"{method} of the environment returned {result!r:.100}; it must return a StepResult", "environment"
    )


def _limit_reached(episode: Trajectory, limits: EpisodeLimits) -> StopReason | None:
    if episode.num_turns >= limits.max_turns:
        return StopReason.MAX_TURNS
    return StopReason.MAX_TOKENS if len(episode.tokens) >= limits.max_episode_tokens else None


def _count(episode: Trajectory, events: Sequence[str]) -> None:
    for event in events:
        episode.event_counts[event] = episode.event_counts.get(event, 0) + 1
