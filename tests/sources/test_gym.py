"""Test environments with `reset` and `step`, of classes in a user's module."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from support.software import gymnasium_packages
from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Score
from understudy.data.checks.check import check_async
from understudy.envs.environment import Environment, StepResult
from understudy.envs.task_source import Slice, TaskSource
from understudy.runs.targets import load
from understudy.sources.environments.gym import source_of_class

MODULE = '''
from typing import Literal

from understudy import ToolError


class Echo:
    """Pays a half for each text with the letter of its seed, and ends after two."""

    domain_policy = "Play."
    closed = []

    def reset(self, seed):
        self.letter, self.turns = "ab"[seed % 2], 0
        return f"Say {self.letter}.", {}

    def step(self, text):
        if text == "refuse":
            raise ToolError("not now")
        if text == "fail":
            raise KeyError("lost")
        self.turns += 1
        return f"{self.turns}", 0.5 * (self.letter in text), self.turns == 2, False, {}

    def close(self):
        self.closed.append(self.letter)


class Walk:
    """Pays 1 at the right end of a line, and -1 at the left end."""

    reward_range = (-1, 1)

    async def reset(self, *, seed=None, options=None):
        self.place = 0
        return {"place": 0}, {}

    async def step(self, direction: Literal["left", "right"], length: int = 1):
        """Walk in a direction.

        Args:
            length: number of steps
        """
        if length > 5:
            raise ValueError("too far")
        self.place += length if direction == "right" else -length
        return {"place": self.place}, abs(self.place) // 2 * (1 if self.place > 0 else -1), abs(self.place) >= 2, {}


class Unseeded:
    def reset(self):
        return None

    def step(self, text: str):
        return "observation only"


class Rich:
    def reset(self, seed):
        return "Take."

    def step(self, text: str):
        return "", 7.0, True, {}


class Endless(Rich):
    reward_range = (0, float("inf"))


class Deaf:
    def reset(self):
        return ""

    def step(self):
        return ""
'''


@pytest.fixture
def games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "gym_games.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "gym_games"
    del sys.modules["gym_games"]


def play(source: TaskSource, *replies: Message | str, task: int = 0) -> list[StepResult]:
    async def run() -> list[StepResult]:
        environment: Environment = source.environment(source.tasks("train")[task])
        steps = [await environment.start()]
        for reply in replies:
            assert steps[-1].score is None
            message = Message(role="assistant", content=reply) if isinstance(reply, str) else reply
            steps.append(await environment.step(message))
        await environment.close()
        return steps

    return asyncio.run(run())


def walk(direction: str, **more: Any) -> Message:
    call = ToolCall(id="1", name="step", arguments={"direction": direction, **more})
    return Message(role="assistant", tool_calls=(call,))


def texts(step: StepResult) -> list[str]:
    return [message.content for message in step.messages]


def test_texts_are_actions_and_rewards_are_added(games: str) -> None:
    echo = load(f"{games}:Echo")
    first, second, last = play(echo, "a!", "b!")
    assert [message.role for message in first.messages] == ["system", "user"]
    assert [texts(step) for step in (first, second, last)] == [["Play.", "Say a."], ["1"], ["2"]]
    assert last.score == Score(reward=0.5, parts={"reward": 0.5, "within_limits": 1.0})
    assert texts(play(echo, task=1)[0]) == ["Play.", "Say b."]
    assert sys.modules[games].Echo.closed == ["a", "b"]


def test_a_refusal_is_read_and_an_exception_is_a_fault(games: str) -> None:
    echo = load(f"{games}:Echo")
    assert texts(play(echo, "refuse", "a")[1]) == ["Error: not now"]
    with pytest.raises(RolloutError, match="KeyError") as e:
        play(echo, "fail")
    assert e.value.fault == "environment"


def test_a_limit_leaves_the_reward(games: str) -> None:
    async def run() -> Score:
        echo = load(f"{games}:Echo")
        environment = echo.environment(echo.tasks("train")[0])
        await environment.start()
        await environment.step(Message(role="assistant", content="a"))
        return await environment.grade(ended=False)

    assert asyncio.run(run()) == Score(reward=0.5, parts={"reward": 0.5, "within_limits": 0.0})


def test_parameters_of_step_make_a_tool_whose_range_is_scaled(games: str) -> None:
    source = load(f"{games}:Walk")
    (spec,) = source.tool_specs
    assert (spec.name, spec.description) == ("step", "Walk in a direction.")
    assert spec.parameters["required"] == ["direction"]
    assert spec.parameters["properties"]["direction"]["enum"] == ["left", "right"]
    assert spec.parameters["properties"]["length"]["description"] == "number of steps"
    *_, last = play(source, walk("right"), walk("right"))
    assert (texts(last), last.score and last.score.reward) == (['{"place":2}'], 1.0)
    assert play(source, walk("left", length=2))[-1].score == Score(
        reward=0.0, parts={"reward": 0.0, "within_limits": 1.0}
    )
    stopped = play(source, "I stop.")[-1]
    assert (stopped.score and stopped.score.reward, texts(stopped)) == (0.5, [])


def test_wrong_calls_are_read(games: str) -> None:
    wrong, far, unknown = (
        walk("up"),
        walk("left", length=9),
        Message(role="assistant", tool_calls=(ToolCall(id="1", name="jump", arguments={}),)),
    )
    steps = play(load(f"{games}:Walk"), wrong, far, unknown)[1:]
    assert [step.error_kinds for step in steps] == [("invalid_arguments",), ("tool_exception",), ("unknown_tool",)]
    calls = (*walk("right", length=2).tool_calls, *walk("right").tool_calls)
    both = play(load(f"{games}:Walk"), Message(role="assistant", tool_calls=calls))[-1]
    assert both.error_kinds == ("refused",)
    assert both.score
    assert both.score.reward == 1.0


def test_tasks_are_seeds_of_distinct_splits(games: str) -> None:
    echo = load(f"{games}:Echo")
    assert [len(echo.tasks(split)) for split in ("train", "validation", "test")] == [700, 100, 200]
    assert echo.tasks("test")[0].id == "Echo/seed-800"
    with pytest.raises(TaskError, match="Echo/none"):
        echo.environment(echo.tasks("test")[0].replace(id="Echo/none"))
    with pytest.raises(ConfigError, match="jump"):
        load(f"{games}:Walk").slice(Slice(tools=("jump",)))


@pytest.mark.parametrize(
    ("name", "parts"), [("Endless", ("reward_range", "inf")), ("Deaf", ("step", "no action"))], ids=str
)
def test_wrong_classes_are_refused(name: str, parts: tuple[str, ...], games: str) -> None:
    with pytest.raises(ConfigError) as e:
        load(f"{games}:{name}")
    assert all(part in str(e.value) for part in parts)


def test_wrong_results_are_faults(games: str) -> None:
    with pytest.raises(RolloutError, match="observation only") as e:
        play(load(f"{games}:Unseeded"), "x")
    assert e.value.fault == "environment"
    with pytest.raises(RolloutError, match="reward_range = 0 to 1") as e:
        play(load(f"{games}:Rich"), "x")
    assert (e.value.fault, e.value.is_repeatable) == ("grader", False)
    assert "takes no seed" in load(f"{games}:Unseeded").notes()[0]


@pytest.mark.slow
def test_check_plays_an_environment_without_gold(games: str) -> None:
    report = asyncio.run(check_async(load(f"{games}:Echo")))
    assert not report.problems
    assert any("no gold calls" in warning for warning in report.warnings)
    assert [split.noop_reward for split in report.splits] == [0.0, 0.0, 0.0]


class FrozenLake:
    """Gymnasium's lake, for a model: its moves are words."""

    def __init__(self) -> None:
        import gymnasium

        self._lake = gymnasium.make("FrozenLake-v1", is_slippery=False, map_name="4x4")

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        return self._lake.reset(seed=seed)

    def step(self, direction: Literal["left", "down", "right", "up"]) -> tuple[Any, ...]:
        return self._lake.step(["left", "down", "right", "up"].index(direction))

    def close(self) -> None:
        self._lake.close()


@pytest.mark.environments
@pytest.mark.parametrize(("path", "reward"), [("down down right right down right", 1.0), ("right down", 0.0)])
def test_rewards_of_gymnasium(path: str, reward: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(gymnasium_packages())
    source = source_of_class("lake", FrozenLake)
    *_, last = play(source, *map(walk, path.split()))
    assert last.score
    lake = FrozenLake()
    lake.reset(seed=0)
    results = [lake.step(direction) for direction in path.split()]  # type: ignore[arg-type]
    assert last.score.reward == sum(result[1] for result in results) == reward
    assert results[-1][2]
    assert texts(last) == [str(results[-1][0])]
