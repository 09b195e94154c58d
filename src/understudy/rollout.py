"""The only loop that plays episodes. Limits, retries and the attribution of faults live here and nowhere else."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from pydantic import Field

from understudy.agent import Agent
from understudy.crew import ALONE, Crew
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
    """Tokens of the whole episode; one that has so many gets no further reply. A model behind an API has its own limit:
    its tokens are not known here."""
    retries: int = Field(default=2, ge=0)
    """Fresh attempts after a fault of the machinery, before the episode is dropped."""


class Source(Protocol):
    """Where episodes come from: a `Domain`, or anything that makes environments for tasks."""

    def environment(self, task: Task, *, seed: int) -> Environment:
        """A fresh episode of a task."""


async def play(source: Source, task: Task, agent: Agent, limits: Limits, seed: int) -> Trajectory:
    """One episode of a task, begun anew after a fault of the machinery, at most `limits.retries` times.

    Each attempt has a seed of its own, for the user too: one who failed would fail again with the same words.
    """
    for attempt in range(limits.retries + 1):
        environment = source.environment(task, seed=seed + attempt)
        episode = await rollout(task, environment, agent, limits, seed + attempt)
        if episode.stop is not Stop.FAULT:
            break
    return episode


async def play_group(
    source: Source, task: Task, agent: Agent, limits: Limits, size: int, seed: int, first: int = 0
) -> list[Trajectory]:
    """`size` episodes of one task, side by side; each has a seed of its own, for its samples and its user's words.

    They are the task's trials from `first` on.
    """
    seeds = [episode_seed(seed, task, first + i) for i in range(size)]
    return list(await asyncio.gather(*(play(source, task, agent, limits, s) for s in seeds)))


async def play_groups(
    source: Source,
    tasks: Iterator[Task],
    agent: Agent,
    limits: Limits,
    *,
    size: int,
    groups: int,
    refill: int,
    seed: int,
    worth: Callable[[Sequence[Trajectory]], bool] | None = None,
    crew: Crew = ALONE,
) -> list[list[Trajectory]]:
    """Groups of episodes, all side by side. A group that is not worth learning from is followed by a further one.

    Without `worth` those are the groups of equal rewards, whose advantages are 0. They are returned too; at most
    `refill` further ones are played. A task that comes again, as of few tasks some do, is played with other seeds. A
    crew plays the same ones, each process its share of the episodes.
    """
    worth, placed = worth or teaches, _placed(tasks, size)
    if crew.size > 1:
        return await _in_waves(source, placed, agent, limits, size, groups, groups + refill, seed, worth, crew)

    def begin(task: Task, first: int) -> asyncio.Task[list[Trajectory]]:
        return asyncio.ensure_future(play_group(source, task, agent, limits, size, seed, first))

    started = [begin(*each) for each in islice(placed, groups)]
    running = set(started)
    try:
        while running:
            finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for group in sorted(finished, key=started.index):
                more = not worth(group.result()) and len(started) < groups + refill
                for each in islice(placed, int(more)):
                    started.append(begin(*each))
                    running.add(started[-1])
    finally:  # when one group ends with an error, the others are not left to play on
        for group in running:
            group.cancel()
        await asyncio.gather(*started, return_exceptions=True)
    return [group.result() for group in started]


def _placed(tasks: Iterator[Task], size: int) -> Iterator[tuple[Task, int]]:
    """Each task with its first trial that no group before has played."""
    played = Counter[str]()
    for task in tasks:
        yield task, played[task.id]
        played[task.id] += size


async def _in_waves(
    source: Source,
    tasks: Iterator[tuple[Task, int]],
    agent: Agent,
    limits: Limits,
    size: int,
    groups: int,
    most: int,
    seed: int,
    worth: Callable[[Sequence[Trajectory]], bool],
    crew: Crew,
) -> list[list[Trajectory]]:
    """The groups of `play_groups`: as many as a wave had of no worth follow when all of it is played.

    They are the same, because each follows one of no worth, and tasks are taken in order in either way.
    """
    played: list[list[Trajectory]] = []
    while wave := list(islice(tasks, groups)):
        mine = crew.share([(task, episode_seed(seed, task, first + i)) for task, first in wave for i in range(size)])
        episodes = crew.joined(await asyncio.gather(*(play(source, task, agent, limits, s) for task, s in mine)))
        new = [episodes[i : i + size] for i in range(0, len(episodes), size)]
        played += new
        groups = min(sum(not worth(group) for group in new), most - len(played))
    return played


def teaches(group: Sequence[Trajectory]) -> bool:
    """Whether the episodes of a group that have a score differ in reward."""
    return len({episode.reward for episode in group if episode.score is not None}) > 1


def episode_seed(seed: int, task: Task, trial: int) -> int:
    """A seed that is an episode's own, the same in every process."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{task.id}/{trial}".encode()).digest()[:4])


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
        stop, reply = _limit(episode, limits), None
        if stop:
            episode.observe(step.messages)  # what came of its last reply is told, and has no tokens
        else:
            with Stopwatch(episode.seconds, "agent"):
                reply = await agent.act(task, episode, step.messages, environment.tools)
        if reply is None:
            episode.score, episode.stop = await environment.grade(ended=False), stop or Stop.MAX_TOKENS
            return
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
