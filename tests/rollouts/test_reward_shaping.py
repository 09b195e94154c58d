"""Tests of reward shaping: partial credit for failed episodes, from task progress and from a judge."""

import asyncio
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import toy
from support.endpoint import Answer, make_completion, serve_answers
from support.script import Script
from understudy.clients.chat import ChatModel, EndpointConfig
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import Score, Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.envs.environment import ExtendableEnvironment, StepResult
from understudy.envs.rewards import missing_facts, task_progress
from understudy.envs.state import State, Table
from understudy.rollouts.agent import MAX_REPAIR_PENALTY, NoopAgent
from understudy.rollouts.reward_shaping import MAX_BONUS, RewardJudge, ShapedEnvironmentFactory, ShapingConfig
from understudy.rollouts.rollout import EnvironmentFactory, EpisodeLimits, play_episode
from understudy.runs.config import parse_config

TASK = next(task for task in toy.DOMAIN.sample("train", 6) if task.family == "two")
HALF = ShapingConfig(progress_weight=0.5)


class Row(Record):
    """A row with a number."""

    n: int


class ToyState(State):
    """A state with a table and a value."""

    rows: Table[Row]
    who: str = ""


def state(who: str = "", **rows: int) -> ToyState:
    """Return a state with rows a, b and c, which are 0 except for those in `rows`."""
    made = ToyState(rows={key: Row(n=0) for key in "abc"})
    for key, n in rows.items():
        made.rows[key] = Row(n=n)
    made.who = who
    return made


def text_reply(text: str) -> Message:
    return Message(role="assistant", content=text)


def switch_lamp_reply(lamp: str, on: bool = True) -> Message:
    return Message(
        role="assistant", tool_calls=(ToolCall(name="switch_lamp", arguments={"lamp_id": lamp, "on": on}, id="c"),)
    )


def play_replies(*replies: Message, source: EnvironmentFactory | None = None) -> Trajectory:
    source = source or ShapedEnvironmentFactory(toy.DOMAIN, HALF)
    return asyncio.run(play_episode(source, TASK, Script(*replies), EpisodeLimits(max_turns=8), 0))


GOLD = list(TASK.gold_turns)
"""Two requests; for each the agent asks, switches the lamp and reports it."""


@pytest.mark.parametrize(
    ("made", "said", "expected"),
    [
        (state(), "", 0.0),
        (state(a=1), "", 1 / 4),
        (state(a=1, b=2, who="me"), "", 3 / 4),
        (state(a=1, b=2, who="me"), "It is 71.", 1.0),
        (state(a=1, c=1), "", 1 / 5),
        (state(a=2), "", 0.0),
        (state(a=0), "It is 71.", 1 / 4),
        (state(who="you"), "", 0.0),
    ],
)
def test_task_progress_matches_hand_computed_values(made: ToyState, said: str, expected: float) -> None:
    """Gold changes two rows and a value, and the agent must report 71."""
    gold = state(a=1, b=2, who="me").changes()
    transcript = [Message(role="tool", content='{"reading": 71}'), text_reply(said)]
    assert task_progress(made, gold, ("71",), missing_facts(transcript, ("71",))) == pytest.approx(expected)


_row_values = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2))


@given(_row_values, _row_values, st.sampled_from("abc"), st.integers(0, 2))
def test_changes_that_gold_does_not_make_earn_no_progress(
    gold: dict[str, int], made: dict[str, int], key: str, value: int
) -> None:
    wanted = state(**gold).changes()
    before, after = state(**made), state(**made | {key: value})
    paid = task_progress(after, wanted, (), ()) - task_progress(before, wanted, (), ())
    row = wanted.get("rows", {}).get(key)
    if after.changes() == before.changes():
        assert paid == 0.0, "what changes nothing pays nothing: a repeated call, or one that only looks"
    elif row is None and value:
        assert paid <= 0.0, "a change that gold does not make"
    elif row is not None and row.n != value:
        assert paid <= 0.0, "a row that is not as gold leaves it"
    assert task_progress(state(), wanted, (), ()) == 0.0, "and doing nothing is none"


