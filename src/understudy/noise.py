"""Noise: how far apart identical evaluations lie, for agents that sample and users who vary.

The same agent on the same tasks with other seeds gives another number. How far another is told by the spread of each
task's own episodes, over all evaluations together: with `v` the variance of one episode's success (unbiased, task by
task), one evaluation of `n` tasks and `k` trials has the variance sum(v) / (n² k), and the difference of two the sum of
theirs. That takes two episodes of each task at least, and says nothing about other tasks: intervals do.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

from understudy.evaluation import Evaluation
from understudy.records import Record
from understudy.statistics import Z


class Noise(Record):
    """How far identical evaluations lie apart."""

    rates: tuple[float, ...]
    """Success in each of them."""
    apart: float
    """The largest difference between two."""
    floor: float
    """What 95% of the differences between two like these stay within."""

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:.3f}" for rate in self.rates)
        text = f"Noise floor: two identical evaluations differ by up to {self.floor:.3f} in 95% of cases"
        if len(self.rates) < 2:
            return f"{text} (from the trials of each task)."
        return f"{text}; {len(self.rates)} of them came to {rates}, at most {self.apart:.3f} apart."


def noise(evaluations: Sequence[Evaluation]) -> Noise | None:
    """The noise of identical evaluations, or of the trials of one; None where no task was played twice."""
    evaluations = [evaluation for evaluation in evaluations if evaluation.success.tasks]
    variance = _variance(evaluations)
    if variance is None:
        return None
    rates = tuple(evaluation.success.mean for evaluation in evaluations)
    apart = max((abs(a - b) for a, b in itertools.combinations(rates, 2)), default=0.0)
    return Noise(rates=rates, apart=apart, floor=Z * math.sqrt(2 * variance))


def between(new: Sequence[Evaluation], old: Sequence[Evaluation]) -> float | None:
    """What 95% of the differences stay within between two who are equally good at each task.

    None where either has played its tasks once only.
    """
    variances = [_variance(new), _variance(old)]
    known = [variance for variance in variances if variance is not None]
    return Z * math.sqrt(sum(known)) if len(known) == len(variances) else None


def _variance(evaluations: Sequence[Evaluation]) -> float | None:
    """The variance of one evaluation's success over seeds."""
    episodes, trials = defaultdict[str, list[bool]](list), 0.0
    for evaluation in evaluations:
        for result in evaluation.results:
            episodes[result.task] += [success for success in result.successes if success is not None]
    several = [each for each in episodes.values() if len(each) > 1]
    if not several:
        return None
    trials = sum(map(len, several)) / len(several) / len(evaluations)
    spread = math.fsum(_spread(each) for each in several)
    return spread / (len(several) ** 2 * trials)


def _spread(successes: Sequence[bool]) -> float:
    n, share = len(successes), sum(successes) / len(successes)
    return share * (1 - share) * n / (n - 1)
