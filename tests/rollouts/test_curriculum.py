"""Tests of the curriculum: which tasks it takes from a stream, also after a resume."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.groups import make_group
from toy import DOMAIN
from understudy.core.errors import ConfigError
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.rollouts.curriculum import (
    MAX_SKIPPED_TASKS,
    CurriculumConfig,
    allowed_difficulties,
    keep_probability,
    make_task_sampler,
    task_bucket,
    update_success_rates,
)
from understudy.rollouts.group import Group

TASKS = [task.replace(domain="toy") for task in DOMAIN.sample("train", 60)]
BUCKETS = sorted({task_bucket(task) for task in TASKS})
BOTH_METHODS = CurriculumConfig(easy_first=True, by_success_rate=True)


@pytest.mark.parametrize(
    ("done", "names"),
    [(0.0, ["easy"]), (0.24, ["easy"]), (0.25, ["easy", "medium"]), (0.5, ["easy", "medium", "hard"]), (1.0, None)],
)
def test_difficulties_are_added_at_even_intervals(done: float, names: list[str] | None) -> None:
    assert list(allowed_difficulties(done, ramp_fraction=0.5)) == (names or ["easy", "medium", "hard"])


def test_keep_probability_is_highest_at_medium_success_rates() -> None:
    config = CurriculumConfig(by_success_rate=True, min_keep_probability=0.1)
    assert [keep_probability(rate, config) for rate in (None, 0.0, 0.5, 0.75, 1.0)] == [1.0, 0.1, 1.0, 0.75, 0.1]


def test_success_rates_are_exponential_moving_averages() -> None:
    def group(family: str, *rewards: float | None) -> Group:
        scores = [None if reward is None else Score(reward=reward) for reward in rewards]
        return make_group([Trajectory("t", "shop", family, "easy", score=score) for score in scores])

    groups = [group("a", 1.0, 0.0, None), group("b", None), group("c", 0.5, 1.0)]
    found = update_success_rates({"shop/a/easy": 1.0}, groups, ema_decay=0.8)
    assert found == pytest.approx({"shop/a/easy": 0.8 + 0.2 * 0.5, "shop/c/easy": 0.5})


@given(
    st.dictionaries(st.sampled_from(BUCKETS), st.floats(0.0, 1.0)),
    st.integers(0, 9),
    st.integers(1, 20),
    st.floats(0, 1),
)
def test_resumed_stream_continues_with_the_remaining_tasks(
    rates: dict[str, float], seed: int, first: int, done: float
) -> None:
    def take_tasks(used: int) -> tuple[list[str], list[int]]:
        tasks = make_task_sampler(BOTH_METHODS, iter((TASKS * 200)[used:]), used, seed, done, rates)
        found = [(task.id, tasks.num_drawn) for task in itertools.islice(tasks, 25 if not used else 25 - first)]
        return [name for name, _ in found], [place for _, place in found]

    names, places = take_tasks(0)
    assert take_tasks(places[first - 1]) == (names[first:], places[first:])


def test_tasks_without_success_are_kept_at_the_minimum_probability() -> None:
    tasks = make_task_sampler(
        CurriculumConfig(by_success_rate=True, min_keep_probability=0.1),
        iter(TASKS * 50),
        0,
        0,
        0.0,
        dict.fromkeys(BUCKETS, 0.0),
    )
    assert 200 < len(list(tasks)) < 400  # of 3,000


def test_without_a_curriculum_every_task_is_taken() -> None:
    tasks = make_task_sampler(CurriculumConfig(), iter(TASKS), 0, 0, 0.0, dict.fromkeys(BUCKETS, 1.0))
    assert (list(tasks), tasks.num_drawn) == (TASKS, len(TASKS))


def test_easy_first_raises_for_a_stream_without_easy_tasks() -> None:
    hard = [task.replace(difficulty="hard") for task in TASKS]
    with pytest.raises(ConfigError, match=rf"\b{MAX_SKIPPED_TASKS:,}\b.*curriculum\.easy_first"):
        next(make_task_sampler(BOTH_METHODS, itertools.cycle(hard), 0, 0, 0.0, {}))