@given(st.lists(st.sampled_from(["gold", "again", "other", "back"]), max_size=5))
def test_repeated_or_superfluous_calls_earn_no_credit(calls: Sequence[str]) -> None:
    """After one lamp is switched as in gold, no further call raises the reward."""
    lamp = TASK.gold_calls[0].arguments["lamp_id"]
    other = "L1" if lamp != "L1" else "L2"
    kinds = {
        "gold": switch_lamp_reply(lamp),
        "again": switch_lamp_reply(lamp),
        "other": switch_lamp_reply(other),
        "back": switch_lamp_reply(lamp, on=False),
    }
    honest = play_replies(*GOLD[:3])
    assert honest.reward == pytest.approx(0.25), "half of gold, at a weight of a half"
    assert play_replies(*GOLD[:2], *(kinds[name] for name in calls)).reward <= honest.reward


def test_success_earns_1_and_noop_agent_earns_0() -> None:
    whole = play_replies(*GOLD)
    assert whole.score is not None
    assert (whole.reward, whole.score.shaping_bonus, whole.score.progress) == (1.0, 0.0, 1.0)
    silent = asyncio.run(
        play_episode(ShapedEnvironmentFactory(toy.DOMAIN, HALF), TASK, NoopAgent(), EpisodeLimits(max_turns=8), 0)
    )
    assert silent.reward == 0.0


def test_score_reward_excludes_the_shaping_bonus() -> None:
    half = play_replies(*GOLD[:3])
    assert half.score is not None
    assert (half.score.reward, half.score.shaping_bonus) == (0.0, pytest.approx(0.25))


def test_episode_cut_off_at_max_turns_earns_partial_credit() -> None:
    cut = asyncio.run(
        play_episode(ShapedEnvironmentFactory(toy.DOMAIN, HALF), TASK, Script(*GOLD[:2]), EpisodeLimits(max_turns=2), 0)
    )
    assert (cut.stop_reason, cut.reward) == ("max_turns", pytest.approx(0.25))


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, MAX_BONUS), st.floats(0, 1))
def test_failure_never_earns_more_than_a_success(reward: float, share: float, weight: float, mark: float) -> None:
    class Fixed:
        """An environment that ends at once."""

        tools = ()

        async def start(self) -> StepResult:
            return StepResult(score=Score(reward=reward, progress=share))

        async def close(self) -> None:
            pass

    class Source:
        """A factory of `Fixed` environments."""

        def environment(self, task: Task, *, seed: int) -> Any:
            return Fixed()

    class Marks(RewardJudge):
        """A judge with a constant score."""

        def __init__(self) -> None:
            pass

        async def score(self, task: Task, transcript: Sequence[Message]) -> float:
            return mark

    shaping = ShapingConfig(progress_weight=weight, judge_weight=MAX_BONUS - weight)
    played = asyncio.run(
        play_episode(ShapedEnvironmentFactory(Source(), shaping, Marks()), TASK, NoopAgent(), EpisodeLimits(), 0)
    )
    assert reward <= played.reward <= 1.0
    if reward == 0.0:
        assert played.reward <= 1.0 - MAX_REPAIR_PENALTY, "even beside a success that was repaired at every turn"


