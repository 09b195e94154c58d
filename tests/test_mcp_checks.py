"""What decides the reward: answers, calls and states by hand, and that no call can pay twice."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from understudy.errors import TaskError
from understudy.mcp.checks import (
    AnswerCheck,
    CallPattern,
    CallsCheck,
    Check,
    Evidence,
    StateCheck,
    progress,
    score,
)
from understudy.mcp.reply import Reply
from understudy.mcp.settings import RewardConfig
from understudy.mcp.toolkit import Made

SHAPED = RewardConfig(kind="shaped", share=0.4)


def made(tool: str, refused: bool = False, **arguments: Any) -> Made:
    return Made("s", tool, arguments, refused)


@pytest.mark.parametrize(
    ("check", "answer", "holds"),
    [
        ({"text": "sold out|gone"}, "It is Sold Out.", True),
        ({"text": "sold"}, "It is unsold.", False),
        ({"text": "milk"}, "milk " * 200, False),
        ({"number": 41}, "It is 41.00, I think.", True),
        ({"number": 41}, "It is 40.", False),
        ({"number": 41}, "1 2 3 4 41", False),
        ({"number": 0.333, "tolerance": 0.001}, "about 0.3333", True),
        ({"regex": r"(?i)^yes\b"}, "Yes, it is.", True),
        ({"regex": r"^yes\b"}, "oh yes", False),
        ({"text": "milk"}, "", False),
    ],
)
def test_answers(check: dict[str, Any], answer: str, holds: bool) -> None:
    assert AnswerCheck.model_validate(check).holds(answer) is holds


def test_states_as_given_and_by_gold() -> None:
    shown = Reply(text='{"count": 7}')
    assert StateCheck(tool="count", equals={"count": 7}).holds(shown, None)
    assert not StateCheck(tool="count", equals=None).holds(shown, None)
    assert StateCheck(tool="count", contains="7", lacks="8", regex=r"\d").holds(shown, None)
    assert not StateCheck(tool="count", lacks="7").holds(shown, None)
    by_gold = StateCheck(tool="count")
    assert by_gold.by_gold
    assert by_gold.holds(shown, Reply(text='{"count": 7}'))
    assert not by_gold.holds(shown, Reply(text='{"count": 8}'))


def test_a_state_that_is_cut_off_does_not_hold_and_gold_that_is_can_never_be_reached() -> None:
    shown = Reply(text="7")
    cut = shown.replace(cut=True)
    assert not StateCheck(tool="count").holds(cut, shown)  # whatever the agent has written: the run goes on
    assert not StateCheck(tool="count", contains="7").holds(cut, None)
    with pytest.raises(TaskError, match="count shows more than result_characters after gold"):
        StateCheck(tool="count").holds(shown, cut)


def test_calls_that_must_be_made_in_any_order_each_by_one_of_its_own() -> None:
    anything, three = CallPattern(tool="add"), CallPattern(tool="add", arguments={"amount": 3})
    check = CallsCheck(must=(anything, three))
    assert check.met([made("add", amount=3)]) == 1
    assert check.met([made("add", amount=3), made("add", amount=4)]) == 2  # `anything` has to leave 3 to `three`
    assert check.met([made("add", amount=4), made("s", amount=3)]) == 1
    assert check.met([made("add", refused=True, amount=3), made("add", amount=4)]) == 1


def test_calls_in_order() -> None:
    check = CallsCheck(must=(CallPattern(tool="a"), CallPattern(tool="b")), ordered=True)
    assert check.met([made("b"), made("a")]) == 1
    assert check.met([made("a"), made("x"), made("b")]) == 2


def test_patterns_of_arguments() -> None:
    pattern = CallPattern(tool="s.wri*", arguments={"mode": "w"}, matching={"path": r"\.txt$", "tags": "red"})
    assert pattern.meets(made("write", mode="w", path="a.txt", tags=["red"]))
    assert not pattern.meets(made("write", mode="w", path="a.md", tags=["red"]))
    assert not pattern.meets(made("write", mode="w", tags=["red"]))


def test_calls_that_may_and_must_not_be_made() -> None:
    check = CallsCheck(must=(CallPattern(tool="a"),), may=(CallPattern(tool="b"),), must_not=(CallPattern(tool="c"),))
    assert check.clean([made("a"), made("b")])
    assert not check.clean([made("a"), made("d")])
    assert not CallsCheck(must_not=(CallPattern(tool="c"),)).clean([made("c", refused=True)])  # trying counts


def test_the_strict_reward_is_the_product_and_the_shaped_one_less_than_success() -> None:
    check = Check(
        answer=(AnswerCheck(number=7),), calls=CallsCheck(must=(CallPattern(tool="a"), CallPattern(tool="b")))
    )
    part = Evidence("It is 7.", True, [made("a")])
    assert score(check, part, RewardConfig()).reward == 0.0
    assert score(check, part, SHAPED).reward == pytest.approx(0.4 * 2 / 3)
    assert score(check, Evidence("It is 7.", True, [made("a"), made("b")]), SHAPED).reward == 1.0
    assert score(check, Evidence("", True, []), SHAPED).reward == 0.0
    cut_off = score(check, Evidence("", False, [made("a"), made("b")]), SHAPED)
    assert cut_off.parts == {"ended": 0.0, "answer": 0.0, "calls": 1.0}


def test_a_state_that_held_from_the_beginning_pays_nothing() -> None:
    check = Check(state=(StateCheck(tool="x", lacks="a"), StateCheck(tool="x", lacks="b")))
    assert progress(check, Evidence("", True, [], states=(True, False), before=(True, False))) == 0.0
    assert progress(check, Evidence("", True, [], states=(True, True), before=(True, False))) == 0.5


@pytest.mark.parametrize(
    "check", [{}, {"calls": {"must_not": [{"tool": "x"}]}}, {"answer": {"text": "a", "number": 1}}]
)
def test_a_check_that_nothing_fails_or_that_says_two_things_is_refused(check: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Check.model_validate(check)


CALLS = st.builds(
    lambda tool, refused, amount: Made("s", tool, {"amount": amount}, refused),
    st.sampled_from("abc"),
    st.booleans(),
    st.integers(0, 2),
)
PATTERNS = st.builds(
    lambda tool, amount: CallPattern(tool=tool, arguments={} if amount is None else {"amount": amount}),
    st.sampled_from("ab*"),
    st.none() | st.integers(0, 2),
)


@given(
    st.lists(PATTERNS, min_size=1, max_size=4),
    st.booleans(),
    st.none() | st.lists(PATTERNS, max_size=2),
    st.lists(PATTERNS, max_size=1),
    st.lists(CALLS, max_size=6),
    st.data(),
)
def test_no_repeated_or_superfluous_call_can_pay(
    must: list[CallPattern],
    ordered: bool,
    may: list[CallPattern] | None,
    must_not: list[CallPattern],
    calls: list[Made],
    data: st.DataObject,
) -> None:
    allowed = None if may is None else tuple(may)
    check = Check(calls=CallsCheck(must=tuple(must), ordered=ordered, may=allowed, must_not=tuple(must_not)))
    strangers = [call for call in (made("z"), made("z", refused=True)) if not any(p.meets(call) for p in must)]
    further = data.draw(st.sampled_from([*calls, *strangers] or [made("z", refused=True)]))
    after = calls.index(further) + 1 if further in calls else 0
    place = data.draw(st.integers(after, len(calls)))
    before = Evidence("", False, calls)
    longer = Evidence("", False, [*calls[:place], further, *calls[place:]])
    assert score(check, longer, SHAPED).reward <= score(check, before, SHAPED).reward <= SHAPED.share
