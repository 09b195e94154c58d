"""Credit for failures: by hand, never more than a success, none for a call that is repeated or that gold does not make,
and nothing where the judge is silent."""

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import toy
from endpoint import Answer, says, serving
from script import Script
from understudy.agent import MOST_PENALTY, SilentAgent
from understudy.chat import ChatConfig, ChatModel
from understudy.config import TrainConfig
from understudy.environment import Step
from understudy.errors import ConfigError
from understudy.messages import Message, ToolCall
from understudy.records import Record
from understudy.rewards import progress
from understudy.rollout import Limits, Source, play
from understudy.settings import parse
from understudy.shaping import MOST, Judge, Shaped, Shaping
from understudy.state import State, Table
from understudy.tasks import Score, Task
from understudy.trajectory import Trajectory

TASK = next(task for task in toy.DOMAIN.sample("train", 6) if task.family == "two")
HALF = Shaping(progress=0.5)


class Row(Record):
    """A row that counts."""

    n: int


class Rows(State):
    """A table and a value."""

    rows: Table[Row]
    who: str = ""


def state(who: str = "", **rows: int) -> Rows:
    """The world has a, b and c, all 0; `rows` are written."""
    made = Rows(rows={key: Row(n=0) for key in "abc"})
    for key, n in rows.items():
        made.rows[key] = Row(n=n)
    made.who = who
    return made


def tell(text: str) -> Message:
    return Message(role="assistant", content=text)


def call(lamp: str, on: bool = True) -> Message:
    return Message(
        role="assistant", tool_calls=(ToolCall(name="switch_lamp", arguments={"lamp_id": lamp, "on": on}, id="c"),)
    )


def episode(*replies: Message, source: Source | None = None) -> Trajectory:
    source = source or Shaped(toy.DOMAIN, HALF)
    return asyncio.run(play(source, TASK, Script(*replies), Limits(max_turns=8), 0))


GOLD = list(TASK.turns)
"""Ask, switch and say so, twice."""


# ---- progress ----


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
def test_progress_by_hand(made: Rows, said: str, expected: float) -> None:
    """Gold changes two rows and a value, and 71 is to be told."""
    gold = state(a=1, b=2, who="me").changes()
    assert progress(made, gold, [tell(said)], ("71",)) == pytest.approx(expected)


_written = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2))


@given(_written, _written, st.sampled_from("abc"), st.integers(0, 2))
def test_no_change_that_gold_does_not_make_pays(
    gold: dict[str, int], made: dict[str, int], key: str, value: int
) -> None:
    wanted = state(**gold).changes()
    before, after = state(**made), state(**made | {key: value})
    paid = progress(after, wanted, (), ()) - progress(before, wanted, (), ())
    row = wanted.get("rows", {}).get(key)
    if after.changes() == before.changes():
        assert paid == 0.0, "what changes nothing pays nothing: a repeated call, or one that only looks"
    elif row is None and value:
        assert paid <= 0.0, "a change that gold does not make"
    elif row is not None and row.n != value:
        assert paid <= 0.0, "a row that is not as gold leaves it"
    assert progress(state(), wanted, (), ()) == 0.0, "and doing nothing is none"


@given(st.lists(st.sampled_from(["gold", "again", "other", "back"]), max_size=5))
def test_no_repeated_or_superfluous_call_of_an_episode_pays(calls: Sequence[str]) -> None:
    """One lamp is switched as gold does; whatever is called after it, confirmed or not, the credit does not rise."""
    lamp = TASK.actions[0].arguments["lamp_id"]
    other = "L1" if lamp != "L1" else "L2"
    kinds = {"gold": call(lamp), "again": call(lamp), "other": call(other), "back": call(lamp, on=False)}
    honest = episode(*GOLD[:3])
    assert honest.reward == pytest.approx(0.25), "half of gold, at a weight of a half"
    assert episode(*GOLD[:2], *(kinds[name] for name in calls)).reward <= honest.reward


# ---- what an episode earns ----


def test_a_success_earns_1_and_silence_nothing() -> None:
    whole = episode(*GOLD)
    assert whole.score is not None
    assert (whole.reward, whole.score.credit, whole.score.progress) == (1.0, 0.0, 1.0)
    silent = asyncio.run(play(Shaped(toy.DOMAIN, HALF), TASK, SilentAgent(), Limits(max_turns=8), 0))
    assert silent.reward == 0.0


def test_evaluation_does_not_see_the_credit() -> None:
    half = episode(*GOLD[:3])
    assert half.score is not None
    assert (half.score.reward, half.score.credit) == (0.0, pytest.approx(0.25))


