"""Test that `check` plays unusual calls and replies, and names the code that raises with the shortest episode."""

import asyncio
import re
from collections.abc import Sequence

import pytest

from toy import DOMAIN
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.data.checks.check import check
from understudy.data.checks.invented_calls import HUGE_INTEGER, UNKNOWN_ID, invent_calls
from understudy.data.checks.probe import TEXTS
from understudy.envs.rewards import states_fact
from understudy.envs.tools import ToolkitBase
from understudy.envs.user_actions import asks_for_success_check
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample

GET = ToolCall(name="get", arguments={"name": "mug"})


class SoundEpisode(ToolEpisode):
    """A tool that refuses what it does not know, and a reward that reads any text."""

    def get(self, name: str) -> int:
        """Return a price."""
        return {"mug": 7}.get(name, 0)

    def reward(self, transcript: Sequence[Message]) -> float:
        return float(states_fact("7", transcript[-1].content))


def dataset(episode_class: type[ToolEpisode]) -> ToolDataset:
    example = ToolExample(prompt="What is the price?", id="price", split="train", gold_calls=(GET,), answer="7")
    return ToolDataset("prices", "p", [example], episode_class)


class UnknownIdEpisode(SoundEpisode):
    def get(self, name: str) -> int:
        """Return a price."""
        return {"mug": 7}[name]


class AsyncHugeEpisode(SoundEpisode):
    async def get(self, name: str, count: int = 1) -> int:
        """Return a price."""
        await asyncio.sleep(0)
        return len(range(count)) + 7


class ThirdCallEpisode(SoundEpisode):
    def __init__(self, example: ToolExample) -> None:
        super().__init__(example)
        self._left = [1, 2]

    def get(self, name: str) -> int:
        """Return a price."""
        return self._left.pop() + 5


class RewardEpisode(SoundEpisode):
    def reward(self, transcript: Sequence[Message]) -> float:
        text = transcript[-1].content
        return float(bool(text) and int(text) == 7)


class AsyncResponseEpisode(SoundEpisode):
    async def env_response(self, transcript: Sequence[Message]) -> str | None:
        await asyncio.sleep(0)
        return "Really?" if transcript[-1].content[:1] == "{" and transcript[99] else None


class MemoryEpisode(SoundEpisode):
    def get(self, name: str) -> int:
        """Return a price."""
        if name not in ("mug", UNKNOWN_ID):
            raise MemoryError
        return 7


def test_sound_source_has_neither_problem_nor_warning() -> None:
    report = check(dataset(SoundEpisode))
    assert (report.problems, report.warnings) == ((), ())
    assert report.probe_calls >= 5
    assert report.probe_episodes >= len(TEXTS) + 2


@pytest.mark.parametrize(
    ("episode_class", "exception", "call"),
    [
        (UnknownIdEpisode, "KeyError: 'no-such-id'", "get(name='no-such-id')"),
        (AsyncHugeEpisode, "OverflowError", f"get(name='mug', count={HUGE_INTEGER})"),
        (ThirdCallEpisode, "IndexError: pop from empty list", "get(name='no-such-id'), then get(), then"),
    ],
    ids=["unknown id", "huge value", "third call"],
)
def test_exception_of_tool_is_warning_with_shortest_calls(
    episode_class: type[ToolEpisode], exception: str, call: str
) -> None:
    report = check(dataset(episode_class))
    assert report.problems == ()
    (warning,) = report.warnings
    assert warning.startswith(f"the tool get raised {exception}")
    assert re.search(r"\(test_probe\.py:\d+\) at ", warning)
    if episode_class is ThirdCallEpisode:
        assert warning.count("get(") == 3  # two calls that succeed, and one that raises
    else:
        assert f" at {call}; " in warning


