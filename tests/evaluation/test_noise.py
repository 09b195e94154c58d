"""Test the noise estimate of identical evaluations, by hand and by simulation."""

import math
import random
import re

import pytest

from support.eval_results import make_result
from understudy.evaluation.comparison import compare
from understudy.evaluation.noise import NO_VARIATION, estimate_noise, noise_between
from understudy.evaluation.reports.report import EvalReport
from understudy.evaluation.reports.text import report_to_text
from understudy.evaluation.result import EvalResult, ResultRow
from understudy.evaluation.statistics import Z_95


def test_noise_matches_hand_computed_values() -> None:
    one, other = make_result((1.0,), (0.0,), (1.0,)), make_result((0.0,), (0.0,), (1.0,))
    found = estimate_noise([one, other])
    assert found is not None
    assert found.rates == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert found.max_difference == pytest.approx(1 / 3)
    assert found.noise_floor == pytest.approx(
        Z_95 * math.sqrt(2 * 0.5 / 9)
    )  # one task of three varies: 1/2 * 1/2 * 2/1
    assert re.search(r"\b0\.333\b", str(found))


def test_noise_of_one_evaluation_requires_several_trials() -> None:
    found = estimate_noise([make_result((1.0, 0.0), (None, 1.0), (1.0, 1.0))])
    assert found is not None
    assert found.noise_floor == pytest.approx(Z_95 * math.sqrt(2 * 0.5 / (4 * 2)))
    assert estimate_noise([make_result((1.0,), (0.0,))]) is None
    assert noise_between([make_result((1.0, 1.0))], [make_result((1.0,))]) is None


def test_no_noise_floor_without_variation() -> None:
    same = make_result((1.0, 1.0), (0.0, 0.0))
    varied = make_result((1.0, 0.0), (0.0, 0.0))
    assert estimate_noise([same, same]) is None
    assert noise_between([same], [same]) is None
    assert noise_between([same], [varied]) == pytest.approx(Z_95 * math.sqrt(0.5 / (4 * 2)))
    for result, said in ((same, True), (varied, False), (make_result((1.0,)), False)):
        report = EvalReport(rows=(ResultRow(name="a", result=result),), noise=estimate_noise([result]))
        assert (NO_VARIATION in report_to_text(report).splitlines()) is said
        assert (NO_VARIATION in str(compare(report, report))) is said


def test_noise_floor_covers_95_percent_of_random_differences() -> None:
    draw = random.Random(0)
    chances = [draw.random() for _ in range(50)]

    def random_result() -> EvalResult:
        return make_result(*(tuple(float(draw.random() < p) for _ in range(2)) for p in chances))

    floors = [estimate_noise([random_result(), random_result()]) for _ in range(200)]
    within = [abs(found.rates[0] - found.rates[1]) <= found.noise_floor for found in floors if found]
    assert 0.92 <= sum(within) / len(within) <= 0.98
    assert noise_between([random_result()], [random_result()]) == pytest.approx(
        floors[0].noise_floor if floors[0] else 0, rel=0.3
    )
