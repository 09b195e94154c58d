"""Graders: what counts as told, and what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.messages import Message, ToolCall
from understudy.records import Record
from understudy.rewards import MOST_DIGITS, SPARE_NUMBERS, numbers, product, said, said_outputs, same_state
from understudy.state import State, Table


def told(text: str, outputs: tuple[str, ...], shown: str = "") -> float:
    transcript = [Message(role="tool", content=shown), Message(role="assistant", content=text)]
    return said_outputs(transcript, outputs)


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        ("49.90", "That is $49.90."),
        ("49.90", "That is 49.9 dollars"),
        ("1200.5", "It costs $1,200.50, all in all."),
        ("1,200.50", "It costs 1200.5"),
        ("-3", "the balance is -3"),
        ("7", "7"),
        ("delivered", "It was DELIVERED."),
        ("order W1042", "Your order W1042, dear"),
        ("cancelled|canceled", "It is canceled."),
        ("12 Oak Street, Denver 80202", "It goes to 12 Oak Street, Denver 80202."),
    ],
)
def test_said(fact: str, text: str) -> None:
    assert said(fact, text)


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        ("49.90", "That is 49.91"),
        ("49.90", "That is 149.90"),
        ("9", "That is 4.9"),
        ("1042", "order W1042"),
        ("41", "card_41"),
        ("3", "-3"),
        ("2024", "12024, 20240"),
        ("delivered", "undelivered"),
        ("delivered", "delivered_at"),
        ("W104", "W1042"),
        ("a|b", "ab"),
        ("a.c", "abc"),
    ],
)
def test_not_said(fact: str, text: str) -> None:
    assert not said(fact, text)


def test_numbers() -> None:
    assert numbers("2 lamps at $1,200.50 and 3.5, W12 i3 card_4; 2.0") == {2.0, 1200.5, 3.5}


def test_dates_and_times_hold_no_numbers() -> None:
    assert numbers("On 2026-03-05 at 10:30, or at 9:05: 40.00.") == {40.0}
    assert not said("5", "On 2026-03-05 at 5:30.")
    assert said("5", "5, not 2026-03-05.")
    assert said("2026-03-05", "On 2026-03-05.")


@given(st.decimals(0, 10**6, places=2))
def test_amounts_are_said_in_any_of_their_forms(amount: object) -> None:
    assert said(f"{amount}", f"You paid ${amount:,}.")
    assert said(f"{amount:,}", f"{amount}")


def test_a_word_has_to_be_shown_first() -> None:
    assert told("It is delivered.", ("delivered",), shown='{"status":"delivered"}') == 1.0
    assert told("It is delivered.", ("delivered",), shown='{"status":"shipped"}') == 0.0
    late = [Message(role="assistant", content="It is delivered."), Message(role="tool", content="delivered")]
    assert said_outputs(late, ("delivered",)) == 0.0


def test_a_number_may_be_worked_out() -> None:
    assert told("20.00 + 9.90 is 29.90.", ("29.90",), shown="20.00 9.90") == 1.0


@given(st.integers(0, 40))
def test_a_number_in_a_long_list_does_not_count(others: int) -> None:
    text = "It is 29.90. " + " ".join(str(100 + n) for n in range(others))
    assert told(text, ("29.90",)) == float(others <= SPARE_NUMBERS)


@given(st.integers(0, 40))
def test_a_word_among_many_numbers_does_not_count(others: int) -> None:
    text = "It is delivered. " + " ".join(str(100 + n) for n in range(others))
    assert told(text, ("delivered",), shown="delivered") == float(others <= MOST_DIGITS)


def test_each_output_may_be_told_in_a_text_of_its_own() -> None:
    transcript = [
        Message(role="tool", content="delivered"),
        Message(role="assistant", content="It is delivered."),
        Message(role="user", content="And the price? 5?"),
        Message(role="assistant", content="It was 12.00."),
    ]
    assert said_outputs(transcript, ("delivered", "12.00")) == 1.0
    assert said_outputs(transcript, ("delivered", "12.00", "5")) == 0.0
    assert said_outputs(transcript, ()) == 1.0


def test_only_what_reaches_the_user_is_told() -> None:
    beside = Message(role="assistant", content="It is 12.00.", tool_calls=(ToolCall(name="f"),))
    for message in (beside, Message(role="user", content="It is 12.00."), Message(role="tool", content="12.00")):
        assert said_outputs([message], ("12.00",)) == 0.0


class Row(Record):
    n: int


class Rows(State):
    rows: Table[Row]
    who: str = ""


def test_same_state() -> None:
    gold, state = Rows(rows={"a": Row(n=1)}), Rows(rows={"a": Row(n=1)})
    gold.rows["a"], gold.who = Row(n=2), "me"
    assert same_state(state, gold.changes()) == 0.0
    state.rows["a"] = Row(n=2)
    assert same_state(state, gold.changes()) == 0.0
    state.who = "me"
    assert same_state(state, gold.changes()) == 1.0
    state.rows["b"] = Row(n=1)
    assert same_state(state, gold.changes()) == 0.0


def test_the_reward_is_strict() -> None:
    assert product({"a": 1.0, "b": 1.0}).reward == 1.0
    assert product({"a": 1.0, "b": 0.0}).reward == 0.0
    assert product({}).reward == 1.0
