"""Evaluate: play an agent on given tasks and tell how often it succeeds. The floor and the oracle are that too.

An episode that the machinery failed has no result: it is counted by whose fault it was, and left out. The same seed
gives each task and trial the same user, whoever the agent is; that is what makes differences paired (see `results`).
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from understudy import formats
from understudy.agent import Agent, DemonstrationAgent, GoldAgent, SilentAgent
from understudy.config import EvalConfig
from understudy.crew import ALONE, Crew
from understudy.domains.base import TaskSource
from understudy.errors import ConfigError, TaskError
from understudy.evaluation import Evaluation, Kind, summary
from understudy.kept import Kept
from understudy.rollout import Limits, episode_seed, play
from understudy.tasks import SPLITS, Split, Task
from understudy.trajectory import Stop, Trajectory
from understudy.users import Cast

Progress = Callable[[int, int], None]


async def evaluate(
    domain: TaskSource,
    agent: Agent,
    tasks: Sequence[Task],
    limits: Limits | None = None,
    trials: int = 1,
    seed: int = 0,
    concurrency: int = 64,
    on_progress: Progress | None = None,
    kind: Kind = "agent",
    crew: Crew = ALONE,
) -> Evaluation:
    """Play `trials` episodes of each task, at most `concurrency` at a time. Each process of a crew plays its share.

    `on_progress` is told how many episodes are done, and of how many.
    """
    played = await episodes(domain, agent, tasks, limits, trials, seed, concurrency, on_progress, crew=crew)
    return summary(domain, tasks, played, trials, seed).replace(kind=kind)


async def episodes(
    domain: TaskSource,
    agent: Agent,
    tasks: Sequence[Task],
    limits: Limits | None = None,
    trials: int = 1,
    seed: int = 0,
    concurrency: int = 64,
    on_progress: Progress | None = None,
    kept: Kept[Any] | None = None,
    crew: Crew = ALONE,
) -> list[Trajectory]:
    """The episodes of `evaluate`, those of a task together. Those that are kept are not played again.

    An episode's seed is its task's and trial's, so that it is the same whatever is played beside it. Where one is
    refused (a ConfigError), none is begun any more, and those under way go on to their own end or refusal.
    """
    gate, done, limits = asyncio.Semaphore(concurrency), itertools.count(1), limits or Limits()
    refusals: list[ConfigError] = []

    async def episode(task: Task, trial: int) -> Trajectory:
        first = episode_seed(seed, task, trial)
        ended = kept.found(task.id, range(first, first + limits.retries + 1)) if kept else None
        if ended is None:
            async with gate:
                if refusals:
                    raise refusals[0]
                ended = await play(domain, task, agent, limits, first)
            if kept:
                ended = kept.add(ended)
        if on_progress:
            on_progress(next(done), len(mine))
        return ended

    async def attempt(task: Task, trial: int) -> Trajectory | None:
        try:
            return await episode(task, trial)
        except ConfigError as e:
            refusals.append(e)
            return None

    mine = crew.share([(task, trial) for task in tasks for trial in range(trials)])
    found = await asyncio.gather(*(attempt(task, trial) for task, trial in mine))
    if refusals:
        raise refusals[0]
    return crew.joined([each for each in found if each is not None])


async def floor(domain: TaskSource, tasks: Sequence[Task]) -> Evaluation:
    """What saying nothing earns: 0, or the tasks are at fault."""
    return await evaluate(domain, SilentAgent(), tasks, kind="floor")


async def oracle(domain: TaskSource, tasks: Sequence[Task]) -> Evaluation:
    """What playing the gold turns earns: 1, or the tasks are at fault."""
    return await evaluate(domain, GoldAgent(), tasks, kind="oracle")


async def demonstrations(
    domain: TaskSource, tasks: Iterable[Task], format: formats.ChatFormat, limits: Limits, seed: int
) -> list[Trajectory]:
    """Gold episodes in a model's own tokens. One that does not earn 1 is a `TaskError`."""
    agent = DemonstrationAgent(format)
    episodes = [await play(domain, task, agent, limits, episode_seed(seed, task, 0)) for task in tasks]
    failed = next((episode for episode in episodes if episode.score is None or episode.reward < 1.0), None)
    if failed:
        limited = failed.stop in (Stop.MAX_TURNS, Stop.MAX_TOKENS)
        cause = f"limits.{failed.stop} is too low for it" if limited else failed.error or "see: understudy check"
        earned = f"earns {failed.reward:g}" if failed.score else "has no score"
        raise TaskError(f"the gold episode of task {failed.task} {earned}; {cause}")
    return episodes


def inhabited(domain: TaskSource, users: Cast) -> TaskSource:
    """The domain with these users; scripted ones are its own already."""
    return domain if users.scripted else domain.with_users(users)


async def refuse_free(domain: TaskSource, seed: int = 0, allowed: bool = False) -> float:
    """What doing nothing earns on the train tasks of the slice, on average.

    Where it earns some of them whole that is a `TaskError`, unless `allowed`; no tasks at all are a `ConfigError`.
    """
    if next(domain.stream("train", seed), None) is None:
        raise ConfigError(f"{domain.name} has no train tasks in this slice")
    results = (await floor(domain, domain.tasks("train"))).results
    free = [result.task for result in results if any(result.successes)]
    if free and not allowed:
        some = ", ".join(free[:3])
        raise TaskError(
            f"doing nothing earns {len(free)} of the {len(results)} train tasks of {domain.name} ({some}): "
            "leave them out by slice.families, or train on them all the same by free_tasks=true"
        )
    rewards = [reward for result in results for reward in result.rewards if reward is not None]
    return sum(rewards) / len(rewards) if rewards else 0.0


def held_out(domain: TaskSource, split: Split, count: int, seed: int = 0) -> list[Task]:
    """`count` different tasks of a split, or as many as there are: the frozen ones first, then generated ones."""
    generated = itertools.islice(domain.stream(split, seed), 20 * count)
    return list(itertools.islice(_different(itertools.chain(domain.tasks(split), generated)), count))


def exam_tasks(domain: TaskSource, how: EvalConfig) -> list[Task]:
    """The tasks that an evaluation plays; a split without any is a `ConfigError` that names those that have some."""
    tasks = held_out(domain, how.split, how.tasks, how.seed)
    if not tasks:
        others = [split for split in SPLITS if held_out(domain, split, 1)]
        choice = f"set eval.split to {' or '.join(others)}, or take another slice" if others else "take another slice"
        raise ConfigError(f"{domain.name} has no {how.split} tasks in this slice; {choice}")
    return tasks


def _different(tasks: Iterable[Task]) -> Iterator[Task]:
    """The tasks without those that repeat the content or the name of one before."""
    seen: set[str] = set()
    for task in tasks:
        content = task.model_dump_json(exclude={"id"})
        if not seen & {task.id, content}:
            yield task
        seen |= {task.id, content}
