"""Test the statistics of evaluations: by hand, by simulation, and for arbitrary values."""

import itertools
import math
import random
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.evaluation.statistics import (
    Z_95,
    MeanEstimate,
    describe_difference,
    estimate_mean,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    sign_flip_p_value,
)

share = st.integers(0, 4).map(lambda n: n / 4)
shares = st.lists(share, min_size=1, max_size=60)


def test_pass_k_matches_hand_computed_values() -> None:
    # 3 of 4 trials succeed; of the 6 pairs, 3 hold two successes, and all 6 hold one.
    assert pass_hat_k(4, 3, 1) == 0.75
    assert pass_hat_k(4, 3, 2) == 0.5
    assert pass_hat_k(4, 3, 3) == 0.25
    assert pass_hat_k(4, 3, 4) == 0.0
    assert pass_at_k(4, 3, 2) == 1.0
    assert pass_at_k(4, 1, 2) == 0.5


def test_pass_k_is_the_average_over_subsets_of_trials() -> None:
    rng = random.Random(0)
    drawn = [rng.sample([True] * 2 + [False] * 3, 2) for _ in range(20_000)]
    assert pass_hat_k(5, 2, 2) == pytest.approx(sum(map(all, drawn)) / 20_000, abs=0.01)
    assert pass_at_k(5, 2, 2) == pytest.approx(sum(map(any, drawn)) / 20_000, abs=0.015)


@pytest.mark.parametrize(("trials", "successes", "k"), [(2, 1, 3), (2, 1, 0), (2, 3, 1), (2, -1, 1)])
def test_pass_k_rejects_undefined_arguments(trials: int, successes: int, k: int) -> None:
    with pytest.raises(ValueError, match=rf"\b{k}\b"):
        pass_hat_k(trials, successes, k)


def test_interval_of_binary_values_is_the_wilson_interval() -> None:
    # 8 of 10: centre (0.8 + 0.19207) / 1.38415, half-width 1.95996 * sqrt(0.016 + 0.0096036) / 1.38415.
    found = estimate_mean([1.0] * 8 + [0.0] * 2)
    assert (found.mean, found.low, found.high) == pytest.approx((0.8, 0.4901625, 0.9433178), abs=1e-6)


def test_interval_of_only_zeros_or_ones_has_width() -> None:
    assert estimate_mean([0.0] * 200).high == pytest.approx(3.841459 / 203.841459, abs=1e-6)
    assert estimate_mean([1.0] * 200).low == pytest.approx(200 / 203.841459, abs=1e-6)


def test_interval_narrows_only_with_independent_trials() -> None:
    once = estimate_mean([1.0, 0.0] * 20)
    assert estimate_mean([1.0, 0.0] * 20, 160) == once
    assert estimate_mean([0.75, 0.25] * 20, 160).high - 0.5 < (once.high - 0.5) / 1.7
    assert estimate_mean([0.75, 0.25] * 20).high == once.high  # without the number of trials, each task counts once


def test_effective_sample_size_matches_hand_computed_value() -> None:
    # Ten tasks, 40 trials each: variance of the mean .0625 / 9 = .00694, as t is 2.262157 times itself by 1.332141:
    # .00925096, and .25 / .00925096 = 27.024 draws. Half-width 1.959964 * sqrt(.25 / 27.024 + ...) / 1.142150.
    found = estimate_mean([0.75, 0.25] * 5, 400)
    assert (found.low, found.high) == pytest.approx((0.323613, 0.676387), abs=1e-4)


def test_effective_sample_size_is_at_most_the_episodes() -> None:
    assert estimate_mean([0.5] * 200, 800).high == pytest.approx(estimate_mean([1.0, 0.0] * 400).high, abs=5e-4)
    for values in ([0.5, 0.625], [0.5, 0.5], [0.5, 0.5, 0.75]):
        episodes, found = 8 * len(values), estimate_mean(values, 8 * len(values))
        assert found.high - found.low > 2 * Z_95 * math.sqrt(found.mean * (1 - found.mean) / (episodes + Z_95**2))
    assert estimate_mean([0.5], 8) == estimate_mean([0.5])  # one task gives no variance between tasks


@pytest.mark.parametrize("spread", [0.0, 0.25, 0.5])
def test_rate_interval_covers_with_few_tasks(spread: float) -> None:
    """Simulate five tasks of eight trials, with success rates within `spread` of one half."""
    rng = random.Random(4)

    def task() -> float:
        p = 0.5 + rng.uniform(-spread, spread)
        return sum(rng.random() < p for _ in range(8)) / 8

    found = [estimate_mean([task() for _ in range(5)], 40) for _ in range(600)]
    assert sum(r.low <= 0.5 <= r.high for r in found) / 600 > 0.925


