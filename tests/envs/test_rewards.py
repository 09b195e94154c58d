"""Tests of the graders: which texts state a fact, and when the state matches gold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.core.errors import RolloutError
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.envs.rewards import (
    MAX_WORDS_IN_A_ROW,
    FactRules,
    call_key,
    calls_match,
    calls_progress,
    extract_numbers,
    find_fact_rules,
    missing_facts,
    product_score,
    state_match,
    states_fact,
    to_score,
)
from understudy.envs.state import State, Table


def tells(text: str, outputs: tuple[str, ...], shown: str = "") -> bool:
    """Return whether a text tells all outputs after a result has shown something."""
    transcript = [Message(role="tool", content=shown), Message(role="assistant", content=text)]
    return not missing_facts(transcript, outputs)


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        ("49.90", "That is $49.90."),
        ("49.90", "That is 49.9 dollars"),
        ("49.90", "That is USD49.90"),
        ("2026-03-05", "It was on Mar. 5, 2026."),
        ("2:05 PM", "It departs at 14:05."),
        ("1200.5", "It costs $1,200.50, all in all."),
        ("1,200.50", "It costs 1200.5"),
        ("-3", "the balance is -3"),
        ("7", "7"),
        ("0.34613|0.35", "It rose by 0.350%."),
        ("0.34613|0.35", "It rose by 0.34613 percent."),
        ("delivered", "It was DELIVERED."),
        ("order W1042", "Your order W1042, dear"),
        ("cancelled|canceled", "It is canceled."),
        ("12 Oak Street, Denver 80202", "It goes to 12 Oak Street, Denver 80202."),
        ("$12", "The refund is $12."),
        ("$12", "It is $12, as you said."),
        ("5 kg", "Weights: 3, 5 kg."),
        ("v1.2", "Use v1.2."),
        ("non-refundable", "This fare is non-refundable."),
    ],
)
def test_states_fact_accepts_matching_text(fact: str, text: str) -> None:
    assert states_fact(fact, text)


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        ("49.90", "That is 49.91"),
        ("49.90", "That is 149.90"),
        ("9", "That is 4.9"),
        ("0.34613|0.35", "It rose by 0.346."),
        ("1042", "order W1042"),
        ("41", "card_41"),
        ("3", "-3"),
        ("2024", "12024, 20240"),
        ("delivered", "undelivered"),
        ("delivered", "delivered_at"),
        ("W104", "W1042"),
        ("a|b", "ab"),
        ("a.c", "abc"),
        ("$12", "The refund is $12.99."),
        ("$1", "The refund is $1,200."),
        ("5 kg", "It weighs 12.5 kg."),
        ("200 kg", "It weighs 1,200 kg."),
        ("5%", "It is 12.5%."),
        ("$1,200", "It costs $1,200.50."),
        ("v1.2", "Use v1.2.3."),
        ("192.168.1.1", "192.168.1.1.7"),
        ("refundable", "This fare is non-refundable."),
        ("refundable|may be refunded", "It is non refundable."),
    ],
)
def test_states_fact_rejects_near_match(fact: str, text: str) -> None:
    assert not states_fact(fact, text)


@pytest.mark.parametrize(("fact", "text", "stated"), [(12.5, "12.50 m", True), (7, "7 pens", True), (7, "17", False)])
def test_states_fact_takes_a_number(fact: float, text: str, stated: bool) -> None:
    assert states_fact(fact, text) == stated


def test_extract_numbers_skips_identifiers() -> None:
    assert extract_numbers("2 lamps at $1,200.50 and 3.5, W12 i3 card_4; 2.0") == {2.0, 1200.5, 3.5}


def test_dates_and_times_are_not_numbers() -> None:
    assert extract_numbers("On 2026-03-05 at 10:30, or at 9:05: 40.00.") == {40.0}
    assert extract_numbers("On 03/05/2026 at 2:30pm: 40.00.") == {40.0}
    assert not states_fact("5", "On 2026-03-05 at 5:30.")
    assert states_fact("5", "5, not 2026-03-05.")
    assert states_fact("2026-03-05", "On 2026-03-05.")


@given(st.decimals(0, 10**6, places=2))
def test_amounts_match_with_and_without_separators(amount: object) -> None:
    assert states_fact(f"{amount}", f"You paid ${amount:,}.")
    assert states_fact(f"{amount:,}", f"{amount}")


def test_word_counts_only_after_tool_has_shown_it() -> None:
    assert tells("It is delivered.", ("delivered",), shown='{"status":"delivered"}')
    assert not tells("It is delivered.", ("delivered",), shown='{"status":"shipped"}')
    late = [Message(role="assistant", content="It is delivered."), Message(role="tool", content="delivered")]
    assert missing_facts(late, ["delivered"]) == ["delivered"]


@given(st.integers(0, 40))
def test_a_number_in_a_long_list_does_not_count(others: int) -> None:
    text = "It is 29.90. " + " ".join(str(100 + n) for n in range(others))
    assert tells(text, ("29.90",), shown="29.90") == (others == 0)


@given(st.integers(0, 40))
def test_a_word_among_many_numbers_does_not_count(others: int) -> None:
    text = "It is delivered. " + " ".join(str(100 + n) for n in range(others))
    assert tells(text, ("delivered",), shown="delivered") == (others <= MAX_WORDS_IN_A_ROW)


def test_outputs_may_be_stated_in_separate_messages() -> None:
    transcript = [
        Message(role="tool", content="delivered, 12.00, 5"),
        Message(role="assistant", content="It is delivered."),
        Message(role="user", content="And the price? 5?"),
        Message(role="assistant", content="It was 12.00."),
    ]
    assert missing_facts(transcript, ["delivered", "12.00"]) == []
    assert missing_facts(transcript, ["delivered", "12.00", "5"]) == ["5"]
    assert missing_facts(transcript, []) == []


def test_only_text_sent_to_user_counts_as_stated() -> None:
    beside = Message(role="assistant", content="It is 12.00.", tool_calls=(ToolCall(name="f"),))
    for message in (beside, Message(role="user", content="It is 12.00."), Message(role="tool", content="12.00")):
        assert missing_facts([message], ["12.00"]) == ["12.00"]


class Row(Record):
    n: int


class Rows(State):
    rows: Table[Row]
    who: str = ""


def test_state_match_requires_same_changes_as_gold() -> None:
    gold, state = Rows(rows={"a": Row(n=1)}), Rows(rows={"a": Row(n=1)})
    gold.rows["a"], gold.who = Row(n=2), "me"
    assert state_match(state, gold.changes()) == 0.0
    state.rows["a"] = Row(n=2)
    assert state_match(state, gold.changes()) == 0.0
    state.who = "me"
    assert state_match(state, gold.changes()) == 1.0
    state.rows["b"] = Row(n=1)
    assert state_match(state, gold.changes()) == 0.0


def test_sum_of_parts_that_rounds_to_about_one_is_one() -> None:
    """Before Python 3.12, ten times 0.1 is 0.9999999999999999."""
    assert [to_score(x).reward for x in (0.9999999999999999, 1.0000000000000002, 0.999)] == [1.0, 1.0, 0.999]
    with pytest.raises(RolloutError):
        to_score(1.001)


def test_reward_is_product_of_parts() -> None:
    assert product_score({"a": 1.0, "b": 1.0}).reward == 1.0
    assert product_score({"a": 1.0, "b": 0.0}).reward == 0.0
    assert product_score({}).reward == 1.0


def read(text: str, result: str, error: bool = False, **arguments: object) -> list[Message]:
    """Return a call with its result, and then a text of the agent."""
    call = Message(role="assistant", tool_calls=(ToolCall(name="f", arguments=arguments),))
    answer = Message(role="tool", content=f"Error: {result}" if error else result)
    return [call, answer, Message(role="assistant", content=text)]


def test_number_must_be_shown_before_it_is_told() -> None:
    told, shown = Message(role="assistant", content="It is 12."), Message(role="tool", content='{"total": 12.0}')
    assert missing_facts([told], ["12"]) == missing_facts([told, shown], ["12"]) == ["12"]
    assert missing_facts([shown, told], ["12"]) == []


@pytest.mark.parametrize("fact", ["delivered", "12.50"])
def test_errors_and_echoes_show_nothing(fact: str) -> None:
    text = f"It is {fact}."
    assert missing_facts(read(text, f"it is {fact}"), [fact]) == []
    assert missing_facts(read(text, f"unknown tool {fact}", error=True), [fact]) == [fact]
    assert missing_facts(read(text, f"noted: {fact}", note=f"{fact}, or so"), [fact]) == [fact]
    assert missing_facts(read(text, f"noted: {fact}", deep=[{"note": fact}]), [fact]) == [fact]
    assert missing_facts(read(text, f"it is {fact}", note="something else"), [fact]) == []


@pytest.mark.parametrize(
    ("expression", "value", "missing"),
    [
        ("20.00 + 9.90", "29.90", []),
        ("(9.90 + 4.95 + 0.10) * 2", "29.90", ["29.90"]),
        ("29.90", "29.90", ["29.90"]),
        ("29.90 + 0", "29.90", ["29.90"]),
        ("8 * 3 + 5 + 9/10", "29.90", ["29.90"]),
        ("29.80 + 0.10", "29.90", ["29.90"]),
    ],
)
def test_calculation_shows_its_result_if_its_terms_are_known(expression: str, value: str, missing: list[str]) -> None:
    prices = [Message(role="tool", content='{"items": [{"price": "20.00"}, {"price": "9.90"}]}')]
    assert missing_facts([*prices, *read("It is 29.90.", value, expression=expression)], ["29.90"]) == missing


def test_number_that_gold_calculates_may_be_worked_out_from_its_terms() -> None:
    prices = [Message(role="tool", content="20.00 and 9.90")]
    rules = find_fact_rules([*prices, *read("It is 29.90.", "29.90", expression="20.00 + 9.90")], ["29.90"])
    assert rules.evidence == {"29.90": ("20", "9.9")}
    told = Message(role="assistant", content="20.00 + 9.90 is 29.90.")
    assert missing_facts([*prices, told], ["29.90"], rules) == []
    assert missing_facts([Message(role="tool", content="20.00"), told], ["29.90"], rules) == ["29.90"]


def test_number_of_the_policy_needs_some_successful_call() -> None:
    gold = [Message(role="tool", content="suspended"), Message(role="assistant", content="At most 90 days.")]
    rules = find_fact_rules(gold, ["90"])
    assert missing_facts(gold, ["90"], rules) == []
    assert missing_facts(gold[1:], ["90"], rules) == ["90"]
    assert missing_facts([Message(role="tool", content="Error: no 90"), gold[1]], ["90"], rules) == ["90"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("It is not delivered.", False),
        ("It hasn't been delivered.", False),
        ("It was never delivered.", False),
        ("It's not pending, it is delivered.", True),
        ("It cannot be cancelled because it is delivered.", True),
        ("It was not only delivered but also unpacked.", True),
        ("I can't cancel it: delivered.", True),
        ("Delivered orders like W1 aren't eligible for this, so I can't cancel it.", True),
        ("It is delivered, and you don't have a second one.", True),
    ],
)
def test_denied_word_is_not_told(text: str, told: bool) -> None:
    assert (missing_facts(read(text, "delivered"), ["delivered"]) == []) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("It is not 12.50.", False),
        ("It does not cost 12.50.", False),
        ("The total does not come to exactly $12.50.", False),
        ("The plan is not priced at 12.50.", False),
        ("It does not cost 20.00, it costs 12.50.", False),
        ("It isn't $12.50", False),
        ("It is 12.50, not 13.50.", False),
        ("It does not cost more than 12.50.", True),
        ("It can't exceed 12.50", True),
        ("It is approximately 12.50.", True),
        ("The estimated price is 12.50.", True),
    ],
)
def test_denied_number_is_not_told(text: str, told: bool) -> None:
    assert (missing_facts(read(text, "12.50"), ["12.50"]) == []) == told


def test_nothing_must_be_shown_if_gold_makes_no_call() -> None:
    told = [Message(role="assistant", content="The lamp takes 71 W, so it is bright.")]
    rules = find_fact_rules(told, ["71", "bright"])
    assert missing_facts(told, ["71", "bright"], rules) == []
    untold = [Message(role="assistant", content="I do not know.")]
    assert missing_facts(untold, ["71", "bright"], rules) == ["71", "bright"]


def test_what_gold_denies_is_told_by_denying_it() -> None:
    gold = read("It is not available, so I cannot change it.", "available: false")
    rules = find_fact_rules(gold, ["available|in stock"])
    assert missing_facts(gold, ["available|in stock"], rules) == []
    for negative in ("no telehealth", "not on file"):
        assert missing_facts(read(f"There is {negative} visit.", negative), [negative]) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("It is pending, shipped, delivered or cancelled.", False),
        ("It is pending. It is shipped. It is delivered. It is cancelled.", False),
        ("It can be pending, it can be shipped, it can be delivered, it can be cancelled.", False),
        ("It was shipped and is delivered.", False),
        ("It is delivered. Only pending orders can be cancelled, I am sorry.", True),
        ("It is delivered.", True),
    ],
)
def test_list_of_candidates_tells_none(text: str, told: bool) -> None:
    candidates = ("pending", "shipped", "delivered", "cancelled|canceled")
    transcript = read(text, "pending shipped delivered cancelled")
    assert (missing_facts(transcript, ["delivered"], FactRules(candidates=candidates)) == []) == told


def test_calls_match_as_a_multiset() -> None:
    a, b = ToolCall(name="a", arguments={"x": 1}, id="1"), ToolCall(name="b", arguments={"y": "Z"})
    assert calls_match([b, a, a], [a, b, a]) == 1.0
    assert calls_match([a, b], [a, b, a]) == calls_match([a, b, b], [a, b, a]) == calls_match([], [a]) == 0.0
    assert calls_progress([a, b, b], [a, b, a]) == (2, 4)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ({"x": 1}, {"x": 1.0}, True),
        ({"x": 1}, {"x": True}, False),
        ({"x": 1}, {"x": "1"}, False),
        ({"x": 0.5}, {"x": 0.50000001}, False),
        ({"x": "No  longer needed "}, {"x": "no longer needed"}, True),
        ({"x": "W17"}, {"x": "W18"}, False),
        ({"x": None, "y": 1}, {"y": 1}, True),
        ({"x": [1, 2]}, {"x": [2, 1]}, False),
        ({"x": {"a": [{"b": 2}], "c": None}}, {"x": {"a": [{"b": 2.0}]}}, True),
        ({}, {"x": ""}, False),
    ],
)
def test_arguments_are_equal_by_value(left: dict[str, object], right: dict[str, object], equal: bool) -> None:
    keys = [call_key(ToolCall(name="t", arguments=each)) for each in (left, right)]
    assert (keys[0] == keys[1]) == equal


RECORD = '{"status": "placed", "refund": "6.00"}'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("You save 6.00.", True),
        ("6.00", True),
        ("The order is placed, and you save 6.00.", True),
        ('{"saved": "6.00"}', True),
        (RECORD, False),
        ('{"status":"placed","refund":"6.00"}', False),
        (f"Here it is: {RECORD}", False),
        (f"[{RECORD}]", False),
    ],
)
def test_repeating_a_json_result_tells_nothing(text: str, told: bool) -> None:
    assert tells(text, ("6.00",), RECORD) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("330.00", True),
        ("110.00 * 3 = 330.00", True),
        ("Each visit is 110.00, so three are 330.00.", True),
        ("110.00 330.00", False),
        ("110.00, 330.00", False),
        ("$110.00 / $330.00", False),
    ],
)
def test_bare_list_of_numbers_tells_none(text: str, told: bool) -> None:
    assert tells(text, ("330.00",), "a visit is 110.00, three are 330.00") == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Suspended, reason: long trip", True),
        ("Line 555-4042 suspended: long trip", True),
        ("Your line on the Smart plan is suspended for a long trip until you resume it", True),
        ("name Ruth Nash lines plan Smart contract_until suspended long trip seen no", False),
    ],
)
def test_words_without_grammar_tell_none(text: str, told: bool) -> None:
    assert tells(text, ("long trip",), "suspended: long trip") == told


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["It is delivered."], False),
        (["It is delivered.", "That one is delivered too."], True),
        (["W1 is delivered, and W2 is delivered."], True),
        (["Both orders are delivered."], True),
    ],
)
def test_a_fact_that_answers_two_questions_is_told_twice_or_of_both(texts: list[str], told: bool) -> None:
    transcript = read(texts[0], "delivered")
    transcript += [Message(role="assistant", content=text) for text in texts[1:]]
    assert (missing_facts(transcript, ["delivered", "delivered"]) == []) == told
    assert missing_facts(transcript, ["delivered"]) == []


@pytest.mark.parametrize(
    "text",
    [
        "The claim that it is 12.00 has no basis whatsoever.",
        "Somebody told me 12.00, but I don't believe it.",
        "I understand you were hoping for 12.00, but sadly that isn't the case.",
        "The value 12.00 could not be verified.",
        "I don't think it is 12.00.",
        "12.00 belongs to a different customer.",
        "It is 12.00. Oops, I meant something else.",
        "It is 12.00. Actually no, make that the other amount.",
    ],
)
def test_doubted_or_corrected_facts_are_not_told(text: str) -> None:
    assert not tells(text, ("12.00",), "12.00")


@pytest.mark.parametrize(
    "text", ["Shall I add it for 12.00?", "Add it for 12.00: yes or no?", "I must decline: it is 12.00."]
)
def test_price_in_a_proposal_is_told(text: str) -> None:
    assert tells(text, ("12.00",), "12.00")
