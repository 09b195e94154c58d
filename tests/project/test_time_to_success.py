"""Test the benchmark against TRL without TRL: its domain, timing, tools, prompts and table."""

import asyncio
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import time_to_success as benchmark
import trl_run
from lamps import DOMAIN
from time_to_success import Course, HeldOutEval, Lap, answers, compared, configured, race, table

from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import SPLITS
from understudy.engines.models import make_tiny_model
from understudy.envs.task_source import Slice
from understudy.evaluation.evaluate import evaluate_gold, evaluate_noop

SIDE_PROGRAM = """
import sys
for step in range({steps}):
    print('{{"step": %d, "weights": "w", "seconds": %d, "peak": 7}}' % (step, step), flush=True)
    if sys.stdin.readline() != "go\\n":
        print("stopped after step", step, file=sys.stderr)
        sys.exit(0)
sys.exit({code})
"""
"""A side that reports `steps` weights, and exits early if it does not read `go`."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("split", SPLITS)
def test_gold_earns_1_and_noop_earns_0(split: Any) -> None:
    tasks = DOMAIN.tasks(split)
    assert asyncio.run(evaluate_gold(DOMAIN, tasks)).success_rate.mean == 1.0
    assert asyncio.run(evaluate_noop(DOMAIN, tasks)).success_rate.mean == 0.0


def test_splits_share_no_opening() -> None:
    openings = {split: {task.scenario.opening for task in DOMAIN.sample(split, 100)} for split in SPLITS}
    assert all(len(said) > 50 for said in openings.values())
    assert len(set.union(*openings.values())) == sum(map(len, openings.values()))


def test_only_the_requested_time_earns_reward() -> None:
    task = DOMAIN.slice(Slice(families=("evening",))).sample("validation", 1)[0]
    (room,) = {call.arguments["room"] for call in task.gold_calls}
    assert "evening" not in task.scenario.opening

    async def play_with_answer(time: str) -> float:
        environment = DOMAIN.environment(task)
        await environment.start()
        call = ToolCall(name="read", arguments={"room": room, "time": time})
        told = (await environment.step(Message(role="assistant", tool_calls=(call,)))).messages[0].content
        step = await environment.step(Message(role="assistant", content=f"It is at {told}."))
        assert step.score is not None
        return step.score.reward

    assert {time: asyncio.run(play_with_answer(time)) for time in DOMAIN.families} == {
        "morning": 0.0,
        "noon": 0.0,
        "evening": 1.0,
        "night": 0.0,
    }


def test_trl_episode_reward_equals_ours() -> None:
    task = DOMAIN.sample("train", 1)[0]
    (read,) = (call.arguments for call in task.gold_calls)

    def play_with_answer(*said: dict[str, Any]) -> float:
        episode = trl_run.Episode()
        episode.reset(task=task.model_dump_json(), prompt="a column of the dataset")
        assert episode.read("x", "noon") == "Error: no such room"
        assert episode.read(read["room"], "tea") == "Error: time is morning, noon, evening, night"
        assert episode.read(**read) == task.outputs[0]
        return trl_run.rewards([said], [episode])[0]

    called = {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}
    result = {"role": "tool", "content": task.outputs[0]}
    assert play_with_answer(called, result, {"role": "assistant", "content": task.gold[-1].content}) == 1.0
    assert play_with_answer(called, result, {"role": "assistant", "content": "It is dark."}) == 0.0
    assert play_with_answer(called) == play_with_answer(called, result) == 0.0


def test_trl_gets_the_same_schemas_tasks_and_prompts() -> None:
    """Schemas are byte-identical, and the tasks are in stream order with their first messages."""
    from transformers.utils import get_json_schema

    episode = trl_run.Episode()
    for spec in DOMAIN.tool_specs:
        shown = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
        assert repr(get_json_schema(getattr(episode, spec.name))) == repr({"type": "function", "function": shown})
    config = configured(Path("model"), "steps=2", "algorithm.groups_per_batch=3", "slice.families=night")
    rows = trl_run.rows(config)
    tasks = DOMAIN.slice(config.slice).sample("train", 6)
    assert rows["task"] == [task.model_dump_json() for task in tasks]
    assert rows["prompt"] == [
        [{"role": "system", "content": DOMAIN.domain_policy}, {"role": "user", "content": task.scenario.opening}]
        for task in tasks
    ]


class FixedSuccessRates:
    """An evaluator that returns fixed success rates."""

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = iter(rates)

    def success(self, weights: Path) -> float:
        return next(self.rates)


@pytest.mark.slow
def test_our_side_reports_steps_seconds_and_memory(tiny: Path, tmp_path: Path) -> None:
    small = ("steps=2", "algorithm.groups_per_batch=1", "algorithm.group_size=2", "sampling.max_response_tokens=4")
    config = configured(tiny, *benchmark.RL_SETTINGS, *small)
    course = race("ours", sys.executable, config, tmp_path / "race", HeldOutEval(config, 2), 0.5)
    assert [(lap.step, lap.success) for lap in course.laps] == [(0, 0.0), (1, 0.0), (2, 0.0)]
    assert 0.0 == course.laps[0].seconds < course.laps[1].seconds < course.laps[2].seconds
    assert 0.0 == course.laps[0].writing < course.laps[1].writing < course.laps[1].seconds
    assert 50e6 < course.laps[0].peak <= course.laps[-1].peak


def test_side_is_stopped_at_the_target_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        benchmark, "answers", lambda _: answers([sys.executable, "-c", SIDE_PROGRAM.format(steps=9, code=0)])
    )
    config = configured(Path("model"), "steps=8", "sft.steps=0")
    course = race("theirs", "python", config, tmp_path / "race", FixedSuccessRates([0.9, 0.2, 0.8]), 0.8)  # type: ignore[arg-type]
    assert [lap.step for lap in course.laps] == [0, 1, 2]  # the success before the first step does not count
    assert re.search(r"\b2\b", capfd.readouterr().err)
    assert (course.reached(0.8), course.reached(0.95)) == (Lap(step=2, seconds=2, success=0.8, peak=7), None)


def test_failing_side_exits_with_its_code() -> None:
    with pytest.raises(SystemExit, match=r"\b3\b"):
        list(answers([sys.executable, "-c", SIDE_PROGRAM.format(steps=2, code=3)]))


def make_course(side: str, seed: int, peak: int, *laps: tuple[float, float]) -> Course:
    """Return a course whose memory peak doubles from before the first step to the end."""
    peaks = [peak << 19, *[peak << 20] * (len(laps) - 1)]
    return Course(
        side=side,
        seed=seed,
        laps=tuple(
            Lap(step=i, seconds=seconds, success=success, peak=peaks[i]) for i, (seconds, success) in enumerate(laps)
        ),
    )


def test_table_has_medians_and_their_ratio() -> None:
    ours = [make_course("ours", 0, 200, (0, 0.2), (9, 0.9)), make_course("ours", 1, 300, (0, 0.2), (5, 0.9))]
    theirs = [
        make_course("theirs", 0, 500, (0, 0.2), (21, 0.8)),
        make_course("theirs", 1, 500, (0, 0.2), (14, 0.7), (28, 0.85)),
    ]
    text = table([*ours, *theirs], 0.8)
    assert "| understudy | 0 | 9.0 | 0.0 | 1 | 200 | 100 |" in text
    assert "| understudy, median | | 7.0 | | | 250 | |" in text
    assert text.endswith("| trl==1.16.0, median | | 24.5 | | | 500 | |")
    assert re.match(r"3\.5 .*\b3\.5 .*\b2\.0 ", compared([*ours, *theirs], 0.8))
    written = [course.replace(laps=[lap.replace(writing=2.0) for lap in course.laps]) for course in ours]
    assert re.match(r"3\.5 .*\b4\.9 ", compared([*written, *theirs], 0.8))
    assert re.search(r"\| trl==1\.16\.0 \| 0 \| .*\b21\.0\b.*\b0\.80\b.* \| 0\.0 \| 1 \|", table([*ours, *theirs], 0.9))
    assert math.isinf(benchmark.seconds(theirs, "theirs", 0.9))
    assert not re.search(r"\d", compared([*ours, *theirs], 0.9))
