"""Test environments of TRL's `environment_factory` as episodes of a `ToolDataset` and of rows in a file."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.trl_counter import Counter
from understudy import ToolCall, ToolDataset, ToolExample, load
from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.envs.task_source import TaskSource

MODULE = '''
class Slow:
    def reset(self):
        return None

    async def get_reward(self):
        return 7.0


class Clash(Slow):
    def reward(self) -> str:
        """A tool."""


class Rewardless:
    def reset(self):
        return None
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "trl_classes.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import trl_classes  # type: ignore[import-not-found]

    yield trl_classes
    del sys.modules["trl_classes"]


def play(source: TaskSource, *calls: tuple[str, dict[str, Any]]) -> tuple[list[str], Score | None]:
    """Return the messages that the agent reads, and the score after the answer."""

    async def run() -> tuple[list[str], Score | None]:
        environment = source.environment(source.tasks("train")[0])
        steps = [await environment.start()]
        for name, arguments in calls:
            call = ToolCall(id="1", name=name, arguments=arguments)
            steps.append(await environment.step(Message(role="assistant", tool_calls=(call,))))
        steps.append(await environment.step(Message(role="assistant", content="Done.")))
        return [message.content for step in steps for message in step.messages], steps[-1].score

    return asyncio.run(run())


def test_the_class_is_played_as_in_trl() -> None:
    example = ToolExample(prompt="Count to 3.", info={"target": 3}, split="train")
    source = ToolDataset("counting", "", [example], Counter)
    assert [spec.name for spec in source.tool_specs] == ["increment", "look"]
    assert source.tool_specs[0].parameters["properties"]["step"] == {
        "type": "integer",
        "description": "The amount to add.",
    }
    texts, score = play(source, ("increment", {"step": 1}), ("look", {}), ("increment", {"step": 2}))
    assert texts == ["Count to 3. You are at 0.", "1", "Count to 3.", "3"]
    assert score
    assert score.reward == 1.0
    assert play(source)[1] == Score(reward=0.0, parts={"reward": 0.0, "within_limits": 1.0})


def test_an_episode_that_a_limit_ends_earns_nothing() -> None:
    source = ToolDataset("counting", "", [ToolExample(prompt="Go.", info={"target": 1}, split="train")], Counter)

    async def run() -> Score:
        environment = source.environment(source.tasks("train")[0])
        await environment.start()
        call = ToolCall(id="1", name="increment", arguments={"step": 1})
        await environment.step(Message(role="assistant", tool_calls=(call,)))
        return await environment.grade(ended=False)

    assert asyncio.run(run()).reward == 0.0


def test_rows_of_a_file_are_the_columns_that_reset_gets(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": f"Count to {n}."}], "target": n} for n in range(2, 8)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = load(str(tmp_path / "train.jsonl"), "data.reward=support.trl_counter:Counter")
    texts, score = play(source, ("look", {}), ("increment", {"step": 2}))
    assert texts == ["Count to 2. You are at 0.", "Count to 2.", "2"]
    assert score
    assert score.reward == 1.0


def test_wrong_classes_and_rewards_are_refused(module: Any) -> None:
    example = ToolExample(prompt="Go.", split="train")
    with pytest.raises(TaskError, match=r"Clash\.reward"):
        ToolDataset("x", "", [example], module.Clash)
    with pytest.raises(TaskError, match="get_reward"):
        ToolDataset("x", "", [example], module.Rewardless)
    with pytest.raises(ConfigError, match=r"data\.reward=trl_classes:Slow"):
        load("trl_classes:Slow")
    with pytest.raises(RolloutError, match="reward_range = 0 to 1") as e:
        play(ToolDataset("x", "", [example], module.Slow))
    assert e.value.fault == "grader"
