"""The benchmark of whole runs beside TRL, without TRL: its domain, its clock, tools and prompts, and its table."""

import asyncio
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import time_to_success as benchmark  # noqa: E402
import trl_run  # noqa: E402
from lamps import DOMAIN  # noqa: E402
from time_to_success import Course, Exam, Lap, answers, compared, configured, race, table  # noqa: E402

from understudy.domains.base import Slice  # noqa: E402
from understudy.evaluate import floor, oracle  # noqa: E402
from understudy.messages import Message, ToolCall  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.tasks import SPLITS  # noqa: E402

SIDE = """
import sys
for step in range({steps}):
    print('{{"step": %d, "weights": "w", "seconds": %d, "peak": 7}}' % (step, step), flush=True)
    if sys.stdin.readline() != "go\\n":
        print("told to end after", step, file=sys.stderr)
        sys.exit(0)
sys.exit({code})
"""
"""A side that shows so many weights, or ends when it is not told to go on."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


# ---- lamps ----


@pytest.mark.parametrize("split", SPLITS)
def test_gold_earns_all_and_nothing_earns_nothing(split: Any) -> None:
    tasks = DOMAIN.tasks(split)
    assert asyncio.run(oracle(DOMAIN, tasks)).success.mean == 1.0
    assert asyncio.run(floor(DOMAIN, tasks)).success.mean == 0.0


def test_no_room_is_asked_after_in_two_splits() -> None:
    asked = {split: {task.scenario.opening for task in DOMAIN.sample(split, 100)} for split in SPLITS}
    assert all(len(said) > 50 for said in asked.values())
    assert len(set.union(*asked.values())) == sum(map(len, asked.values()))


def test_only_the_time_that_is_meant_earns() -> None:
    task = DOMAIN.slice(Slice(families=("evening",))).sample("validation", 1)[0]
    (room,) = {call.arguments["room"] for call in task.actions}
    assert "evening" not in task.scenario.opening

    async def played(time: str) -> float:
        environment = DOMAIN.environment(task)
        await environment.start()
        call = ToolCall(name="read", arguments={"room": room, "time": time})
        told = (await environment.step(Message(role="assistant", tool_calls=(call,)))).messages[0].content
        step = await environment.step(Message(role="assistant", content=f"It is at {told}."))
        assert step.score is not None
        return step.score.reward

    assert {time: asyncio.run(played(time)) for time in DOMAIN.families} == {
        "morning": 0.0,
        "noon": 0.0,
        "evening": 1.0,
        "night": 0.0,
    }


# ---- TRL's side ----


def test_an_episode_of_trls_earns_what_ours_does() -> None:
    task = DOMAIN.sample("train", 1)[0]
    (read,) = (call.arguments for call in task.actions)

    def played(*said: dict[str, Any]) -> float:
        episode = trl_run.Episode()
        episode.reset(task=task.model_dump_json(), prompt="a column of the dataset")
        assert episode.read("x", "noon") == "Error: no such room"
        assert episode.read(read["room"], "tea") == "Error: time is morning, noon, evening, night"
        assert episode.read(**read) == task.outputs[0]
        return trl_run.rewards([said], [episode])[0]

    called = {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}
    told = {"role": "tool", "content": task.outputs[0]}
    assert played(called, told, {"role": "assistant", "content": task.gold[-1].content}) == 1.0
    assert played(called, told, {"role": "assistant", "content": "It is dark."}) == 0.0
    assert played(called) == played(called, told) == 0.0


def test_trl_is_shown_what_ours_is() -> None:
    """Schemas to the byte, and the tasks of the stream in their order, each with the first messages of its episode."""
    from transformers.utils import get_json_schema

    episode = trl_run.Episode()
    for spec in DOMAIN.specs:
        shown = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
        assert repr(get_json_schema(getattr(episode, spec.name))) == repr({"type": "function", "function": shown})
    config = configured(Path("model"), "steps=2", "algorithm.tasks_per_step=3", "slice.families=night")
    rows = trl_run.rows(config)
    tasks = DOMAIN.slice(config.slice).sample("train", 6)
    assert rows["task"] == [task.model_dump_json() for task in tasks]
    assert rows["prompt"] == [
        [{"role": "system", "content": DOMAIN.policy}, {"role": "user", "content": task.scenario.opening}]
        for task in tasks
    ]


# ---- the race ----


class Marks:
    """An examiner with fixed marks."""

    def __init__(self, marks: Sequence[float]) -> None:
        self.marks = iter(marks)

    def success(self, weights: Path) -> float:
        return next(self.marks)


def test_our_side_shows_its_weights_and_its_clock(tiny: Path, tmp_path: Path) -> None:
    small = ("steps=2", "algorithm.tasks_per_step=1", "algorithm.group_size=2", "sampling.max_tokens=4")
    config = configured(tiny, *benchmark.REINFORCED, *small)
    course = race("ours", sys.executable, config, tmp_path / "race", Exam(config, 2), 0.5)
    assert [(lap.step, lap.success) for lap in course.laps] == [(0, 0.0), (1, 0.0), (2, 0.0)]
    assert 0.0 == course.laps[0].seconds < course.laps[1].seconds < course.laps[2].seconds
    assert 50e6 < course.laps[0].peak <= course.laps[-1].peak


def test_a_side_ends_when_it_has_come_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "answers", lambda _: answers([sys.executable, "-c", SIDE.format(steps=9, code=0)]))
    config = configured(Path("model"), "steps=8", "sft.steps=0")
    course = race("theirs", "python", config, tmp_path / "race", Marks([0.9, 0.2, 0.8]), 0.8)  # type: ignore[arg-type]
    assert [lap.step for lap in course.laps] == [0, 1, 2]  # what it begins with is no success of its own
    assert "told to end after 2" in capfd.readouterr().err
    assert (course.reached(0.8), course.reached(0.95)) == (Lap(step=2, seconds=2, success=0.8, peak=7), None)


def test_a_side_that_fails_is_named() -> None:
    with pytest.raises(SystemExit, match="ended with exit code 3"):
        list(answers([sys.executable, "-c", SIDE.format(steps=2, code=3)]))


def course(side: str, seed: int, peak: int, *laps: tuple[float, float]) -> Course:
    """Its peak is reached at the end, and half of it before the first step."""
    peaks = [peak << 19, *[peak << 20] * (len(laps) - 1)]
    return Course(
        side=side,
        seed=seed,
        laps=tuple(
            Lap(step=i, seconds=seconds, success=success, peak=peaks[i]) for i, (seconds, success) in enumerate(laps)
        ),
    )


def test_a_table_has_medians_and_their_ratio() -> None:
    ours = [course("ours", 0, 200, (0, 0.2), (9, 0.9)), course("ours", 1, 300, (0, 0.2), (5, 0.9))]
    theirs = [course("theirs", 0, 500, (0, 0.2), (21, 0.8)), course("theirs", 1, 500, (0, 0.2), (14, 0.7), (28, 0.85))]
    text = table([*ours, *theirs], 0.8)
    assert "| understudy | 0 | 9.0 | 1 | 200 | 100 |" in text
    assert "| understudy, median | | 7.0 | | 250 | |" in text
    assert text.endswith("| trl==1.16.0, median | | 24.5 | | 500 | |")
    assert compared([*ours, *theirs], 0.8) == "3.5 times faster, 2.0 times less memory"
    assert "| trl==1.16.0 | 0 | not in 21.0 (0.80) | 1 |" in table([*ours, *theirs], 0.9)
    assert math.isinf(benchmark.seconds(theirs, "theirs", 0.9))
    assert compared([*ours, *theirs], 0.9) == "no ratio of times: a median did not come to that success"