def test_paired_difference_matches_hand_computed_values() -> None:
    # 30 tasks gained, 10 lost of 100; with one more each: 20 / 102 = 0.1960784, and
    # 1.959964 * sqrt((42 / 102 - 0.1960784^2) / 102) = 1.959964 * 0.0604979 = 0.1185737.
    found = paired_difference([1.0] * 30 + [0.0] * 10 + [1.0] * 60, [0.0] * 30 + [1.0] * 10 + [1.0] * 60)
    assert found.mean == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.0775050, 0.3146519), abs=1e-6)


def test_difference_of_means_over_trials_matches_hand_computed_values() -> None:
    # Gains .5 and 0 of ten tasks, 16 trials each, with two of ±1/4: 2.5 / 12 = 0.2083333, and
    # 1.959964 * sqrt(((1.25 + 2/16) / 12 - 0.2083333^2) / 12) = 1.959964 * 0.0770176 = 0.1509517.
    found = paired_difference([0.5] * 10, [0.0] * 5 + [0.5] * 5, trials=16)
    assert (found.low, found.high) == pytest.approx((0.0573816, 0.3592851), abs=1e-6)
    assert paired_difference([1.0, 1.0], [0.0, 1.0], trials=1) == paired_difference([1.0, 1.0], [0.0, 1.0])


@pytest.mark.parametrize(("tasks", "trials", "gain"), [(10, 16, 0.15), (20, 8, 0.1), (40, 4, 0.0)])
def test_difference_interval_of_trials_covers_and_is_not_too_wide(tasks: int, trials: int, gain: float) -> None:
    rng = random.Random(6)

    def rate(p: float) -> float:
        return sum(rng.random() < p for _ in range(trials)) / trials

    covered = 0
    for _ in range(500):
        chances = [rng.uniform(0.1, 0.8) for _ in range(tasks)]
        found = paired_difference([rate(p + gain) for p in chances], [rate(p) for p in chances], trials)
        covered += found.low <= gain <= found.high
    assert 0.92 < covered / 500 < 0.985


def test_difference_interval_of_only_gains_has_width() -> None:
    assert paired_difference([1.0] * 5, [0.0] * 5).low < 1.0
    assert paired_difference([1.0], [0.0]).low < 0.0


def test_estimates_of_no_values_are_nan() -> None:
    assert math.isnan(estimate_mean([]).mean)
    assert math.isnan(paired_difference([], []).mean)
    assert not re.search(r"\d", describe_difference(paired_difference([], []), 1.0, "a", "b"))
    with pytest.raises(ValueError, match=r"zip\(\)"):
        paired_difference([1.0], [])


@pytest.mark.parametrize(("tasks", "p"), [(30, 0.1), (50, 0.3), (200, 0.5), (200, 0.95)])
def test_rate_interval_covers(tasks: int, p: float) -> None:
    rng = random.Random(1)
    found = [estimate_mean([float(rng.random() < p) for _ in range(tasks)]) for _ in range(600)]
    assert sum(r.low <= p <= r.high for r in found) / 600 > 0.925


def test_rate_interval_covers_with_correlated_trials() -> None:
    rng = random.Random(2)

    def task() -> float:
        p = rng.betavariate(0.5, 0.5)
        return sum(rng.random() < p for _ in range(4)) / 4

    found = [estimate_mean([task() for _ in range(60)], 240) for _ in range(400)]
    assert 0.92 < sum(r.low <= 0.5 <= r.high for r in found) / 400 < 0.985


@pytest.mark.parametrize(("tasks", "gained", "lost"), [(50, 0.1, 0.02), (50, 0.3, 0.1), (200, 0.05, 0.05)])
def test_difference_interval_covers(tasks: int, gained: float, lost: float) -> None:
    rng = random.Random(3)
    covered = 0
    for _ in range(500):
        draws = [rng.random() for _ in range(tasks)]
        new = [float(u < gained or u > 0.7) for u in draws]
        old = [float(gained <= u < gained + lost or u > 0.7) for u in draws]
        found = paired_difference(new, old)
        covered += found.low <= gained - lost <= found.high
    assert 0.925 < covered / 500 < 0.99


@given(shares)
def test_rate_interval_contains_its_mean_and_ignores_order(values: list[float]) -> None:
    trials = 4 * len(values)
    found, single = estimate_mean(values, trials), estimate_mean(values)
    assert 0.0 <= found.low <= found.mean + 1e-12
    assert found.mean - 1e-12 <= found.high <= 1.0
    assert single.low <= found.low + 1e-12
    assert found.high <= single.high + 1e-12
    assert estimate_mean(values[::-1], trials) == found
    assert estimate_mean([1 - v for v in values], trials).high == pytest.approx(1 - found.low)


