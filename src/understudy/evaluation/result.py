"""The records of an evaluation: rewards of tasks, results of agents, and paired differences. `report` prints them."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from understudy.clients.chat import ModelUsage
from understudy.core.records import Record
from understudy.core.tasks import MAX_ROUNDING, Task, task_fingerprint
from understudy.core.trajectory import Trajectory
from understudy.envs.task_source import TaskSource
from understudy.evaluation.statistics import (
    MeanEstimate,
    estimate_mean,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    sign_flip_p_value,
)

EvalKind = Literal["agent", "noop", "gold"]


FULL_REWARD = 1.0 - MAX_ROUNDING
"""The smallest reward of a success."""


class TaskResult(Record):
    """The rewards of one task, in the order of its trials."""

    task: str
    domain: str = ""
    family: str
    difficulty: str
    fingerprint: str
    """Hash of the task. It shows whether tasks with the same id are equal."""
    rewards: tuple[float | None, ...]
    """Reward of each trial. None if it failed by a fault that is not the agent's."""

    @property
    def successes(self) -> tuple[bool | None, ...]:
        """True for each trial that earned the full reward; None for a trial without a score."""
        return tuple(None if reward is None else reward >= FULL_REWARD for reward in self.rewards)


class EvalResult(Record):
    """The result of an agent on some tasks."""

    domain: str
    split: str = ""
    """Split of the tasks. Empty if they have several, and in results of earlier versions."""
    kind: EvalKind = "agent"
    """`noop` and `gold` are the baselines, `agent` is any other agent."""
    seed: int
    trials: int
    task_results: tuple[TaskResult, ...]
    mean_parts: dict[str, float] = {}
    """Mean of each part of the score over the episodes with a score."""
    stop_counts: dict[str, int] = {}
    event_counts: dict[str, int] = {}
    """Replies by parse status, and tool errors by kind."""
    fault_counts: dict[str, int] = {}
    """Episodes without a score, by the component at fault."""
    mean_turns: float = 0.0
    """Mean number of the agent's replies per episode."""
    mean_tokens: float = 0.0
    """Mean number of sampled tokens per episode."""
    usage: dict[str, ModelUsage] = {}
    """Requests, tokens and cost of endpoints by role: agent, users, judge."""

    @property
    def success_rate(self) -> MeanEstimate:
        """Mean over tasks of the share of successful trials."""
        return self.pass_k("hat", 1)

    @property
    def num_scored(self) -> int:
        """Number of episodes with a score."""
        return sum(reward is not None for result in self.task_results for reward in result.rewards)

    def pass_k(self, kind: Literal["at", "hat"], k: int) -> MeanEstimate:
        """Return pass@k ("at") or pass^k ("hat") over the tasks with at least k scored trials, with its interval."""
        values = self._pass_k_values(kind, k)
        scored = [sum(success is not None for success in result.successes) for result in self.task_results]
        return estimate_mean(values, sum(trials for trials in scored if trials >= k) // k)

    def pass_k_mean(self, kind: Literal["at", "hat"], k: int) -> float:
        """Return the mean of `pass_k`; NaN if no task has k scored trials."""
        values = self._pass_k_values(kind, k)
        return math.fsum(values) / len(values) if values else math.nan

    def _pass_k_values(self, kind: Literal["at", "hat"], k: int) -> list[float]:
        """Return pass@k or pass^k of each task with at least k scored trials."""
        estimate = pass_at_k if kind == "at" else pass_hat_k
        each = [[s for s in result.successes if s is not None] for result in self.task_results]
        return [estimate(len(s), sum(s), k) for s in each if len(s) >= k]

    def filter_domain(self, domain: str) -> "EvalResult":
        """Return the result on the tasks of one domain of a mixture.

        Counts and means over episodes still include all domains.
        """
        return self.replace(task_results=tuple(result for result in self.task_results if result.domain == domain))


class ResultRow(Record):
    """A row of a table: the name of an agent, and its result."""

    name: str
    result: EvalResult


class PairedRates(Record):
    """The success rates of two agents on one task."""

    result: TaskResult
    """The new agent's result of the task."""
    new: float
    old: float
    trials: float
    """Number of trials of each rate, the harmonic mean if they differ."""

    @property
    def gain(self) -> float:
        """Difference in success, between -1 and 1."""
        return self.new - self.old


def repeat_name(name: str, number: int) -> str:
    """Return the name of the row of an agent's repeat `number`, from 0."""
    return f"{name}, repeat {number + 1}" if number else name


def summarize_episodes(
    source: TaskSource, tasks: Sequence[Task], episodes: Sequence[Trajectory], trials: int, seed: int
) -> EvalResult:
    """Return the result of episodes. `episodes` are grouped by task, `trials` for each, in the order of `tasks`."""
    groups = [episodes[i : i + trials] for i in range(0, len(episodes), trials)]
    whole = [episode for episode in episodes if episode.score]
    return EvalResult(
        domain=source.name,
        split=common_split(tasks),
        seed=seed,
        trials=trials,
        task_results=tuple(_result(task, group) for task, group in zip(tasks, groups, strict=True)),
        mean_parts=_mean_parts(whole),
        stop_counts=dict(Counter(str(episode.stop_reason) for episode in whole)),
        event_counts=dict(sum((Counter(episode.event_counts) for episode in whole), Counter[str]())),
        fault_counts=dict(Counter(str(episode.fault) for episode in episodes if not episode.score)),
        mean_turns=_mean([episode.num_turns for episode in whole]),
        mean_tokens=_mean([episode.num_sampled_tokens for episode in whole]),
    )


def common_split(tasks: Iterable[Task]) -> str:
    """Return the split of the tasks; empty if they have several."""
    splits = {task.split for task in tasks}
    return splits.pop() if len(splits) == 1 else ""


def success_gain(new: EvalResult, old: EvalResult) -> MeanEstimate:
    """Return the paired difference in success over the tasks that both have; see `paired_rates`."""
    pairs = paired_rates(new, old)
    trials = len(pairs) / math.fsum(1 / pair.trials for pair in pairs) if pairs else 1.0
    return paired_difference([pair.new for pair in pairs], [pair.old for pair in pairs], trials)


def gain_p_value(new: EvalResult, old: EvalResult) -> float:
    """Return the p-value of `success_gain`."""
    return sign_flip_p_value([pair.gain for pair in paired_rates(new, old)])


def merge_results(repeats: Sequence[EvalResult]) -> EvalResult:
    """Merge results (repeats, or seeds of a run) into one with all trials of all their tasks.

    Counts are summed, and means are over all episodes. `usage` is that of the first: it covers all repeats.
    """
    rewards = defaultdict[str, tuple[float | None, ...]](tuple)
    for result in (result for each in repeats for result in each.task_results):
        rewards[result.task] += result.rewards
    first = {result.task: result for each in reversed(repeats) for result in each.task_results}
    results = tuple(first[task].replace(rewards=found) for task, found in rewards.items())
    parts = dict.fromkeys(name for each in repeats for name in each.mean_parts)
    return repeats[0].replace(
        trials=sum(each.trials for each in repeats),
        task_results=results,
        mean_parts={name: _merged_mean([r for r in repeats if name in r.mean_parts], name) for name in parts},
        stop_counts=_sum_counts(each.stop_counts for each in repeats),
        event_counts=_sum_counts(each.event_counts for each in repeats),
        fault_counts=_sum_counts(each.fault_counts for each in repeats),
        mean_turns=_weighted_mean([each.mean_turns for each in repeats], repeats),
        mean_tokens=_weighted_mean([each.mean_tokens for each in repeats], repeats),
    )


def _merged_mean(repeats: Sequence[EvalResult], part: str) -> float:
    return _weighted_mean([each.mean_parts[part] for each in repeats], repeats)


def _weighted_mean(values: Sequence[float], repeats: Sequence[EvalResult]) -> float:
    """Return the mean of values, one for each repeat, with the numbers of episodes with a score as weights."""
    weights = [each.num_scored for each in repeats]
    return math.fsum(map(math.prod, zip(values, weights, strict=True))) / max(1, sum(weights))


def _sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, counts), Counter[str]()))


