"""Evaluation: what an agent's episodes came to, task by task, with the intervals of its rates."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from understudy.chat import Usage
from understudy.domains.base import TaskSource
from understudy.records import Record
from understudy.statistics import Rate, pass_at_k, pass_hat_k, rate, resampled
from understudy.tasks import Task, fingerprint
from understudy.trajectory import Trajectory

Kind = Literal["agent", "floor", "oracle"]


class TaskResult(Record):
    """One task's trials, in order."""

    task: str
    domain: str = ""
    family: str
    difficulty: str
    fingerprint: str = ""
    """What tells whether another evaluation's task of this name is the same; empty in results from before there was."""
    rewards: tuple[float | None, ...]
    """None where the machinery failed."""

    @property
    def successes(self) -> tuple[bool | None, ...]:
        """Whether each trial earned the whole reward; None where it has no result."""
        return tuple(None if reward is None else reward >= 1.0 - 1e-9 for reward in self.rewards)


class Evaluation(Record):
    """What an agent's episodes came to."""

    domain: str
    kind: Kind = "agent"
    """Who played: a real agent, nobody (`floor`), or the gold turns (`oracle`)."""
    seed: int
    trials: int
    results: tuple[TaskResult, ...]
    parts: dict[str, float] = {}
    """Mean of each part of the score over the episodes."""
    stops: dict[str, int] = {}
    counts: dict[str, int] = {}
    """Replies by parse status, tool errors by kind."""
    faults: dict[str, int] = {}
    """Episodes without a result, by whose fault it was."""
    turns: float = 0.0
    """Replies of the agent, mean over the episodes."""
    tokens: float = 0.0
    """Sampled tokens, mean over the episodes."""
    usage: dict[str, Usage] = {}
    """What endpoints were asked: for the users, for the agent."""

    @property
    def success(self) -> Rate:
        """Share of successes: the mean over tasks of the share of each task's trials."""
        return self.passing("hat", 1)

    def passing(self, kind: Literal["at", "hat"], k: int) -> Rate:
        """pass@k or pass^k, over the tasks that have at least k results.

        The interval of pass^1 is Wilson's, that of the others the bootstrap's.
        """
        values = self._passed(kind, k)
        scored = sum(success is not None for result in self.results for success in result.successes)
        return rate(values, scored) if k == 1 else resampled(values)

    def passed(self, kind: Literal["at", "hat"], k: int) -> float:
        """The mean of `passing` without its interval, which takes drawing; NaN where no task has k results."""
        values = self._passed(kind, k)
        return math.fsum(values) / len(values) if values else math.nan

    def _passed(self, kind: Literal["at", "hat"], k: int) -> list[float]:
        """A value for each task that has at least k results."""
        estimate = pass_at_k if kind == "at" else pass_hat_k
        each = [[s for s in result.successes if s is not None] for result in self.results]
        return [estimate(len(s), sum(s), k) for s in each if len(s) >= k]

    def of_domain(self, domain: str) -> "Evaluation":
        """What it came to on the tasks of one domain of a mixture; totals over all episodes stay."""
        return self.replace(results=tuple(result for result in self.results if result.domain == domain))

    def among(self, kept: Callable[[TaskResult], bool]) -> Rate:
        """Success among some of the tasks."""
        return self.replace(results=tuple(filter(kept, self.results))).success


def summary(
    domain: TaskSource, tasks: Sequence[Task], every: Sequence[Trajectory], trials: int, seed: int
) -> Evaluation:
    """What episodes came to: `trials` of each task, those of a task together."""
    groups = [every[i : i + trials] for i in range(0, len(every), trials)]
    whole = [episode for episode in every if episode.score]
    return Evaluation(
        domain=domain.name,
        seed=seed,
        trials=trials,
        results=tuple(_result(task, group) for task, group in zip(tasks, groups, strict=True)),
        parts=_mean_parts(whole),
        stops=dict(Counter(str(episode.stop) for episode in whole)),
        counts=dict(sum((Counter(episode.counts) for episode in whole), Counter[str]())),
        faults=dict(Counter(str(episode.fault) for episode in every if not episode.score)),
        turns=_mean([episode.turns for episode in whole]),
        tokens=_mean([sum(episode.mask) for episode in whole]),
    )


def _result(task: Task, group: Sequence[Trajectory]) -> TaskResult:
    return TaskResult(
        task=task.id,
        domain=task.domain,
        family=task.family,
        difficulty=task.difficulty,
        fingerprint=fingerprint(task),
        rewards=tuple(episode.score.reward if episode.score else None for episode in group),
    )


def _mean_parts(episodes: Sequence[Trajectory]) -> dict[str, float]:
    parts = [episode.score.parts for episode in episodes if episode.score]
    return {name: _mean([p[name] for p in parts if name in p]) for name in dict.fromkeys(itertools.chain(*parts))}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
