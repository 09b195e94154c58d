"""Two evaluations side by side, by hand: which rows are paired, and what the noise is made of."""

import json

import pytest

from test_noise import evaluation
from understudy.assess.compare import as_json, compare
from understudy.evaluation import Evaluation
from understudy.noise import between
from understudy.outcome import Named, Outcome


def of(*evaluations: Evaluation) -> Outcome:
    return Outcome(rows=tuple(Named(name=f"row {i}", evaluation=each) for i, each in enumerate(evaluations)))


def test_what_a_run_has_learned_between_its_stages_is_no_noise() -> None:
    base, trained = evaluation((0.0,), (0.0,), (0.0,)), evaluation((1.0,), (1.0,), (0.0,))
    found = compare(of(base, trained), of(base, base))
    assert found.gain.mean == pytest.approx(2 / 3)
    assert found.noise is None
    assert "noise floor" not in str(found)


def test_the_noise_is_that_of_the_tasks_that_both_have() -> None:
    wavering, sure = (1.0, 0.0), (1.0, 1.0)
    few, many = evaluation(wavering, sure, wavering, sure), evaluation(sure, wavering, *[sure] * 38)
    found = compare(of(few), of(many))
    assert found.gain.tasks == 4
    assert found.noise == between([few], [evaluation(sure, wavering, sure, sure)])


def test_reruns_are_compared_with_those_of_the_same_users() -> None:
    first, again = evaluation((1.0,), (0.0,)), evaluation((0.0,), (0.0,)).replace(seed=1)
    old = evaluation((1.0,), (0.0,))
    found = compare(of(first, again), of(old))
    assert (found.gain.mean, found.new.name) == (0.0, "row 0")
    found = compare(of(first, again), of(old.replace(seed=5)))
    assert (found.gain.mean, found.new.name) == (-0.5, "row 1")
    found = compare(of(first, again), of(old, again))
    assert (found.new.evaluation.seed, found.old.evaluation.seed, found.gain.mean) == (1, 1, 0.0)


def test_reruns_are_the_noise_of_an_agent() -> None:
    rounds = [evaluation((1.0,), (0.0,)), evaluation((0.0,), (0.0,)).replace(seed=1)]
    found = compare(of(*rounds), of(*rounds))
    assert found.noise == between(rounds, rounds) is not None


def test_what_shares_no_trial_is_json() -> None:
    found = as_json(compare(of(evaluation((None,), (1.0,))), of(evaluation((1.0,), (None,)))))
    assert json.loads(json.dumps(found, allow_nan=False))["gain"] == {
        "mean": None,
        "low": -1.0,
        "high": 1.0,
        "tasks": 0,
    }
