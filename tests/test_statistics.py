"""Statistics: worked by hand, simulated, and for any values."""

import itertools
import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.statistics import (
    Rate,
    Z,
    chance,
    difference,
    pass_at_k,
    pass_hat_k,
    rate,
    resampled,
    sentence,
)

share = st.integers(0, 4).map(lambda n: n / 4)
shares = st.lists(share, min_size=1, max_size=60)


def test_pass_by_hand() -> None:
    # 3 of 4 trials succeed; of the 6 pairs, 3 hold two successes, and all 6 hold one.
    assert pass_hat_k(4, 3, 1) == 0.75
    assert pass_hat_k(4, 3, 2) == 0.5
    assert pass_hat_k(4, 3, 3) == 0.25
    assert pass_hat_k(4, 3, 4) == 0.0
    assert pass_at_k(4, 3, 2) == 1.0
    assert pass_at_k(4, 1, 2) == 0.5


def test_pass_is_the_average_over_all_choices_of_trials() -> None:
    rng = random.Random(0)
    drawn = [rng.sample([True] * 2 + [False] * 3, 2) for _ in range(20_000)]
    assert pass_hat_k(5, 2, 2) == pytest.approx(sum(map(all, drawn)) / 20_000, abs=0.01)
    assert pass_at_k(5, 2, 2) == pytest.approx(sum(map(any, drawn)) / 20_000, abs=0.015)


@pytest.mark.parametrize(("trials", "successes", "k"), [(2, 1, 3), (2, 1, 0), (2, 3, 1), (2, -1, 1)])
def test_pass_refuses_what_is_not_defined(trials: int, successes: int, k: int) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_hat_k(trials, successes, k)


def test_rate_of_zeros_and_ones_is_wilsons() -> None:
    # 8 of 10: centre (0.8 + 0.19207) / 1.38415, half-width 1.95996 * sqrt(0.016 + 0.0096036) / 1.38415.
    found = rate([1.0] * 8 + [0.0] * 2)
    assert (found.mean, found.low, found.high) == pytest.approx((0.8, 0.4901625, 0.9433178), abs=1e-6)


def test_nothing_of_many_is_not_nothing_for_sure() -> None:
    assert rate([0.0] * 200).high == pytest.approx(3.841459 / 203.841459, abs=1e-6)
    assert rate([1.0] * 200).low == pytest.approx(200 / 203.841459, abs=1e-6)


def test_trials_that_agree_count_once_and_others_more() -> None:
    once = rate([1.0, 0.0] * 20)
    assert rate([1.0, 0.0] * 20, 160) == once
    assert rate([0.75, 0.25] * 20, 160).high - 0.5 < (once.high - 0.5) / 1.7
    assert rate([0.75, 0.25] * 20).high == once.high  # without their number, trials are none


def test_draws_by_hand() -> None:
    # Ten tasks, 40 trials each: variance of the mean .0625 / 9 = .00694, as t is 2.262157 times itself by 1.332141:
    # .00925096, and .25 / .00925096 = 27.024 draws. Half-width 1.959964 * sqrt(.25 / 27.024 + ...) / 1.142150.
    found = rate([0.75, 0.25] * 5, 400)
    assert (found.low, found.high) == pytest.approx((0.323613, 0.676387), abs=1e-4)


def test_no_more_draws_than_episodes() -> None:
    assert rate([0.5] * 200, 800).high == pytest.approx(rate([1.0, 0.0] * 400).high, abs=5e-4)
    for values in ([0.5, 0.625], [0.5, 0.5], [0.5, 0.5, 0.75]):
        episodes, found = 8 * len(values), rate(values, 8 * len(values))
        assert found.high - found.low > 2 * Z * math.sqrt(found.mean * (1 - found.mean) / (episodes + Z**2))
    assert rate([0.5], 8) == rate([0.5])  # one task says nothing of others


@pytest.mark.parametrize("spread", [0.0, 0.25, 0.5])
def test_rate_covers_with_few_tasks(spread: float) -> None:
    """Five tasks, eight trials each, whose chances are half, or up to so far from it."""
    rng = random.Random(4)

    def task() -> float:
        p = 0.5 + rng.uniform(-spread, spread)
        return sum(rng.random() < p for _ in range(8)) / 8

    found = [rate([task() for _ in range(5)], 40) for _ in range(600)]
    assert sum(r.low <= 0.5 <= r.high for r in found) / 600 > 0.925


def test_difference_by_hand() -> None:
    # 30 tasks gained, 10 lost of 100; with one more each: 20 / 102 = 0.1960784, and
    # 1.959964 * sqrt((42 / 102 - 0.1960784^2) / 102) = 1.959964 * 0.0604979 = 0.1185737.
    found = difference([1.0] * 30 + [0.0] * 10 + [1.0] * 60, [0.0] * 30 + [1.0] * 10 + [1.0] * 60)
    assert found.mean == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.0775050, 0.3146519), abs=1e-6)


def test_all_won_is_not_without_doubt() -> None:
    assert difference([1.0] * 5, [0.0] * 5).low < 1.0
    assert difference([1.0], [0.0]).low < 0.0


def test_nothing_to_count() -> None:
    assert math.isnan(rate([]).mean)
    assert math.isnan(difference([], []).mean)
    assert "share no task" in sentence(difference([], []), "a", "b")
    with pytest.raises(ValueError, match="shorter"):
        difference([1.0], [])