@pytest.mark.parametrize(
    "values", [{"progress_weight": 0.6}, {"judge_weight": -0.1}, {"progress_weight": 0.3, "judge_weight": 0.3}]
)
def test_invalid_shaping_weights_are_rejected(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        ShapingConfig.model_validate(values)
    with pytest.raises(ConfigError, match=r"algorithm\.shaping"):
        parse_config("", [f"algorithm.shaping.{name}={value}" for name, value in values.items()])


def test_shaping_raises_for_a_domain_without_progress() -> None:
    class Source:
        """Scores without progress."""

        def environment(self, task: Task, *, seed: int) -> Any:
            made = toy.DOMAIN.environment(task)
            made._grade = lambda *_: Score(reward=0.0, parts={"within_limits": 1.0})
            return made

    with pytest.raises(ConfigError, match=r"\bwithin_limits\b"):
        play_replies(*GOLD[:3], source=ShapedEnvironmentFactory(Source(), HALF))


def play_with_judge(
    answers: Sequence[Answer], count: int = 1
) -> tuple[list[Trajectory], dict[str, float], list[dict[str, Any]]]:
    """Return episodes scored by a judge with these answers, the judge's metrics, and its requests."""
    with serve_answers(list(answers)) as endpoint:
        chat = EndpointConfig(model="m", base_url=endpoint.url, max_retries=0, backoff=0.01, prompt_price=Decimal(10))
        judge = RewardJudge(ChatModel(chat, "grader"))
        source = ShapedEnvironmentFactory(toy.DOMAIN, ShapingConfig(judge_weight=0.5), judge)
        played = [play_replies(*GOLD[:3], source=source) for _ in range(count)]
        counted = judge.pop_metrics()
        assert judge.pop_metrics()["rollout/judge/episodes"] == 0.0, "what was counted is not counted again"
        return played, counted, endpoint.requests


def test_judge_score_adds_credit_and_judge_sees_task_and_transcript() -> None:
    (played,), counted, (request,) = play_with_judge([make_completion(" 7\n")])
    assert played.reward == pytest.approx(0.35)
    assert (
        counted["rollout/judge/episodes"],
        counted["rollout/judge/unscored_episodes"],
        counted["rollout/judge/requests"],
    ) == (1.0, 0.0, 1.0)
    assert counted["rollout/judge/cost"] == pytest.approx(100 * 10 / 1e6)
    case = request["messages"][1]["content"]
    assert TASK.scenario.instructions in case
    assert GOLD[0].content in case
    assert "switch_lamp" in case


def test_judge_sees_calls_that_come_one_by_one_as_one_reply() -> None:
    calls = [switch_lamp_reply(lamp).tool_calls[0].replace(id=lamp) for lamp in ("kitchen", "hall")]

    async def play(judge: RewardJudge) -> list[Message]:
        environment = ShapedEnvironmentFactory(toy.DOMAIN, ShapingConfig(judge_weight=0.5), judge).environment(
            TASK, seed=0
        )
        assert isinstance(environment, ExtendableEnvironment)
        await environment.start()
        await environment.step(Message(role="assistant", tool_calls=(calls[0],)))
        step = await environment.extend_reply(calls[1])
        await environment.grade(ended=False)
        return list(step.messages) if step else []

    with serve_answers([make_completion("7")]) as endpoint:
        (result,) = asyncio.run(
            play(RewardJudge(ChatModel(EndpointConfig(model="m", base_url=endpoint.url), "grader")))
        )
    conversation = json.loads(endpoint.requests[0]["messages"][1]["content"])["conversation"]
    (reply,) = [message for message in conversation if message["role"] == "assistant"]
    assert [call["id"] for call in reply["tool_calls"]] == ["kitchen", "hall"]
    assert [m["tool_call_id"] for m in conversation if m["role"] == "tool"] == ["kitchen", "hall"]
    assert result.tool_call_id == "hall"


@pytest.mark.parametrize(
    "answer",
    [
        make_completion("eleven"),
        make_completion("11"),
        make_completion("7/10"),
        make_completion("I give it 10"),
        make_completion(""),
        Answer("the prompt is too long: it exceeds the context length", status=400),
        make_completion("-1"),
    ],
)
def test_invalid_judge_answer_gives_no_credit_and_is_counted(answer: Answer) -> None:
    (played,), counted, _ = play_with_judge([answer])
    assert (played.reward, played.fault) == (0.0, None)
    assert (counted["rollout/judge/episodes"], counted["rollout/judge/unscored_episodes"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    "answer",
    [
        Answer("no", status=500),
        Answer("{"),
        make_completion("7", "content_filter"),
        make_completion(None),  # type: ignore[arg-type]
        make_completion("7", tokens=(-5, 1)),
    ],
)
def test_failed_request_to_the_judge_is_a_fault_of_the_grader(answer: Answer) -> None:
    (played,), _, _ = play_with_judge([answer])
    assert (played.stop_reason, played.fault, played.score) == (StopReason.FAULT, "grader", None)


def test_judge_is_not_asked_about_a_success() -> None:
    with serve_answers([]) as endpoint:
        judge = RewardJudge(ChatModel(EndpointConfig(model="m", base_url=endpoint.url, max_retries=0), "grader"))
        assert (
            play_replies(
                *GOLD, source=ShapedEnvironmentFactory(toy.DOMAIN, ShapingConfig(judge_weight=0.5), judge)
            ).reward
            == 1.0
        )
        assert endpoint.requests == []
