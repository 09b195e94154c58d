"""Intervals and tests of evaluations.

Tasks are independent draws. Trials of one task are not, so each task counts once.

    estimate_mean        Wilson's score interval (1927). With several trials per task, the sample size is the effective
                         size of clusters by Korn and Graubard (1998, Surv. Methodol. 24), with their correction for few
                         clusters. Franco et al. (2019, J. Surv. Stat. Methodol. 7) support this combination.
                         pass^k and pass@k use it too: n trials of a task count as at most n/k draws, because such a
                         U-statistic has at most k/n of the variance of one group of k (Hoeffding 1948, Ann. Math.
                         Stat. 19).
    paired_difference    Bonett and Price's adjusted Wald interval for paired proportions (2012, J. Educ. Behav. Stat.
                         37), which adds one task won and one task lost. A difference of means over k trials is about
                         1/sqrt(k) as large, so with k trials the two added differences are ±1/sqrt(k).
    sign_flip_p_value    Fisher's randomization test of paired differences (1935): under the null hypothesis, each
                         task's difference has either sign with equal probability. The test is exact. With one trial
                         per task it is McNemar's exact test. If there are too many sums, signs are drawn with a fixed
                         seed, and the p-value is that of Phipson and Smyth (2010, SAGMB 9).
    student_interval     Student's t interval (1908) of a mean over training seeds, which the other intervals take as
                         given. Seeds are independent draws; their results are taken as normal.

The first two are closed formulas. A bootstrap interval is too narrow with few tasks, and has width 0 if all tasks have
the same value (0 of 200 successes do not prove a rate of 0).
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from statistics import fmean, stdev

from understudy.core.records import Record

Z_95 = 1.959963984540054
"""Quantile of the normal distribution for two-sided 95% intervals."""
MAX_SIGNIFICANT_P_VALUE = 0.05
"""A difference is called significant if its p-value is at most this."""
MIN_SEEDS = 3
"""Smallest number of seeds for an interval over seeds. With two, it would be 12.7 times as wide as their difference."""
MAX_EXACT_SUMS, NUM_SIGN_DRAWS = 20_000_000, 10_000
"""Maximum number of sums in the exact test (seconds), and the number of random sign draws in place of more sums."""


class MeanEstimate(Record):
    """A mean over tasks, with its 95% interval and the number of tasks."""

    mean: float
    low: float
    high: float
    tasks: int


def pass_at_k(trials: int, successes: int, k: int) -> float:
    """Return an unbiased estimate of the probability that at least one of k trials succeeds.

    `successes` of `trials` succeeded. See Chen et al. (2021), arXiv:2107.03374.
    """
    return 1.0 - pass_hat_k(trials, trials - successes, k)


def pass_hat_k(trials: int, successes: int, k: int) -> float:
    """Return an unbiased estimate of the probability that all of k trials succeed.

    `successes` of `trials` succeeded. See tau-bench, Yao et al. (2024), arXiv:2406.12045. Raise ValueError unless 1 <=
    k <= trials and 0 <= successes <= trials.
    """
    if not 1 <= k <= trials or not 0 <= successes <= trials:
        raise ValueError(f"pass^{k} of {successes} successes in {trials} trials is not defined")
    return math.comb(successes, k) / math.comb(trials, k)


def estimate_mean(values: Sequence[float], episodes: int = 0) -> MeanEstimate:
    """Return the mean of one value per task, each in [0, 1], with Wilson's interval.

    Without values the mean is NaN and the interval [0, 1]. If the values are means over trials, `episodes` is the
    number of all episodes, and the interval uses an effective sample size. Its minimum is the number of tasks, which
    is right if the trials of each task always agree. Its maximum is `episodes`, because tasks can vary less than
    independent episodes only by chance. For pass^k and pass@k, `episodes` is the number of groups of k trials.
    """
    if not values:
        return MeanEstimate(mean=math.nan, low=0.0, high=1.0, tasks=0)
    n, mean = len(values), math.fsum(values) / len(values)
    draws = _draws(values, mean, episodes)
    centre = (mean + Z_95**2 / (2 * draws)) / (1 + Z_95**2 / draws)
    half = Z_95 * math.sqrt(max(mean * (1 - mean), 0.0) / draws + Z_95**2 / (4 * draws**2)) / (1 + Z_95**2 / draws)
    return MeanEstimate(mean=mean, low=max(0.0, centre - half), high=min(1.0, centre + half), tasks=n)


def _draws(values: Sequence[float], mean: float, episodes: int) -> float:
    """Return the effective sample size.

    It is the number of independent draws whose mean has the variance of the tasks' mean. Student's t corrects for few
    tasks.
    """
    n = len(values)
    if n == 1 or episodes <= n or not 0.0 < mean < 1.0:
        return n
    of_one = mean * (1 - mean)
    variance = max(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n, of_one / episodes)
    return max(float(n), of_one / variance * (Z_95 / _student_t(n - 1)) ** 2)


def _student_t(freedom: int) -> float:
    """Return the quantile of Student's t for two-sided 95% intervals.

    Abramowitz and Stegun 26.7.5. The error is below 1% for two or more degrees of freedom.
    """
    terms = (
        (Z_95**3 + Z_95) / 4,
        (5 * Z_95**5 + 16 * Z_95**3 + 3 * Z_95) / 96,
        (3 * Z_95**7 + 19 * Z_95**5 + 17 * Z_95**3 - 15 * Z_95) / 384,
        (79 * Z_95**9 + 776 * Z_95**7 + 1482 * Z_95**5 - 1920 * Z_95**3 - 945 * Z_95) / 92160,
    )
    return Z_95 + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


def paired_difference(new: Sequence[float], old: Sequence[float], trials: float = 1.0) -> MeanEstimate:
    """Return the mean of `new - old` with its interval.

    Both hold one value per task, each in [0, 1], in the same order. Without tasks the mean is NaN. `trials` is the
    number of trials of each value, the harmonic mean if it differs between tasks.
    """
    gains = [a - b for a, b in zip(new, old, strict=True)]
    if not gains:
        return MeanEstimate(mean=math.nan, low=-1.0, high=1.0, tasks=0)
    n = len(gains) + 2
    centre = math.fsum(gains) / n
    spread = (math.fsum(g * g for g in gains) + 2 / trials) / n - centre**2
    half = Z_95 * math.sqrt(max(spread, 0.0) / n)
    mean = math.fsum(gains) / len(gains)
    return MeanEstimate(mean=mean, low=max(-1.0, centre - half), high=min(1.0, centre + half), tasks=len(gains))


def student_interval(values: Sequence[float], low: float = -1.0) -> tuple[float, float] | None:
    """Return Student's t interval of the mean of values in [low, 1], one for each seed.

    None for fewer than `MIN_SEEDS` values, and if all are equal, because that does not prove that other seeds agree.
    """
    known = [value for value in values if not math.isnan(value)]
    if len(known) < MIN_SEEDS or len(set(known)) == 1:
        return None
    half = _student_t(len(known) - 1) * stdev(known) / math.sqrt(len(known))
    return max(low, fmean(known) - half), min(1.0, fmean(known) + half)


def sign_flip_p_value(gains: Sequence[float]) -> float:
    """Return the p-value of the mean difference: the probability, under random signs, of one at least as far from 0."""
    return _p_value(tuple(gains))


@lru_cache(maxsize=256)
def _p_value(gains: tuple[float, ...]) -> float:
    """Return the p-value. Results are cached, because several forms of a report need the same one."""
    exact = [Fraction(gain).limit_denominator(10_000) for gain in gains]
    unit = math.lcm(*(each.denominator for each in exact)) if exact else 1
    steps = [int(each * unit) for each in exact if each]
    if 2 * len(steps) * sum(map(abs, steps)) > MAX_EXACT_SUMS:
        return _sampled_p_value(steps)
    likely: dict[int, float] = {0: 1.0}
    for step in steps:
        following = defaultdict[int, float](float)
        for total, share in likely.items():
            following[total + step] += share / 2
            following[total - step] += share / 2
        likely = following
    return min(1.0, math.fsum(share for total, share in likely.items() if abs(total) >= abs(sum(steps))))


def _sampled_p_value(steps: Sequence[int]) -> float:
    """Return the p-value from random sign draws, with the observed signs as one more draw.

    Differences of the same size are drawn together, as a binomial number of positive signs.
    """
    source, sizes, seen = random.Random(0), Counter(map(abs, steps)).items(), abs(sum(steps))
    sums = (sum(size * (2 * source.getrandbits(n).bit_count() - n) for size, n in sizes) for _ in range(NUM_SIGN_DRAWS))
    return (sum(abs(total) >= seen for total in sums) + 1) / (NUM_SIGN_DRAWS + 1)


def describe_difference(gain: MeanEstimate, p_value: float, new: str, old: str) -> str:
    """Return a sentence on a paired difference: its size, its interval, and whether its p-value is at most 0.05.

    With few tasks, the sign-flip test and the interval may disagree on whether the difference is 0.
    """
    if not gain.tasks:
        return f"{new} and {old} have no task on which both have a score; they cannot be compared."
    interval = f"95% interval {gain.low:+.3f} to {gain.high:+.3f}"
    found = f"{interval}, {gain.tasks} common tasks, paired; sign-flip p = {p_value:.2g}"
    if p_value > MAX_SIGNIFICANT_P_VALUE:
        return f"{new} differs from {old} by {gain.mean:+.3f} ({found}): not significant."
    side = "more" if gain.mean > 0 else "less"
    return f"{new} succeeds {side} often than {old} by {abs(gain.mean):.3f} ({found}): significant."