@pytest.mark.parametrize(("tasks", "p"), [(30, 0.1), (50, 0.3), (200, 0.5), (200, 0.95)])
def test_rate_covers(tasks: int, p: float) -> None:
    rng = random.Random(1)
    found = [rate([float(rng.random() < p) for _ in range(tasks)]) for _ in range(600)]
    assert sum(r.low <= p <= r.high for r in found) / 600 > 0.925


def test_rate_covers_when_trials_of_a_task_agree() -> None:
    rng = random.Random(2)

    def task() -> float:
        p = rng.betavariate(0.5, 0.5)
        return sum(rng.random() < p for _ in range(4)) / 4

    found = [rate([task() for _ in range(60)], 240) for _ in range(400)]
    assert 0.92 < sum(r.low <= 0.5 <= r.high for r in found) / 400 < 0.985


@pytest.mark.parametrize(("tasks", "gained", "lost"), [(50, 0.1, 0.02), (50, 0.3, 0.1), (200, 0.05, 0.05)])
def test_difference_covers(tasks: int, gained: float, lost: float) -> None:
    rng = random.Random(3)
    covered = 0
    for _ in range(500):
        draws = [rng.random() for _ in range(tasks)]
        new = [float(u < gained or u > 0.7) for u in draws]
        old = [float(gained <= u < gained + lost or u > 0.7) for u in draws]
        found = difference(new, old)
        covered += found.low <= gained - lost <= found.high
    assert 0.925 < covered / 500 < 0.99


@given(shares)
def test_rate_holds_its_mean_and_does_not_care_for_order(values: list[float]) -> None:
    trials = 4 * len(values)
    found, single = rate(values, trials), rate(values)
    assert 0.0 <= found.low <= found.mean + 1e-12
    assert found.mean - 1e-12 <= found.high <= 1.0
    assert single.low <= found.low + 1e-12
    assert found.high <= single.high + 1e-12
    assert rate(values[::-1], trials) == found
    assert rate([1 - v for v in values], trials).high == pytest.approx(1 - found.low)


@given(st.lists(st.tuples(share, share), min_size=1, max_size=60))
def test_difference_holds_its_mean_and_turns_around(pairs: list[tuple[float, float]]) -> None:
    new, old = [a for a, _ in pairs], [b for _, b in pairs]
    found, turned = difference(new, old), difference(old, new)
    assert found.low <= found.mean + 1e-12
    assert found.mean - 1e-12 <= found.high
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.1, 0.3, "succeeds more often than base by 0.200"),
        (-0.1, 0.5, "inside the noise"),
        (0.0, 0.4, "inside the noise"),
    ],
)
def test_sentence(low: float, high: float, said: str) -> None:
    text = sentence(Rate(mean=0.2, low=low, high=high, tasks=50), "trained", "base")
    assert said in text
    assert text.startswith("trained ")
    assert ("larger than the noise" in text) == (low > 0)


def test_sentence_of_a_loss() -> None:
    text = sentence(Rate(mean=-0.2, low=-0.3, high=-0.1, tasks=50), "trained", "base")
    assert "succeeds less often than base by 0.200" in text
    assert "larger than the noise" in text


def test_resampling_agrees_with_theory_and_is_the_same_each_time() -> None:
    values = [1.0] * 60 + [0.0] * 40
    found = resampled(values)
    assert found == resampled(values)
    spread = Z * math.sqrt(0.6 * 0.4 / 100)
    assert (found.low, found.high) == (pytest.approx(0.6 - spread, abs=0.02), pytest.approx(0.6 + spread, abs=0.02))
    assert found.mean == pytest.approx(0.6)
    assert resampled([1.0] * 20) == rate([1.0] * 20)  # where all agree, resampling has no width
    assert resampled([]).tasks == 0


def test_chance_with_one_trial_a_task_is_the_exact_test_of_mcnemar() -> None:
    for won, lost in ((5, 0), (7, 2), (3, 3), (12, 4)):
        gains = [1.0] * won + [-1.0] * lost + [0.0] * 9
        n, few = won + lost, min(won, lost)
        exact = min(1.0, 2 * sum(math.comb(n, k) for k in range(few + 1)) / 2**n)
        assert chance(gains) == pytest.approx(exact)
    assert chance([]) == chance([0.0, 0.0]) == 1.0


def test_chance_with_several_trials_counts_every_choice_of_signs() -> None:
    gains = [0.5, -0.25, 1 / 3, 0.75, -0.5]
    sums = [
        abs(sum(s * g for s, g in zip(signs, gains, strict=True))) for signs in itertools.product((1, -1), repeat=5)
    ]
    assert chance(gains) == pytest.approx(sum(s >= abs(sum(gains)) - 1e-9 for s in sums) / 32)


def test_chance_of_very_many_sums_is_drawn() -> None:
    """Trials that faults have left in many numbers: 13 to 16 of each task's."""
    rng = random.Random(5)
    gains = [rng.choice((1, -1)) * rng.randint(0, n) / n for n in (13, 14, 15, 16) * 50]
    start = time.process_time()
    found = chance(gains)
    assert time.process_time() - start < 20  # seconds; adding them all up takes many minutes
    z = (abs(sum(gains))) / math.sqrt(sum(gain * gain for gain in gains))
    assert found == pytest.approx(math.erfc(z / math.sqrt(2)), abs=0.02)
    assert chance(gains) == found
    assert chance([0.9, 1.0] * 3000) == 1 / 10_001  # never 0