def paired_rates(new: EvalResult, old: EvalResult) -> list[PairedRates]:
    """Return both success rates of each task on which both have a score.

    With the same seed and number of trials, these are the rates over the trials that both have. Their episodes have the
    same users. Otherwise they are the rates over all scored trials of each.
    """
    before, same_seed = {result.task: result for result in old.task_results}, new.seed == old.seed
    pairs = (_paired_rates(each, before[each.task], same_seed) for each in new.task_results if each.task in before)
    return [pair for pair in pairs if pair]


def _paired_rates(new: TaskResult, old: TaskResult, same_seed: bool) -> PairedRates | None:
    if same_seed and len(new.rewards) == len(old.rewards):
        both = [(a, b) for a, b in zip(new.successes, old.successes, strict=True) if a is not None and b is not None]
        after, before = [a for a, _ in both], [b for _, b in both]
    else:
        after, before = ([s for s in each.successes if s is not None] for each in (new, old))
    if not after or not before:
        return None
    trials = 2 / (1 / len(after) + 1 / len(before))
    return PairedRates(result=new, new=_mean(after), old=_mean(before), trials=trials)


def _result(task: Task, group: Sequence[Trajectory]) -> TaskResult:
    return TaskResult(
        task=task.id,
        domain=task.domain,
        family=task.family,
        difficulty=task.difficulty,
        fingerprint=task_fingerprint(task),
        rewards=tuple(episode.score.reward if episode.score else None for episode in group),
    )


def _mean_parts(episodes: Sequence[Trajectory]) -> dict[str, float]:
    parts = [episode.score.parts for episode in episodes if episode.score]
    return {name: _mean([p[name] for p in parts if name in p]) for name in dict.fromkeys(itertools.chain(*parts))}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
