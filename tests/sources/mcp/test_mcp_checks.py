"""Tests of answer, call and state checks and of the reward that they give."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from understudy.core.errors import TaskError
from understudy.sources.mcp.checks import (
    AnswerCheck,
    CallPattern,
    CallsCheck,
    EpisodeEvidence,
    StateCheck,
    TaskCheck,
    checks_progress,
    score_checks,
)
from understudy.sources.mcp.config import RewardConfig
from understudy.sources.mcp.tasks import MCPTask
from understudy.sources.mcp.tool_result import ToolResult
from understudy.sources.mcp.toolkit import ServerCall

SHAPED = RewardConfig(kind="shaped", max_partial_reward=0.4)


def server_call(tool: str, refused: bool = False, **arguments: Any) -> ServerCall:
    return ServerCall("s", tool, arguments, refused)


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
def test_answer_check_passes_matching_answer(check: dict[str, Any], answer: str, holds: bool) -> None:
    assert AnswerCheck.model_validate(check).passes(answer) is holds


def test_state_check_compares_with_given_value_or_gold_result() -> None:
    shown = ToolResult(text='{"count": 7}')
    assert StateCheck(tool="count", equals={"count": 7}).passes(shown, None)
    assert not StateCheck(tool="count", equals=None).passes(shown, None)
    assert StateCheck(tool="count", contains="7", not_contains="8", regex=r"\d").passes(shown, None)
    assert not StateCheck(tool="count", not_contains="7").passes(shown, None)
    by_gold = StateCheck(tool="count")
    assert by_gold.expects_gold_result
    assert by_gold.passes(shown, ToolResult(text='{"count": 7}'))
    assert not by_gold.passes(shown, ToolResult(text='{"count": 8}'))


def test_truncated_state_fails_and_truncated_gold_raises() -> None:
    shown = ToolResult(text="7")
    cut = shown.replace(truncated=True)
    assert not StateCheck(tool="count").passes(cut, shown)  # fails without an error, so that the run continues
    assert not StateCheck(tool="count", contains="7").passes(cut, None)
    with pytest.raises(TaskError, match=r"\bcount\b.*result_characters"):
        StateCheck(tool="count").passes(shown, cut)


def test_unordered_required_calls_need_one_call_each() -> None:
    anything, three = CallPattern(tool="add"), CallPattern(tool="add", arguments={"amount": 3})
    check = CallsCheck(required=(anything, three))
    assert check.count_required_made([server_call("add", amount=3)]) == 1
    assert (
        check.count_required_made([server_call("add", amount=3), server_call("add", amount=4)]) == 2
    )  # `three` matches 3, so `anything` takes 4
    assert check.count_required_made([server_call("add", amount=4), server_call("s", amount=3)]) == 1
    assert check.count_required_made([server_call("add", refused=True, amount=3), server_call("add", amount=4)]) == 1


def test_ordered_required_calls_must_follow_order() -> None:
    check = CallsCheck(required=(CallPattern(tool="a"), CallPattern(tool="b")), ordered=True)
    assert check.count_required_made([server_call("b"), server_call("a")]) == 1
    assert check.count_required_made([server_call("a"), server_call("x"), server_call("b")]) == 2


def test_call_pattern_matches_arguments() -> None:
    pattern = CallPattern(tool="s.wri*", arguments={"mode": "w"}, argument_patterns={"path": r"\.txt$", "tags": "red"})
    assert pattern.matches(server_call("write", mode="w", path="a.txt", tags=["red"]))
    assert not pattern.matches(server_call("write", mode="w", path="a.md", tags=["red"]))
    assert not pattern.matches(server_call("write", mode="w", tags=["red"]))


def test_calls_check_applies_allowed_and_forbidden_calls() -> None:
    check = CallsCheck(
        required=(CallPattern(tool="a"),), allowed=(CallPattern(tool="b"),), forbidden=(CallPattern(tool="c"),)
    )
    assert check.only_allowed_calls([server_call("a"), server_call("b")])
    assert not check.only_allowed_calls([server_call("a"), server_call("d")])
    assert not CallsCheck(forbidden=(CallPattern(tool="c"),)).only_allowed_calls(
        [server_call("c", refused=True)]
    )  # a refused attempt counts too


def test_strict_reward_is_product_and_shaped_reward_is_partial() -> None:
    check = TaskCheck(
        answer=(AnswerCheck(number=7),), calls=CallsCheck(required=(CallPattern(tool="a"), CallPattern(tool="b")))
    )
    part = EpisodeEvidence("It is 7.", True, [server_call("a")])
    assert score_checks(check, part, RewardConfig()).reward == 0.0
    assert score_checks(check, part, SHAPED).reward == pytest.approx(0.4 * 2 / 3)
    assert (
        score_checks(check, EpisodeEvidence("It is 7.", True, [server_call("a"), server_call("b")]), SHAPED).reward
        == 1.0
    )
    assert score_checks(check, EpisodeEvidence("", True, []), SHAPED).reward == 0.0
    cut_off = score_checks(check, EpisodeEvidence("", False, [server_call("a"), server_call("b")]), SHAPED)
    assert cut_off.parts == {"within_limits": 0.0, "answer_match": 0.0, "tool_calls_match": 1.0}


def test_told_outputs_count_in_reward_and_progress() -> None:
    check = TaskCheck(calls=CallsCheck(required=(CallPattern(tool="a"),)))
    half = EpisodeEvidence("x", True, [server_call("a")], told=(True, False))
    assert score_checks(check, half, RewardConfig()).parts["facts_told"] == 0.0
    assert score_checks(check, half, SHAPED).reward == pytest.approx(0.4 * 2 / 3)
    full = EpisodeEvidence("x", True, [server_call("a")], told=(True, True))
    assert score_checks(check, full, RewardConfig()).reward == 1.0


def test_state_true_at_start_gives_no_progress() -> None:
    check = TaskCheck(state=(StateCheck(tool="x", not_contains="a"), StateCheck(tool="x", not_contains="b")))
    assert (
        checks_progress(check, EpisodeEvidence("", True, [], states=(True, False), states_before=(True, False))) == 0.0
    )
    assert (
        checks_progress(check, EpisodeEvidence("", True, [], states=(True, True), states_before=(True, False))) == 0.5
    )


@pytest.mark.parametrize(
    "check", [{}, {"calls": {"forbidden": [{"tool": "x"}]}}, {"answer": {"text": "a", "number": 1}}]
)
def test_trivial_or_ambiguous_check_is_rejected(check: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MCPTask.model_validate({"id": "t", "prompt": "Hi.", "check": check})


CALLS = st.builds(
    lambda tool, refused, amount: ServerCall("s", tool, {"amount": amount}, refused),
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
def test_extra_call_never_increases_reward(
    must: list[CallPattern],
    ordered: bool,
    may: list[CallPattern] | None,
    must_not: list[CallPattern],
    calls: list[ServerCall],
    data: st.DataObject,
) -> None:
    allowed = None if may is None else tuple(may)
    check = TaskCheck(
        calls=CallsCheck(required=tuple(must), ordered=ordered, allowed=allowed, forbidden=tuple(must_not))
    )
    strangers = [
        call for call in (server_call("z"), server_call("z", refused=True)) if not any(p.matches(call) for p in must)
    ]
    further = data.draw(st.sampled_from([*calls, *strangers] or [server_call("z", refused=True)]))
    after = calls.index(further) + 1 if further in calls else 0
    place = data.draw(st.integers(after, len(calls)))
    before = EpisodeEvidence("", False, calls)
    longer = EpisodeEvidence("", False, [*calls[:place], further, *calls[place:]])
    assert (
        score_checks(check, longer, SHAPED).reward
        <= score_checks(check, before, SHAPED).reward
        <= SHAPED.max_partial_reward
    )


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        (0.00005, "The probability is 0.00005."),
        (1e15, "There are 1,000,000,000,000,000 cells."),
        (12345678901234567, "It is 12345678901234567."),
    ],
)
def test_very_small_and_very_large_numbers_are_found(number: float, answer: str) -> None:
    assert AnswerCheck(number=number).passes(answer)
    assert not AnswerCheck(number=2 * number).passes(answer)


@pytest.mark.parametrize(
    "answer", ['[{"amount": 29}]', "[{'amount': 29}]", "Here:\n{'amount': 29}", "(29) [29, 3]\n[29]"]
)
def test_printed_rows_state_no_number(answer: str) -> None:
    assert not AnswerCheck(number=29).passes(answer)
    assert AnswerCheck(number=29).passes("There are 29 [of them].")
