"""Noise: the spread of evaluations of one agent on the same tasks with different seeds.

It is estimated from the episodes of each task, over all repeats. Let `v` be the unbiased variance of one episode's
success on a task. Then an evaluation of `n` tasks with `k` trials has variance sum(v) / (n² k), and the variance of the
difference of two evaluations is the sum of theirs. This needs a task with both a success and a failure. Without one,
the estimate would be 0, although other seeds could differ. It does not cover the choice of tasks; confidence intervals
do.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

from understudy.core.records import Record
from understudy.evaluation.result import EvalResult
from understudy.evaluation.statistics import Z_95

NO_VARIATION = "Noise floor: it cannot be estimated, because all episodes of each task have the same result."


class NoiseEstimate(Record):
    """The spread of evaluations that differ only in their seeds."""

    rates: tuple[float, ...]
    """Success rate of each evaluation."""
    max_difference: float
    """Largest difference between two of these rates."""
    noise_floor: float
    """95% of the differences between two such evaluations are smaller than this."""

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:.3f}" for rate in self.rates)
        text = (
            f"Noise floor: with other seeds, the success rate differs by up to {self.noise_floor:.3f} in 95% of cases"
        )
        if len(self.rates) < 2:
            return f"{text} (estimated from the trials of each task)."
        return f"{text}. The repeats gave {rates}, with differences up to {self.max_difference:.3f}."


def estimate_noise(results: Sequence[EvalResult]) -> NoiseEstimate | None:
    """Return the noise of an agent's evaluations: its repeats, or a single one.

    None if no task has both a success and a failure.
    """
    results = [evaluation for evaluation in results if evaluation.success_rate.tasks]
    variance = _variance(results)
    if not variance:
        return None
    rates = tuple(evaluation.success_rate.mean for evaluation in results)
    apart = max((abs(a - b) for a, b in itertools.combinations(rates, 2)), default=0.0)
    return NoiseEstimate(rates=rates, max_difference=apart, noise_floor=Z_95 * math.sqrt(2 * variance))


def noise_between(new: Sequence[EvalResult], old: Sequence[EvalResult]) -> float | None:
    """Return the noise floor of a comparison: 95% of the differences between two agents that are equally good at each
    task are smaller.

    None if in either evaluation no task has two episodes, or if in both no task has a success and a failure.
    """
    variances = [_variance(new), _variance(old)]
    known = [variance for variance in variances if variance is not None]
    return Z_95 * math.sqrt(sum(known)) if len(known) == len(variances) and any(known) else None


def _variance(evaluations: Sequence[EvalResult]) -> float | None:
    """Return the variance of one evaluation's success rate over seeds. None if no task has two episodes."""
    episodes, trials = defaultdict[str, list[bool]](list), 0.0
    for evaluation in evaluations:
        for result in evaluation.task_results:
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
