"""Play every strategy on sampled tasks, and report what each earns over doing nothing."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.records import Record
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.data.checks.adversarial.answers import ANSWERS
from understudy.data.checks.adversarial.knowledge import SourceKnowledge, Strategy, TaskKnowledge, sample_tasks
from understudy.data.checks.adversarial.replies import REPLIES
from understudy.data.checks.adversarial.writes import WRITES
from understudy.data.checks.probe import FixedRepliesAgent
from understudy.envs.task_source import ExternalSource, TaskSource
from understudy.rollouts.agent import Agent, NoopAgent
from understudy.rollouts.rollout import EpisodeLimits, episode_seed, play_episode

STRATEGIES: Sequence[Strategy] = (*ANSWERS, *WRITES, *REPLIES)
"""All strategies. None does the task, or does it without breaking the policy."""
ADVERSARIAL_LIMIT = 0.02
"""Reward that a strategy may earn over doing nothing, as a mean over the tasks that it applies to."""
DEFAULT_TASKS = 100
"""Number of tasks for each source."""
DEFAULT_SERVER_TASKS = 4
"""Number of tasks for each source whose episodes start servers, because such episodes are slow."""
_CONCURRENT = 4
_MAX_EXAMPLES = 3
_SPARE_TURNS = 20


class StrategyResult(Record):
    """What one strategy earns."""

    strategy: str
    description: str
    num_tasks: int
    """Number of tasks that it was played on: those that it applies to, and whose episode has a score."""
    num_lost: int = 0
    """Number of episodes without a score."""
    reward: float
    """Mean reward over these tasks."""
    floor: float
    """Mean reward of doing nothing on the same tasks."""
    limit: float = ADVERSARIAL_LIMIT
    """Reward over the floor that is allowed."""
    examples: tuple[str, ...] = ()
    """Ids of the first tasks on which it earns more than doing nothing."""

    @property
    def over_floor(self) -> float:
        """The reward over that of doing nothing."""
        return self.reward - self.floor

    @property
    def is_ok(self) -> bool:
        """Whether the strategy earns no more than is allowed."""
        return self.over_floor <= self.limit


class AdversarialReport(Record):
    """What all strategies earn in one task source."""

    source: str
    num_tasks: int
    """Number of sampled tasks."""
    seed: int
    results: tuple[StrategyResult, ...]
    """The strategies that apply to some task, in the order in which they were given."""

    @property
    def failures(self) -> tuple[StrategyResult, ...]:
        """The strategies that earn too much, the best paid first."""
        return tuple(sorted((r for r in self.results if not r.is_ok), key=lambda r: -r.over_floor))


async def play_strategies(
    source: TaskSource,
    num_tasks: int | None = None,
    seed: int = 0,
    strategies: Sequence[Strategy] = STRATEGIES,
    track: Callable[[Iterable[Any], str], Iterable[Any]] = lambda items, what: items,
) -> AdversarialReport:
    """Play all strategies on up to `num_tasks` tasks of a source that is not composite.

    Equal arguments give equal reports. The default number of tasks is `DEFAULT_TASKS`, or `DEFAULT_SERVER_TASKS` if
    episodes start servers. Tasks whose environment cannot be made are left out. Raise RolloutError with the fault
    "agent" if the code of a strategy fails.
    """
    slow = isinstance(source, ExternalSource) and source.starts_servers()
    count = num_tasks or (DEFAULT_SERVER_TASKS if slow else DEFAULT_TASKS)
    known = SourceKnowledge(source, seed)
    tasks = sample_tasks(source, count, seed)
    place = asyncio.Semaphore(_CONCURRENT if slow else 1)

    async def play(task: Task) -> Mapping[str, float | None]:
        async with place:
            return await _play_task(TaskKnowledge(known, task), strategies, seed)

    works = [asyncio.ensure_future(play(task)) for task in tasks]
    try:
        for finished in track(asyncio.as_completed(works), f"playing {len(strategies)} strategies"):
            await finished
    finally:  # some still run here only if another one raised an error
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
    rewards = {task.id: work.result() for task, work in zip(tasks, works, strict=True)}
    results = tuple(_results(strategies, rewards))
    return AdversarialReport(source=source.name, num_tasks=len(tasks), seed=seed, results=results)


_FLOOR = ""
"""Key of the reward for doing nothing among those of the strategies."""


async def _play_task(task: TaskKnowledge, strategies: Sequence[Strategy], seed: int) -> Mapping[str, float | None]:
    """Return the reward of each strategy that applies, and of doing nothing; None for an episode without a score."""
    rewards: dict[str, float | None] = {_FLOOR: _reward(await _play(task, NoopAgent(), 0, seed))}
    if rewards[_FLOOR] is None:
        return {}
    for strategy in strategies:
        replies = strategy.replies(task)
        if replies is not None:
            episode = await _play(task, FixedRepliesAgent(replies), len(replies), seed)
            if not episode or strategy.required_event in ("", *episode.event_counts):
                rewards[strategy.name] = _reward(episode)
    return rewards


def _reward(episode: Trajectory | None) -> float | None:
    return episode.score.reward if episode and episode.score else None


async def _play(task: TaskKnowledge, agent: Agent, num_replies: int, seed: int) -> Trajectory | None:
    limits = EpisodeLimits(max_turns=num_replies + _SPARE_TURNS, max_retries=0)
    try:
        episode = await play_episode(task.known.source, task.task, agent, limits, episode_seed(seed, task.task, 0))
    except (ConfigError, TaskError):  # a user who answers gold texts only, or a task that `check` reports
        return None
    if episode.fault == "agent":
        raise RolloutError(episode.error, "agent")
    return episode


def _results(
    strategies: Sequence[Strategy], rewards: Mapping[str, Mapping[str, float | None]]
) -> Iterator[StrategyResult]:
    for strategy in strategies:
        mine = {task_id: earned[strategy.name] for task_id, earned in rewards.items() if strategy.name in earned}
        scored = {task_id: reward for task_id, reward in mine.items() if reward is not None}
        if not scored:
            continue
        floors = {task_id: rewards[task_id][_FLOOR] or 0.0 for task_id in scored}
        paid = [task_id for task_id, reward in scored.items() if reward > floors[task_id]]
        yield StrategyResult(
            strategy=strategy.name,
            description=strategy.description,
            num_tasks=len(scored),
            num_lost=len(mine) - len(scored),
            reward=sum(scored.values()) / len(scored),
            floor=sum(floors.values()) / len(scored),
            examples=tuple(paid[:_MAX_EXAMPLES]),
        )
