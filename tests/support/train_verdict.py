"""Sources that training accepts or refuses, for the test that `check` says the same."""

from collections.abc import Sequence
from typing import Any

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Split
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample

SPLITS: Sequence[Split] = ("train", "train", "train", "validation", "test")


class Adding(ToolEpisode):
    def add(self, a: int, b: int, code: Any = None) -> int:
        """Add two numbers."""
        return a + b

    def reward(self, transcript: Sequence[Message]) -> float:
        return float(self.example.answer in transcript[-1].content and bool(transcript[-1].content))


class OddName(ToolDataset):
    @property
    def tool_specs(self) -> Sequence[ToolSpec]:
        return [spec.replace(name="add up") for spec in super().tool_specs]


class NoUsers(ToolDataset):
    lacks_users = True  # type: ignore[assignment]


def examples(splits: Sequence[Split] = SPLITS, **arguments: object) -> list[ToolExample]:
    return [
        ToolExample(
            prompt=f"What is {number} plus 1000?",
            answer=str(number + 1000),
            split=split,
            gold_calls=(ToolCall(name="add", arguments={"a": number, "b": 1000, **arguments}),),
        )
        for number, split in enumerate(splits)
    ]


ADDING = ToolDataset("adding", "Add.", examples(), Adding)
ODD_NAME = OddName("adding", "Add.", [e.replace(gold_calls=()) for e in examples()], Adding)
TYPED = ToolDataset("adding", "Add.", examples(code="12"), Adding)  # a number in a format without quotes
NO_USERS = NoUsers("adding", "Add.", examples(), Adding)
ONLY_TEST = ToolDataset("adding", "Add.", examples(["test", "validation"]), Adding)
ONLY_TRAIN = ToolDataset("adding", "Add.", examples(["train", "train"]), Adding)
NO_GOLD = ToolDataset("adding", "Add.", [e.replace(gold_calls=(), answer="") for e in examples()], Adding)