@given(st.lists(st.tuples(share, share), min_size=1, max_size=60))
def test_difference_interval_contains_its_mean_and_is_antisymmetric(pairs: list[tuple[float, float]]) -> None:
    new, old = [a for a, _ in pairs], [b for _, b in pairs]
    found, turned = paired_difference(new, old), paired_difference(old, new)
    assert found.low <= found.mean + 1e-12
    assert found.mean - 1e-12 <= found.high
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))


def describe_gain(mean: float, p_value: float) -> str:
    gain = MeanEstimate(mean=mean, low=mean - 0.1, high=mean + 0.1, tasks=50)
    return describe_difference(gain, p_value, "rl", "base")


def test_description_distinguishes_gain_loss_and_noise() -> None:
    gain, loss = describe_gain(0.2, 0.05), describe_gain(-0.2, 0.05)
    assert re.search(r"^rl\b.*\bbase\b.*\b0\.200\b.*\+0\.100 to \+0\.300, 50 .*\b0\.05\b", gain)
    assert re.search(r"^rl\b.*\bbase\b.*\b0\.200\b.*-0\.300 to -0\.100, 50 .*\b0\.05\b", loss)
    noise = [describe_gain(0.2, 0.051), describe_gain(-0.2, 0.06), describe_gain(0.0, 1.0)]
    worded = [re.sub(r"[-+\d.]", "", text) for text in (gain, loss, *noise)]
    assert len(set(worded)) == 3
    assert len(set(worded[2:])) == 1, "a p-value above 0.05 says nothing"


@pytest.mark.parametrize("estimate", [pass_hat_k, pass_at_k])
@pytest.mark.parametrize(("tasks", "trials", "k"), [(5, 4, 2), (10, 16, 4), (20, 4, 4), (50, 4, 2)])
def test_pass_k_interval_covers(estimate: Callable[[int, int, int], float], tasks: int, trials: int, k: int) -> None:
    """Success rates of tasks have a Beta(1/2, 1/2) distribution, whose mean of p^k is a product."""
    rng = random.Random(7)
    all_succeed = math.prod((0.5 + i) / (1 + i) for i in range(k))
    expected = all_succeed if estimate is pass_hat_k else 1 - all_succeed
    covered = 0
    for _ in range(400):
        chances = [rng.betavariate(0.5, 0.5) for _ in range(tasks)]
        values = [estimate(trials, sum(rng.random() < p for _ in range(trials)), k) for p in chances]
        found = estimate_mean(values, tasks * trials // k)
        covered += found.low <= expected <= found.high
    assert covered / 400 > 0.92


def test_p_value_of_single_trials_is_mcnemars_exact_test() -> None:
    for won, lost in ((5, 0), (7, 2), (3, 3), (12, 4)):
        gains = [1.0] * won + [-1.0] * lost + [0.0] * 9
        n, few = won + lost, min(won, lost)
        exact = min(1.0, 2 * sum(math.comb(n, k) for k in range(few + 1)) / 2**n)
        assert sign_flip_p_value(gains) == pytest.approx(exact)
    assert sign_flip_p_value([]) == sign_flip_p_value([0.0, 0.0]) == 1.0


def test_p_value_enumerates_every_choice_of_signs() -> None:
    gains = [0.5, -0.25, 1 / 3, 0.75, -0.5]
    sums = [
        abs(sum(s * g for s, g in zip(signs, gains, strict=True))) for signs in itertools.product((1, -1), repeat=5)
    ]
    assert sign_flip_p_value(gains) == pytest.approx(sum(s >= abs(sum(gains)) - 1e-9 for s in sums) / 32)


def test_p_value_of_many_tasks_is_sampled() -> None:
    """Faults leave 13 to 16 trials in each task, so that exact enumeration would take minutes."""
    rng = random.Random(5)
    gains = [rng.choice((1, -1)) * rng.randint(0, n) / n for n in (13, 14, 15, 16) * 50]
    start = time.process_time()
    found = sign_flip_p_value(gains)
    assert time.process_time() - start < 20  # seconds; exact enumeration takes many minutes
    z = (abs(sum(gains))) / math.sqrt(sum(gain * gain for gain in gains))
    assert found == pytest.approx(math.erfc(z / math.sqrt(2)), abs=0.02)
    assert sign_flip_p_value(gains) == found
    assert sign_flip_p_value([0.9, 1.0] * 3000) == 1 / 10_001  # never 0
