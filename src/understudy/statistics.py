"""How sure a number is. Tasks are the independent draws; trials of one task are not, so each task counts once.

    rate         Wilson's score interval (Wilson 1927), with as many draws as the episodes are worth: Korn & Graubard's
                 effective sample size of clusters (1998, Surv. Methodol. 24), with their correction for few clusters;
                 that Wilson's goes well with such a size is in Franco et al. (2019, J. Surv. Stat. Methodol. 7).
    difference   Bonett & Price's adjusted interval for paired proportions (2012, J. Educ. Behav. Stat. 37): Wald's,
                 with one more task won and one more lost. It takes mean differences over trials as well.
    resampled    the percentile bootstrap over tasks (Efron 1979, Ann. Stat. 7), seeded, for pass^k and pass@k
    chance       Fisher's randomization test of paired differences (1935), exact: each task's difference might as well
                 have had the other sign. With one trial a task it is McNemar's exact test. Where there are too many
                 sums for that, signs are drawn, seeded, and counted as Phipson & Smyth do (2010, SAGMB 9).

The first two are closed formulas: the same numbers everywhere, and honest at the edges, where a bootstrap has no width
at all (0 of 200 right is not 0 for sure). For the same reason `resampled` is Wilson's where all tasks have one value.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from understudy.records import Record

Z = 1.959963984540054
"""Two-sided 95% of the normal distribution."""
SUMS, SIGNS = 20_000_000, 10_000
"""Sums that the exact test adds up at most (seconds), and how often signs are drawn where there would be more."""


class Rate(Record):
    """A mean over tasks with its 95% interval."""

    mean: float
    low: float
    high: float
    tasks: int


def pass_at_k(trials: int, successes: int, k: int) -> float:
    """Probability that at least one of k trials succeeds (Chen et al. 2021, arXiv:2107.03374); unbiased."""
    return 1.0 - pass_hat_k(trials, trials - successes, k)


def pass_hat_k(trials: int, successes: int, k: int) -> float:
    """Probability that all of k trials succeed (tau-bench: Yao et al. 2024, arXiv:2406.12045); unbiased."""
    if not 1 <= k <= trials or not 0 <= successes <= trials:
        raise ValueError(f"pass^{k} of {successes} successes in {trials} trials is not defined")
    return math.comb(successes, k) / math.comb(trials, k)


def rate(values: Sequence[float], episodes: int = 0) -> Rate:
    """The mean of one value a task, each in [0, 1]. Without a task there is no mean: it is NaN, and the interval all.

    For values 0 and 1 this is Wilson's interval. Where values are means over trials, `episodes` says of how many in
    all. They are worth at least a draw for each task, which is what trials that agree are worth, and never one more
    than there were episodes: a smaller spread between tasks than that of as many draws is luck.
    """
    if not values:
        return Rate(mean=math.nan, low=0.0, high=1.0, tasks=0)
    n, mean = len(values), math.fsum(values) / len(values)
    draws = _draws(values, mean, episodes)
    centre = (mean + Z**2 / (2 * draws)) / (1 + Z**2 / draws)
    half = Z * math.sqrt(max(mean * (1 - mean), 0.0) / draws + Z**2 / (4 * draws**2)) / (1 + Z**2 / draws)
    return Rate(mean=mean, low=max(0.0, centre - half), high=min(1.0, centre + half), tasks=n)


def _draws(values: Sequence[float], mean: float, episodes: int) -> float:
    """How many independent draws vary as the tasks' mean does; few tasks tell that badly, hence Student's t."""
    n = len(values)
    if n == 1 or episodes <= n or not 0.0 < mean < 1.0:
        return n
    of_one = mean * (1 - mean)
    variance = max(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n, of_one / episodes)
    return max(float(n), of_one / variance * (Z / _student(n - 1)) ** 2)


def _student(freedom: int) -> float:
    """Two-sided 95% of Student's t: Abramowitz & Stegun 26.7.5, within 1% from two degrees of freedom on."""
    terms = (
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
        (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160,
    )
    return Z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


def difference(new: Sequence[float], old: Sequence[float]) -> Rate:
    """The mean of `new - old`, task by task; both hold one value a task, each in [0, 1], in the same order."""
    gains = [a - b for a, b in zip(new, old, strict=True)]
    if not gains:
        return Rate(mean=math.nan, low=-1.0, high=1.0, tasks=0)
    n = len(gains) + 2
    centre = math.fsum(gains) / n
    spread = (math.fsum(g * g for g in gains) + 2) / n - centre**2
    half = Z * math.sqrt(max(spread, 0.0) / n)
    mean = math.fsum(gains) / len(gains)
    return Rate(mean=mean, low=max(-1.0, centre - half), high=min(1.0, centre + half), tasks=len(gains))


def resampled(values: Sequence[float], seed: int = 0, draws: int = 2000) -> Rate:
    """The mean of one value a task, each in [0, 1], with the middle 95% of the means of tasks drawn anew."""
    return _resampled(tuple(values), seed, draws)


@lru_cache(maxsize=1024)
def _resampled(values: tuple[float, ...], seed: int, draws: int) -> Rate:
    """One evaluation is shown in several tables, each of which asks for the same intervals."""
    if len(set(values)) < 2:
        return rate(values)
    source, n = random.Random(seed), len(values)
    means = sorted(math.fsum(source.choices(values, k=n)) / n for _ in range(draws))
    low, high = means[math.floor(0.025 * draws)], means[math.ceil(0.975 * draws) - 1]
    return Rate(mean=math.fsum(values) / n, low=low, high=high, tasks=n)


def chance(gains: Sequence[float]) -> float:
    """How likely a mean difference at least as large is if nothing but chance gave each task's its sign."""
    exact = [Fraction(gain).limit_denominator(10_000) for gain in gains]
    unit = math.lcm(*(each.denominator for each in exact)) if exact else 1
    steps = [int(each * unit) for each in exact if each]
    if 2 * len(steps) * sum(map(abs, steps)) > SUMS:
        return _drawn_chance(steps)
    likely: dict[int, float] = {0: 1.0}
    for step in steps:
        following = defaultdict[int, float](float)
        for total, share in likely.items():
            following[total + step] += share / 2
            following[total - step] += share / 2
        likely = following
    return min(1.0, math.fsum(share for total, share in likely.items() if abs(total) >= abs(sum(steps))))


def _drawn_chance(steps: Sequence[int]) -> float:
    """The same by signs that are drawn: of steps of one size, how many go up. The signs seen are one draw more."""
    source, sizes, seen = random.Random(0), Counter(map(abs, steps)).items(), abs(sum(steps))
    sums = (sum(size * (2 * source.getrandbits(n).bit_count() - n) for size, n in sizes) for _ in range(SIGNS))
    return (sum(abs(total) >= seen for total in sums) + 1) / (SIGNS + 1)


def sentence(gain: Rate, new: str, old: str) -> str:
    """Whether a paired difference is larger than the noise, in words."""
    if not gain.tasks:
        return f"{new} and {old} share no task; they cannot be compared."
    interval = f"95% interval {gain.low:+.3f} to {gain.high:+.3f}, {gain.tasks} tasks, paired"
    if gain.low > 0:
        return f"{new} succeeds more often than {old} by {gain.mean:.3f} ({interval}): larger than the noise."
    if gain.high < 0:
        return f"{new} succeeds less often than {old} by {-gain.mean:.3f} ({interval}): larger than the noise."
    return f"{new} differs from {old} by {gain.mean:+.3f} ({interval}): inside the noise."
