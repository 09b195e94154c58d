"""The curriculum: what is taken of a stream, and that it is the same however often a run is resumed."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toy import DOMAIN
from understudy.curriculum import PATIENCE, Curriculum, allowed, cell, learned, share, supply
from understudy.errors import ConfigError
from understudy.tasks import Score
from understudy.trajectory import Trajectory

TASKS = [task.replace(domain="toy") for task in DOMAIN.sample("train", 60)]
CELLS = sorted({cell(task) for task in TASKS})
both = Curriculum(difficulty=True, success=True)


@pytest.mark.parametrize(
    ("done", "names"),
    [(0.0, ["easy"]), (0.24, ["easy"]), (0.25, ["easy", "medium"]), (0.5, ["easy", "medium", "hard"]), (1.0, None)],
)
def test_difficulties_come_in_at_even_distances(done: float, names: list[str] | None) -> None:
    assert list(allowed(done, ramp=0.5)) == (names or ["easy", "medium", "hard"])


def test_what_sometimes_succeeds_is_taken_most() -> None:
    config = Curriculum(success=True, least=0.1)
    assert [share(rate, config) for rate in (None, 0.0, 0.5, 0.75, 1.0)] == [1.0, 0.1, 1.0, 0.75, 0.1]


def test_a_rate_keeps_some_of_itself() -> None:
    def group(family: str, *rewards: float | None) -> list[Trajectory]:
        scores = [None if reward is None else Score(reward=reward) for reward in rewards]
        return [Trajectory("t", "shop", family, "easy", score=score) for score in scores]

    groups = [group("a", 1.0, 0.0, None), group("b", None), group("c", 0.5, 1.0)]
    found = learned({"shop/a/easy": 1.0}, groups, memory=0.8)
    assert found == pytest.approx({"shop/a/easy": 0.8 + 0.2 * 0.5, "shop/c/easy": 0.5})


@given(
    st.dictionaries(st.sampled_from(CELLS), st.floats(0.0, 1.0)), st.integers(0, 9), st.integers(1, 20), st.floats(0, 1)
)
def test_taking_up_a_stream_gives_what_was_left(rates: dict[str, float], seed: int, first: int, done: float) -> None:
    def taken(used: int) -> tuple[list[str], list[int]]:
        tasks = supply(both, iter((TASKS * 200)[used:]), used, seed, done, rates)
        found = [(task.id, tasks.used) for task in itertools.islice(tasks, 25 if not used else 25 - first)]
        return [name for name, _ in found], [place for _, place in found]

    names, places = taken(0)
    assert taken(places[first - 1]) == (names[first:], places[first:])


def test_what_never_succeeds_is_not_given_up() -> None:
    tasks = supply(Curriculum(success=True, least=0.1), iter(TASKS * 50), 0, 0, 0.0, dict.fromkeys(CELLS, 0.0))
    assert 200 < len(list(tasks)) < 400  # of 3,000


def test_without_a_curriculum_every_task_is_taken() -> None:
    tasks = supply(Curriculum(), iter(TASKS), 0, 0, 0.0, dict.fromkeys(CELLS, 1.0))
    assert (list(tasks), tasks.used) == (TASKS, len(TASKS))


def test_a_stream_without_easy_tasks_is_refused() -> None:
    hard = [task.replace(difficulty="hard") for task in TASKS]
    with pytest.raises(ConfigError, match=rf"left out {PATIENCE:,} tasks in a row; leave out curriculum.difficulty"):
        next(supply(both, itertools.cycle(hard), 0, 0, 0.0, {}))
