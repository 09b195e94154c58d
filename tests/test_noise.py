"""The noise of identical evaluations: worked by hand, and against agents that toss a coin for each episode."""

import math
import random

import pytest

from understudy.evaluation import Evaluation, TaskResult
from understudy.noise import between, noise
from understudy.statistics import Z


def evaluation(*rewards: tuple[float | None, ...]) -> Evaluation:
    rows = tuple(TaskResult(task=f"t{i}", family="f", difficulty="easy", rewards=row) for i, row in enumerate(rewards))
    return Evaluation(domain="d", seed=0, trials=len(rewards[0]), results=rows)


def test_by_hand() -> None:
    one, other = evaluation((1.0,), (0.0,), (1.0,)), evaluation((0.0,), (0.0,), (1.0,))
    found = noise([one, other])
    assert found is not None
    assert found.rates == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert found.apart == pytest.approx(1 / 3)
    assert found.floor == pytest.approx(Z * math.sqrt(2 * 0.5 / 9))  # one task of three varies: 1/2 * 1/2 * 2/1
    assert "at most 0.333 apart" in str(found)


def test_one_evaluation_tells_it_by_its_trials_and_without_any_there_is_none() -> None:
    found = noise([evaluation((1.0, 0.0), (None, 1.0), (1.0, 1.0))])
    assert found is not None
    assert found.floor == pytest.approx(Z * math.sqrt(2 * 0.5 / (4 * 2)))
    assert "from the trials of each task" in str(found)
    assert noise([evaluation((1.0,), (0.0,))]) is None
    assert between([evaluation((1.0, 1.0))], [evaluation((1.0,))]) is None


def test_nineteen_of_twenty_differences_of_tossed_coins_are_within_the_floor() -> None:
    draw = random.Random(0)
    chances = [draw.random() for _ in range(50)]

    def tossed() -> Evaluation:
        return evaluation(*(tuple(float(draw.random() < p) for _ in range(2)) for p in chances))

    floors = [noise([tossed(), tossed()]) for _ in range(200)]
    within = [abs(found.rates[0] - found.rates[1]) <= found.floor for found in floors if found]
    assert 0.92 <= sum(within) / len(within) <= 0.98
    assert between([tossed()], [tossed()]) == pytest.approx(floors[0].floor if floors[0] else 0, rel=0.3)