def test_an_episode_that_a_limit_cuts_earns_credit_too() -> None:
    cut = asyncio.run(play(Shaped(toy.DOMAIN, HALF), TASK, Script(*GOLD[:2]), Limits(max_turns=2), 0))
    assert (cut.stop, cut.reward) == ("max_turns", pytest.approx(0.25))


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, MOST), st.floats(0, 1))
def test_no_failure_earns_more_than_a_success(reward: float, share: float, weight: float, mark: float) -> None:
    class Fixed:
        """An environment that ends at once."""

        tools = ()

        async def start(self) -> Step:
            return Step(score=Score(reward=reward, progress=share))

        async def close(self) -> None:
            pass

    class Source:
        """Of such environments."""

        def environment(self, task: Task, *, seed: int) -> Any:
            return Fixed()

    class Marks(Judge):
        """A judge who gives this mark."""

        def __init__(self) -> None:
            pass

        async def mark(self, task: Task, transcript: Sequence[Message]) -> float:
            return mark

    shaping = Shaping(progress=weight, judge=MOST - weight)
    played = asyncio.run(play(Shaped(Source(), shaping, Marks()), TASK, SilentAgent(), Limits(), 0))
    assert reward <= played.reward <= 1.0
    if reward == 0.0:
        assert played.reward <= 1.0 - MOST_PENALTY, "even beside a success that was repaired at every turn"


@pytest.mark.parametrize("values", [{"progress": 0.6}, {"judge": -0.1}, {"progress": 0.3, "judge": 0.3}])
def test_weights_beyond_a_half_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Shaping.model_validate(values)
    with pytest.raises(ConfigError, match=r"algorithm\.shaping"):
        parse(TrainConfig, "", [f"algorithm.shaping.{name}={value}" for name, value in values.items()])


def test_a_domain_that_does_not_tell_progress_is_named() -> None:
    class Source:
        """Scores without progress."""

        def environment(self, task: Task, *, seed: int) -> Any:
            made = toy.DOMAIN.environment(task)
            made._grade = lambda *_: Score(reward=0.0, parts={"ended": 1.0})
            return made

    with pytest.raises(ConfigError, match=r"does not tell how far an episode got \(its scores tell ended\)"):
        episode(*GOLD[:3], source=Shaped(Source(), HALF))


# ---- the judge ----


def judged(
    answers: Sequence[Answer], count: int = 1
) -> tuple[list[Trajectory], dict[str, float], list[dict[str, Any]]]:
    """Episodes that are marked by these answers, what was counted, and what was asked."""
    with serving(list(answers)) as endpoint:
        chat = ChatConfig(model="m", base_url=endpoint.url, retries=0, backoff=0.01, prompt_price=Decimal(10))
        judge = Judge(ChatModel(chat, "grader"))
        source = Shaped(toy.DOMAIN, Shaping(judge=0.5), judge)
        played = [episode(*GOLD[:3], source=source) for _ in range(count)]
        counted = judge.taken()
        assert judge.taken()["judge/asked"] == 0.0, "what was counted is not counted again"
        return played, counted, endpoint.requests


def test_a_mark_is_credit_and_the_judge_sees_the_wish_and_the_conversation() -> None:
    (played,), counted, (request,) = judged([says(" 7\n")])
    assert played.reward == pytest.approx(0.35)
    assert (counted["judge/asked"], counted["judge/silent"], counted["judge/requests"]) == (1.0, 0.0, 1.0)
    assert counted["judge/cost"] == pytest.approx(100 * 10 / 1e6)
    case = request["messages"][1]["content"]
    assert TASK.scenario.instructions in case
    assert GOLD[0].content in case
    assert "switch_lamp" in case


@pytest.mark.parametrize(
    "answer",
    [says("eleven"), says("11"), says("7/10"), says("I give it 10"), says(""), Answer("no", status=500), says("-1")],
)
def test_without_a_mark_there_is_no_credit_and_it_is_counted(answer: Answer) -> None:
    (played,), counted, _ = judged([answer])
    assert (played.reward, played.fault) == (0.0, None)
    assert (counted["judge/asked"], counted["judge/silent"]) == (1.0, 1.0)


def test_a_success_is_not_put_before_the_judge() -> None:
    with serving([]) as endpoint:
        judge = Judge(ChatModel(ChatConfig(model="m", base_url=endpoint.url, retries=0), "grader"))
        assert episode(*GOLD, source=Shaped(toy.DOMAIN, Shaping(judge=0.5), judge)).reward == 1.0
        assert endpoint.requests == []
