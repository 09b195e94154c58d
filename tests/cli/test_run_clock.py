"""Test the estimates of the time left, with a clock that the test sets."""

from dataclasses import dataclass

import pytest

from understudy.cli.run_clock import RunClock, TimeLeft, find_phase
from understudy.runs.config import TrainConfig, parse_config

SETTINGS = ("steps=4", "sft.steps=2", "sft.batch_size=2", "algorithm.groups_per_batch=2", "algorithm.group_size=5")


@dataclass
class Clock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


def make_config(*settings: str) -> TrainConfig:
    return parse_config("", [*SETTINGS, *settings])


def evaluate(clock: RunClock, time: Clock, seconds: float, episodes: int = 20) -> None:
    clock.report("evaluate x", 0, episodes, {})
    time.seconds += seconds
    clock.report("evaluate x", episodes, episodes, {})


def test_phases_are_known_as_they_are_measured() -> None:
    time = Clock()
    clock = RunClock(make_config(), now=time)
    assert (clock.phase, clock.time_left()) == ("SFT", TimeLeft({}, ("SFT", "RL", "evaluations")))
    assert clock.time_left().seconds is None
    evaluate(clock, time, 40.0)
    left = clock.time_left()
    assert left.phases == {"RL": 4 * 10 * 2.0, "evaluations": 2 * 40.0}, "10 episodes of 2 s in each of 4 steps"
    assert left.unknown == ("SFT", "RL")
    assert str(left) == ">=0:02:40"
    clock.report("train", 1, 6, {"time/step_seconds": 3.0})
    left = clock.time_left()
    assert left.phases == {"SFT": 3.0, "RL": 4 * (10 * 2.0 + 3.0 / 2 * 10), "evaluations": 80.0}
    assert (left.unknown, left.seconds, str(left)) == ((), 3 + 140 + 80, "0:03:43")


def test_only_trained_episodes_count_for_the_update() -> None:
    time = Clock()
    clock = RunClock(make_config("algorithm.max_trained_episodes=2"), now=time)
    evaluate(clock, time, 40.0)
    clock.report("train", 1, 6, {"time/step_seconds": 3.0})
    assert clock.time_left().phases["RL"] == 4 * (10 * 2.0 + 3.0 / 2 * 4), "2 of 5 episodes in each of 2 groups"


def test_smaller_evaluation_of_the_base_model_is_scaled() -> None:
    time = Clock()
    clock = RunClock(make_config("eval.tasks=60", "eval.base_tasks=20"), now=time)
    evaluate(clock, time, 40.0)
    assert clock.time_left().phases["evaluations"] == 2 * 120.0


def test_estimate_follows_the_last_five_steps_and_the_time_since_the_step_began() -> None:
    time = Clock()
    clock = RunClock(make_config("steps=10", "sft.steps=0"), now=time)
    for step, seconds in enumerate([900.0, 20.0, 30.0, 20.0, 30.0, 25.0], 1):
        clock.report("sample", 0, 10, {})
        clock.report("train", step, 10, {"time/step_seconds": seconds})
    assert clock.time_left().phases["RL"] == 4 * 25.0, "the first step, which warms up, is forgotten"
    clock.report("sample", 0, 10, {})
    time.seconds += 10
    assert clock.time_left().phases["RL"] == 3 * 25.0 + 15.0
    assert clock.activity_left() == 15.0
    time.seconds += 100
    assert clock.activity_left() == 0.0


def test_evaluation_under_way_is_measured_by_its_own_speed() -> None:
    time = Clock()
    clock = RunClock(make_config(), now=time)
    clock.report("evaluate base", 0, 20, {})
    time.seconds += 30
    assert clock.activity_left() is None
    clock.report("evaluate base", 5, 20, {})
    assert (clock.is_evaluating, clock.activity_seconds, clock.activity_left()) == (True, 30.0, 90.0)
    assert clock.time_left().phases["evaluations"] == 90 + 2 * 120


def test_resumed_run_knows_its_earlier_steps() -> None:
    history = [{"step": step, "time/step_seconds": 7.0} for step in (1, 2, 3)]
    clock = RunClock(make_config(), 3, history, now=Clock())
    assert (clock.phase, clock.time_left().phases["RL"]) == ("RL", 3 * 7.0)


@pytest.mark.parametrize(("step", "phase"), [(1, "SFT"), (2, "SFT"), (3, "RL"), (6, "RL"), (7, "")])
def test_phase_of_a_step(step: int, phase: str) -> None:
    assert find_phase(make_config(), step) == phase