@pytest.mark.parametrize(
    ("episode_class", "exception", "reply"),
    [(RewardEpisode, "ValueError", TEXTS[1]), (AsyncResponseEpisode, "IndexError", TEXTS[2])],
    ids=["reward", "environment"],
)
def test_exception_of_reward_or_environment_is_problem_with_shortest_reply(
    episode_class: type[ToolEpisode], exception: str, reply: str
) -> None:
    report = check(dataset(episode_class))
    (problem,) = report.problems
    assert re.match(rf"task price: .* raised {exception}: .*\(test_probe\.py:\d+\)", problem)
    assert problem.endswith(f"after the reply {reply!r}")
    (group,) = report.problem_groups
    assert (group.kind, group.family) == ("lost_episode", "")
    assert (report.splits[0].gold_reward, report.splits[0].noop_reward) == (1.0, 0.0)


def test_tool_that_uses_all_memory_is_named_with_its_call() -> None:
    report = check(dataset(MemoryEpisode))
    assert report.problems == ()
    (warning,) = report.warnings
    assert re.match(r"the tool get raised MemoryError \(test_probe\.py:\d+\) at get\(", warning)


def test_same_source_gives_same_report() -> None:
    assert check(dataset(ThirdCallEpisode)) == check(dataset(ThirdCallEpisode))


def test_problems_are_grouped_by_kind_and_family_worst_first() -> None:
    sound, *_ = DOMAIN.tasks("train")
    tasks = [task for task in DOMAIN.tasks("train") if task.family == sound.family]

    def grade(
        task: object, state: object, gold: object, gate: object, transcript: Sequence[Message], ended: bool
    ) -> int:
        return 1 if task in tasks[:2] else int(any(message.tool_calls for message in transcript))

    class FewTasks(type(DOMAIN)):  # type: ignore[misc]
        def tasks(self, split: str) -> list[object]:
            return [*tasks[:3], tasks[3].replace(gold=())] if split == "train" else []

    fields = ("module_name", "build_world", "toolkit", "generate", "families", "policy")
    report = check(FewTasks(**{name: getattr(DOMAIN, name) for name in fields}, grade=grade))
    first, second = report.problem_groups
    assert (first.kind, first.family, first.num_tasks, first.num_family_tasks) == ("noop_rewarded", "one", 2, 4)
    assert (first.example_task, first.example) == (tasks[0].id, report.problems[0])
    assert f"family one, 2 of 4 tasks, e.g. task {tasks[0].id}: " in str(first)
    assert (second.kind, second.num_tasks, second.example_task) == ("gold_not_rewarded", 1, tasks[3].id)


NESTED = {
    "type": "object",
    "properties": {
        "node": {"$ref": "#/$defs/Node"},
        "kind": {"enum": ["a", "b"]},
        "count": {"type": ["integer", "null"]},
        "price": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "any": True,
    },
    "required": ["node", "kind"],
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}},
}


def test_invented_calls_cover_each_argument_and_end_for_recursive_schemas() -> None:
    spec = ToolSpec(name="t", description="", parameters=NESTED)
    calls = invent_calls(spec, {"kind": ["b"]}, limit=200)
    assert len({repr(call.arguments) for call in calls}) == len(calls)
    values = {name: [call.arguments[name] for call in calls if name in call.arguments] for name in NESTED["properties"]}  # type: ignore[attr-defined]
    assert {"a", "b", UNKNOWN_ID} <= {value for value in values["kind"] if isinstance(value, str)}
    assert HUGE_INTEGER in values["count"]
    assert [] in values["tags"]
    assert all(values.values())
    assert ToolCall(name="t") in calls
    assert len(invent_calls(spec, {}, limit=5)) == 5


class Counting(ToolkitBase):
    """Tools without state."""

    def add(self, amount: int, note: str = "") -> int:
        """Add."""
        return amount


def test_first_call_fits_the_schema() -> None:
    (spec,) = Counting.specs()
    first, empty, *others = invent_calls(spec, {"amount": [5]}, limit=12)
    assert (first.arguments, empty.arguments) == ({"amount": 1}, {})
    assert {"amount": 5, "note": UNKNOWN_ID} in [call.arguments for call in others]


def test_time_to_read_long_text_is_linear() -> None:
    assert not asks_for_success_check("word 7, " * 20_000)  # takes minutes if it is quadratic
    assert asks_for_success_check("word, " * 20_000 + "does it work now?")
