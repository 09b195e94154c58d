"""tau2-bench out of a checkout: a miniature of our own, and the real one where TAU2_BENCH names it."""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from checkouts import TAU2, write
from understudy.agent import GoldAgent, SilentAgent
from understudy.check import check
from understudy.domains.base import Slice, find
from understudy.errors import ConfigError, TaskError, ToolError
from understudy.evaluate import evaluate, refuse_free
from understudy.integrations.tau2_bench import Tau2, open_domain
from understudy.messages import Message, ToolCall
from understudy.rollout import Limits
from understudy.tasks import Scenario, Score, Task
from understudy.tools import Device

REAL = os.environ.get("TAU2_BENCH", "")
real = pytest.mark.skipif(not REAL, reason="TAU2_BENCH names no checkout of sierra-research/tau2-bench")
DONE = Message(role="assistant", content="Done.")


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    """One checkout a test."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "tau2"]:
        del sys.modules[name]


@pytest.fixture
def lamp(tmp_path: Path) -> Tau2:
    source = find(f"tau2:{write(tmp_path, TAU2)}#lamp")
    assert isinstance(source, Tau2)
    return source


class Presser:
    """A user who presses the switch before each answer, as often as told."""

    def __init__(self, presses: int) -> None:
        self.presses, self.answers = presses, list[str]()

    def __call__(self, scenario: Scenario, seed: int, device: Device | None) -> "Presser":
        """The user of an episode is this one."""
        self.device = device
        return self

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        if not transcript:
            return "It is dark."
        for _ in range(self.presses):
            assert self.device
            self.answers.append(self.device.run(ToolCall(name="press")))
        return None


class Mute:
    """A user without hands."""

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        return None if transcript else "It is dark."


def call(name: str, **arguments: object) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


def task(source: Tau2, name: str) -> Task:
    return next(task for split in ("train", "test") for task in source.tasks(split) if task.id == name)  # type: ignore[arg-type]


def score(source: Tau2, name: str, user: Presser | Mute, *replies: Message) -> Score:
    async def play() -> Score:
        played = source.with_users(user) if isinstance(user, Presser) else source
        environment = played.environment(task(source, name), None if isinstance(user, Presser) else user)
        await environment.start()
        steps = [await environment.step(reply) for reply in replies]
        return steps[-1].score or await environment.grade(ended=False)

    return asyncio.run(play())


def test_tasks_come_with_what_their_reward_depends_on(lamp: Tau2) -> None:
    assert [task.id for task in lamp.tasks("train")] == ["free"]
    tasks = lamp.tasks("test")
    families = {"light": "change", "tell": "tell", "judged": "judged", "later": "change", "noted": "change"}
    assert {task.id: task.family for task in tasks} == families
    light = task(lamp, "light")
    asked = Message(role="assistant", content="Please do this: press({})")
    assert light.gold == (call("power", lamp="desk"), asked, DONE)
    assert task(lamp, "tell").gold == (Message(role="assistant", content="1000 lumen"),)
    assert (lamp.policy, [spec.name for spec in lamp.specs]) == ("Bring light.", ["power", "look", "calculate"])
    assert lamp.tasks("validation") == []


def test_agent_and_user_act_on_one_state(lamp: Tau2) -> None:
    power = call("power", lamp="desk")
    user = Presser(1)
    assert score(lamp, "light", user, power, DONE).parts == {"ended": 1.0, "env_assertion": 1.0, "action": 1.0}
    assert user.answers == ["switch on"]
    assert score(lamp, "light", Presser(1), DONE, power).parts == {"ended": 0.0, "env_assertion": 1.0, "action": 1.0}
    assert score(lamp, "light", Presser(2), power, DONE).parts == {"ended": 1.0, "env_assertion": 0.0, "action": 1.0}
    assert score(lamp, "light", Presser(0), power, DONE).parts == {"ended": 1.0, "env_assertion": 0.0, "action": 0.0}
    assert score(lamp, "light", Presser(1), DONE).parts == {"ended": 1.0, "env_assertion": 0.0, "action": 0.0}


def test_a_power_is_refused_before_it_is_computed(lamp: Tau2) -> None:
    async def play() -> list[str]:
        environment = lamp.environment(task(lamp, "tell"), Mute())
        await environment.start()
        asked = [call("calculate", expression=expression) for expression in ("9**9**9", "2 * 3")]
        return [(await environment.step(reply)).messages[0].content for reply in asked]

    assert asyncio.run(play()) == ["Error: invalid characters in expression", "6"]


def test_a_user_that_cannot_act_is_refused_where_it_has_to(lamp: Tau2) -> None:
    with pytest.raises(ConfigError, match=r"task light .* has a user who acts, and Mute was given no tools"):
        lamp.environment(task(lamp, "light"), Mute())
    said = Message(role="assistant", content="It gives 1,000 LUMEN.")
    assert score(lamp, "tell", Mute(), said).parts == {"ended": 1.0, "db": 1.0, "communicate": 1.0}


def test_what_fails_is_answered_and_what_it_wrote_stays(lamp: Tau2) -> None:
    async def play() -> tuple[str, tuple[str, ...], Score]:
        environment = lamp.environment(task(lamp, "tell"), Mute())
        step = await environment.step(call("power", lamp="none"))
        return step.messages[0].content, step.errors, await environment.grade(ended=True)

    answer, errors, graded = asyncio.run(play())
    assert (answer, errors, graded.parts["db"]) == ("Error: 'none'", ("refused",), 0.0)


def test_a_conversation_that_goes_on_is_told_and_counts(lamp: Tau2) -> None:
    later = task(lamp, "later")
    told = 'The conversation so far:\nuser: It is dark.\nassistant: power({"lamp": "floor"})'
    assert told in later.scenario.instructions
    environment = lamp.environment(later, Mute())
    (system, _) = asyncio.run(environment.start()).messages
    assert system.content.startswith(f"Bring light.\n\n{told}")
    assert score(lamp, "later", Mute(), call("power", lamp="desk"), DONE).reward == 1.0
    assert score(lamp, "later", Mute(), DONE).parts == {"ended": 1.0, "db": 0.0, "communicate": 1.0}


def test_a_judge_is_asked_where_the_task_wants_one(lamp: Tau2) -> None:
    with pytest.raises(TaskError, match=r"task judged: a language model judges its transcript: .*slice.families="):
        lamp.environment(task(lamp, "judged"))

    def judge(assertions: Sequence[str], transcript: Sequence[Message]) -> list[bool]:
        assert assertions == ["The agent is kind."]
        return ["please" in message.content for message in transcript if message.role == "assistant"]

    kind = replace(lamp, judge=judge)
    assert score(kind, "judged", Mute(), Message(role="assistant", content="Wait, please.")).reward == 1.0
    assert score(kind, "judged", Mute(), Message(role="assistant", content="Wait.")).reward == 0.0


def test_check_plays_the_gold_of_both_sides(lamp: Tau2) -> None:
    report = check(lamp.slice(Slice(families=("change", "tell", "nothing"))))
    train, _, test = report.splits
    assert (test.tasks, test.floor, test.oracle, train.floor) == (4, 0.0, 1.0, 1.0)
    assert "task free: doing nothing earns 1" in report.problems
    assert not any("gold" in problem for problem in report.problems)
    with pytest.raises(TaskError, match="doing nothing earns 1 of the 1 train tasks"):
        asyncio.run(refuse_free(lamp))


def test_episodes_share_nothing_that_they_write(lamp: Tau2) -> None:
    for name, presses in (("light", 1), ("noted", 0)):
        first = score(lamp, name, Presser(presses), call("power", lamp="desk"), DONE)
        assert (first.reward, score(lamp, name, Presser(presses), DONE).reward) == (1.0, 0.0)


def test_mistakes_are_one_line(tmp_path: Path, lamp: Tau2) -> None:
    with pytest.raises(ConfigError, match="tau2-lamp has no brief policy"):
        lamp.slice(Slice(policy="brief"))
    with pytest.raises(ConfigError, match="tau2-lamp has no tool 'press'"):
        lamp.slice(Slice(tools=("press",)))
    (tmp_path / "data" / "tasks.json").unlink()
    with pytest.raises(ConfigError, match=r"lacks a file of lamp: .*tasks.json"):
        lamp.tasks("test")
    with pytest.raises(TaskError, match="task stray is none of tau2-lamp"):
        lamp.environment(Task.model_construct(id="stray"))


def test_the_users_tools_are_its_own(lamp: Tau2) -> None:
    user = Presser(0)
    lamp.with_users(user).environment(task(lamp, "light"))
    assert user.device
    assert [spec.name for spec in user.device.specs()] == ["press"]
    with pytest.raises(ToolError):
        user.device.run(ToolCall(name="power", arguments={"lamp": "desk"}))


@real
@pytest.mark.tau
@pytest.mark.filterwarnings("ignore")
def test_gold_earns_every_real_telecom_task_and_silence_none() -> None:
    source = open_domain(f"{REAL}#telecom")
    tasks = source.tasks("test")
    gold = asyncio.run(evaluate(source, GoldAgent(), tasks, Limits(max_turns=60)))
    silent = asyncio.run(evaluate(source, SilentAgent(), tasks))
    assert (len(tasks), gold.success.mean, silent.success.mean) == (40, 1.0, 0.0)
