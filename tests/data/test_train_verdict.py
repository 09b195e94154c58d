"""Test what `check` says about training: it agrees with the checks at the start of a run."""

import asyncio
from collections.abc import Sequence

import pytest

from understudy.core.errors import ConfigError, TaskError
from understudy.core.messages import Message
from understudy.data.checks.check import DomainReport, TrainDemands, check_async
from understudy.evaluation.evaluate import validate_noop_reward
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample


class Adding(ToolEpisode):
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def reward(self, transcript: Sequence[Message]) -> float:
        if self.example.info.get("free"):
            return float(self.example.info["free"])
        return float(self.example.answer in transcript[-1].content and bool(transcript[-1].content))


def example(number: int, **fields: object) -> ToolExample:
    given = {"prompt": f"What is {number} plus 1000?", "answer": str(number + 1000), "split": "train", **fields}
    return ToolExample.model_validate(given)


def report(*examples: ToolExample, **demands: object) -> tuple[DomainReport, ToolDataset]:
    source = ToolDataset("adding", "", examples, Adding)
    return asyncio.run(check_async(source, demands=TrainDemands(**demands))), source  # type: ignore[arg-type]


def is_accepted(source: ToolDataset, allow: bool = False) -> bool:
    try:
        asyncio.run(validate_noop_reward(source, 0, allow))
    except (ConfigError, TaskError):
        return False
    return True


def test_source_with_advice_is_accepted() -> None:
    found, source = report(example(1), example(2, info={"free": 0.5}))
    assert [group.kind for group in found.problem_groups] == ["noop_rewarded", "gold_not_rewarded"]
    assert not any(group.blocks_training for group in found.problem_groups)
    assert (found.train_refusal, found.num_blocking_tasks, found.num_advised_tasks) == ("", 0, 1)
    assert is_accepted(source)


def test_task_that_doing_nothing_solves_blocks_training_unless_it_is_allowed() -> None:
    given = (example(1), example(2, info={"free": 1.0}), example(3, info={"free": 0.5}))
    found, source = report(*given)
    assert "allow_noop_solvable=true" in found.train_refusal
    assert (found.num_blocking_tasks, found.num_advised_tasks) == (1, 1)
    assert found.problem_groups[0].blocks_training
    assert not is_accepted(source)
    allowed, source = report(*given, allow_noop_solvable=True)
    assert allowed.train_refusal == ""
    assert is_accepted(source, allow=True)


def test_source_without_train_tasks_is_refused_with_its_splits() -> None:
    found, source = report(example(1, split="test"))
    assert "1 test" in found.train_refusal
    assert not is_accepted(source)


@pytest.mark.parametrize("fields", [{"answer": ""}, {"info": {"free": 0.5}}])
def test_demonstration_that_fails_blocks_only_training_with_demonstrations(fields: dict[str, object]) -> None:
    given = (example(1), example(2, **fields))
    assert report(*given)[0].train_refusal == ""
    found, _ = report(*given, num_gold_episodes=2)
    assert "sft.steps=0" in found.train_refusal
    assert found.num_blocking_tasks == 1
