"""Tests of tau2-bench checkouts: a miniature, and the real one where TAU2_BENCH names it."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from support.checkouts import TAU2, write_checkout
from understudy.core.errors import ConfigError, TaskError, ToolError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Scenario, Score, Task
from understudy.data.checks.check import check
from understudy.envs.task_source import Slice
from understudy.envs.tools import UserTools
from understudy.evaluation.evaluate import evaluate, validate_noop_reward
from understudy.rollouts.agent import GoldAgent, NoopAgent
from understudy.rollouts.rollout import EpisodeLimits
from understudy.sources.benchmarks.tau2_bench import Tau2Bench, open_domain
from understudy.sources.loading import load_source

REAL = os.environ.get("TAU2_BENCH", "")
real = pytest.mark.skipif(not REAL, reason="TAU2_BENCH names no checkout of sierra-research/tau2-bench")
DONE = Message(role="assistant", content="Done.")


@pytest.fixture
def lamp(tmp_path: Path) -> Tau2Bench:
    source = load_source(f"tau2:{write_checkout(tmp_path, TAU2)}#lamp")
    assert isinstance(source, Tau2Bench)
    return source


class PressingUser:
    """A user that calls `press` the given number of times before each answer."""

    def __init__(self, presses: int) -> None:
        self.presses, self.answers = presses, list[str]()

    def __call__(self, scenario: Scenario, seed: int, user_tools: UserTools | None) -> "PressingUser":
        """Return this user as the user of an episode."""
        self.user_tools = user_tools
        return self

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        if not transcript:
            return "It is dark."
        for _ in range(self.presses):
            assert self.user_tools
            self.answers.append(self.user_tools.call_sync(ToolCall(name="press")))
        return None


class UserWithoutTools:
    """A user without tools."""

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        return None if transcript else "It is dark."


def call(name: str, **arguments: object) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


def find_task(source: Tau2Bench, name: str) -> Task:
    return next(task for split in ("train", "test") for task in source.tasks(split) if task.id == name)  # type: ignore[arg-type]


def score_episode(source: Tau2Bench, name: str, user: PressingUser | UserWithoutTools, *replies: Message) -> Score:
    async def play() -> Score:
        played = source.with_users(user) if isinstance(user, PressingUser) else source
        environment = played.environment(find_task(source, name), None if isinstance(user, PressingUser) else user)
        await environment.start()
        steps = [await environment.step(reply) for reply in replies]
        return steps[-1].score or await environment.grade(ended=False)

    return asyncio.run(play())


def test_older_checkouts_give_the_user_all_tools(tmp_path: Path) -> None:
    """The version that tau2-bench-verified is made from has no `user_tools` in its tasks."""
    files = {name: text.replace("user_tools: list[str] | None = None", "pass") for name, text in TAU2.items()}
    assert files != TAU2
    source = load_source(f"tau2:{write_checkout(tmp_path, files)}#lamp")
    assert isinstance(source, Tau2Bench)
    user = PressingUser(1)
    assert score_episode(source, "light", user, call("power", lamp="desk"), DONE).reward == 1.0


def test_tasks_load_with_gold_policy_and_tools(lamp: Tau2Bench) -> None:
    assert [task.id for task in lamp.tasks("train")] == ["free"]
    tasks = lamp.tasks("test")
    families = {"light": "change", "tell": "tell", "judged": "judged", "later": "change", "noted": "change"}
    assert {task.id: task.family for task in tasks} == families
    light = find_task(lamp, "light")
    asked = Message(role="assistant", content="Please do this: press({})")
    assert light.gold == (call("power", lamp="desk"), asked, DONE)
    assert find_task(lamp, "tell").gold == (Message(role="assistant", content="1000 lumen"),)
    assert (lamp.domain_policy, [spec.name for spec in lamp.tool_specs]) == (
        "Bring light.",
        ["power", "look", "calculate"],
    )
    assert lamp.tasks("validation") == []


def test_agent_and_user_share_one_state(lamp: Tau2Bench) -> None:
    power = call("power", lamp="desk")
    user = PressingUser(1)
    assert score_episode(lamp, "light", user, power, DONE).parts == {
        "within_limits": 1.0,
        "env_assertion": 1.0,
        "action": 1.0,
    }
    assert user.answers == ["switch on"]
    assert score_episode(lamp, "light", PressingUser(1), DONE, power).parts == {
        "within_limits": 0.0,
        "env_assertion": 1.0,
        "action": 1.0,
    }
    assert score_episode(lamp, "light", PressingUser(2), power, DONE).parts == {
        "within_limits": 1.0,
        "env_assertion": 0.0,
        "action": 1.0,
    }
    assert score_episode(lamp, "light", PressingUser(0), power, DONE).parts == {
        "within_limits": 1.0,
        "env_assertion": 0.0,
        "action": 0.0,
    }
    assert score_episode(lamp, "light", PressingUser(1), DONE).parts == {
        "within_limits": 1.0,
        "env_assertion": 0.0,
        "action": 0.0,
    }


def test_calculate_rejects_power_operator(lamp: Tau2Bench) -> None:
    async def play() -> list[str]:
        environment = lamp.environment(find_task(lamp, "tell"), UserWithoutTools())
        await environment.start()
        asked = [call("calculate", expression=expression) for expression in ("9**9**9", "2 * 3")]
        return [(await environment.step(reply)).messages[0].content for reply in asked]

    assert asyncio.run(play()) == ["Error: invalid characters in expression", "6"]


def test_user_without_tools_is_rejected_where_task_needs_them(lamp: Tau2Bench) -> None:
    with pytest.raises(ConfigError, match=r"\blight\b.*\bUserWithoutTools\b"):
        lamp.environment(find_task(lamp, "light"), UserWithoutTools())
    said = Message(role="assistant", content="It gives 1,000 LUMEN.")
    assert score_episode(lamp, "tell", UserWithoutTools(), said).parts == {
        "within_limits": 1.0,
        "db": 1.0,
        "communicate": 1.0,
    }


def test_failed_call_returns_error_and_keeps_its_writes(lamp: Tau2Bench) -> None:
    async def play() -> tuple[str, tuple[str, ...], Score]:
        environment = lamp.environment(find_task(lamp, "tell"), UserWithoutTools())
        step = await environment.step(call("power", lamp="none"))
        return step.messages[0].content, step.error_kinds, await environment.grade(ended=True)

    answer, errors, graded = asyncio.run(play())
    assert (answer, errors, graded.parts["db"]) == ("Error: 'none'", ("refused",), 0.0)


def test_initial_history_is_shown_and_counts_in_reward(lamp: Tau2Bench) -> None:
    later = find_task(lamp, "later")
    told = 'The conversation so far:\nuser: It is dark.\nassistant: power({"lamp": "floor"})'
    assert told in later.scenario.instructions
    environment = lamp.environment(later, UserWithoutTools())
    (system, _) = asyncio.run(environment.start()).messages
    assert system.content.startswith(f"Bring light.\n\n{told}")
    assert score_episode(lamp, "later", UserWithoutTools(), call("power", lamp="desk"), DONE).reward == 1.0
    assert score_episode(lamp, "later", UserWithoutTools(), DONE).parts == {
        "within_limits": 1.0,
        "db": 0.0,
        "communicate": 1.0,
    }


def test_judged_task_requires_judge_and_uses_its_verdict(lamp: Tau2Bench) -> None:
    with pytest.raises(TaskError, match=r"\bjudged\b.*slice\.families="):
        lamp.environment(find_task(lamp, "judged"))

    def judge(assertions: Sequence[str], transcript: Sequence[Message]) -> list[bool]:
        assert assertions == ["The agent is kind."]
        return ["please" in message.content for message in transcript if message.role == "assistant"]

    kind = replace(lamp, judge=judge)
    assert (
        score_episode(kind, "judged", UserWithoutTools(), Message(role="assistant", content="Wait, please.")).reward
        == 1.0
    )
    assert score_episode(kind, "judged", UserWithoutTools(), Message(role="assistant", content="Wait.")).reward == 0.0


def test_check_plays_gold_of_agent_and_user(lamp: Tau2Bench) -> None:
    report = check(lamp.slice(Slice(families=("change", "tell", "nothing"))))
    train, _, test = report.splits
    assert (test.tasks, test.noop_reward, test.gold_reward, train.noop_reward) == (4, 0.0, 1.0, 1.0)
    assert any(problem.startswith("task free: ") for problem in report.problems)
    assert not any("its gold turns" in problem for problem in report.problems)
    with pytest.raises(TaskError, match=r"\b1 of the 1 train\b"):
        asyncio.run(validate_noop_reward(lamp))


def test_episodes_do_not_share_writes(lamp: Tau2Bench) -> None:
    for name, presses in (("light", 1), ("noted", 0)):
        first = score_episode(lamp, name, PressingUser(presses), call("power", lamp="desk"), DONE)
        assert (first.reward, score_episode(lamp, name, PressingUser(presses), DONE).reward) == (1.0, 0.0)


def test_invalid_slice_or_checkout_raises_clear_error(tmp_path: Path, lamp: Tau2Bench) -> None:
    with pytest.raises(ConfigError, match=r"tau2-lamp\b.*\bbrief\b"):
        lamp.slice(Slice(domain_policy="brief"))
    with pytest.raises(ConfigError, match=r"tau2-lamp\b.*'press'"):
        lamp.slice(Slice(tools=("press",)))
    with pytest.raises(TaskError, match=r"\bstray\b.*tau2-lamp"):
        lamp.environment(Task.model_construct(id="stray"))
    (tmp_path / "data" / "tasks.json").unlink()
    with pytest.raises(ConfigError, match=r"\blamp\b.*tasks\.json"):
        load_source(f"tau2:{tmp_path}#lamp").tasks("test")


def test_user_sees_only_user_tools(lamp: Tau2Bench) -> None:
    user = PressingUser(0)
    lamp.with_users(user).environment(find_task(lamp, "light"))
    assert user.user_tools
    assert [spec.name for spec in user.user_tools.specs()] == ["press"]
    with pytest.raises(ToolError):
        user.user_tools.call_sync(ToolCall(name="power", arguments={"lamp": "desk"}))


def test_a_row_with_the_id_of_another_task_is_refused(lamp: Tau2Bench) -> None:
    task = lamp.tasks("train")[0]
    raw, row = lamp.raw_tasks[task.id], {"user_scenario": "It is dark.", "evaluation_criteria": {"actions": []}}
    with pytest.raises(TaskError, match=task.id):
        lamp.to_task(task.id, "train", row)
    assert lamp.raw_tasks[task.id] is raw
    assert lamp.to_task("own", "train", row).id == "own"
    assert lamp.to_task(task.id, "train", raw.model_dump()) == task


@real
@pytest.mark.tau
@pytest.mark.filterwarnings("ignore")
def test_real_telecom_gold_scores_one_and_noop_zero() -> None:
    source = open_domain(f"{REAL}#telecom")
    tasks = source.tasks("test")
    gold = asyncio.run(evaluate(source, GoldAgent(), tasks, EpisodeLimits(max_turns=60)))
    noop = asyncio.run(evaluate(source, NoopAgent(), tasks))
    assert (len(tasks), gold.success_rate.mean, noop.success_rate.mean) == (40, 1.0, 0.0)
