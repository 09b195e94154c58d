"""The only loop that plays episodes. Limits, retries and the attribution of faults live here and nowhere else."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

from pydantic import Field

from understudy.agent import Agent
from understudy.environment import Environment
from understudy.errors import RolloutError
from understudy.records import Record
from understudy.tasks import Task
from understudy.trajectory import Stop, Stopwatch, Trajectory


class Limits(Record):
    """When an episode is cut off."""

    max_turns: int = Field(default=30, ge=1)
    """Replies of the agent."""
    max_tokens: int = Field(default=8192, ge=1)
    """Tokens of the whole episode; no reply is sampled past it."""
    retries: int = Field(default=2, ge=0)
    """Fresh attempts after a fault of the machinery, before the episode is dropped."""


async def rollout(task: Task, environment: Environment, agent: Agent, limits: Limits, seed: int = 0) -> Trajectory:
    """Play one episode to its end. A fault of the machinery ends it with `Stop.FAULT`, without a score."""
    episode = Trajectory(task.id, task.domain, task.family, task.difficulty, seed)
    try:
        await _play(task, environment, agent, limits, episode)
    except RolloutError as e:
        episode.stop, episode.fault, episode.error = Stop.FAULT, e.fault, str(e)
    finally:
        await environment.close()
    return episode


async def _play(task: Task, environment: Environment, agent: Agent, limits: Limits, episode: Trajectory) -> None:
    with Stopwatch(episode.seconds, "environment"):
        step = await environment.start()
    while step.score is None:
        stop = _limit(episode, limits)
        if stop is not None:
            episode.score, episode.stop = await environment.grade(ended=False), stop
            return
        with Stopwatch(episode.seconds, "agent"):
            reply = await agent.act(task, episode, step.messages, environment.tools)
        with Stopwatch(episode.seconds, "environment"):
            step = await environment.step(reply)
        _count(episode, step.errors)
    episode.observe(step.messages)
    episode.score, episode.stop = step.score, Stop.DONE


def _limit(episode: Trajectory, limits: Limits) -> Stop | None:
    if episode.turns >= limits.max_turns:
        return Stop.MAX_TURNS
    return Stop.MAX_TOKENS if len(episode.tokens) >= limits.max_tokens else None


def _count(episode: Trajectory, events: Sequence[str]) -> None:
    for event in events:
        episode.counts[event] = episode.counts.get(event, 0) + 1
