"""Tests of the amounts and ids that an agent may state."""

import pytest

from understudy.core.messages import Message, ToolCall
from understudy.envs.compliance.values import KnownValues

PAY = ToolCall(name="pay", arguments={"card": "c55"})
KNOWN = KnownValues(
    [
        Message(role="user", content="It is order W17."),
        Message(
            role="assistant", content="I see 900.00.", tool_calls=(ToolCall(name="pay", arguments={"card": "c55"}),)
        ),
        Message(role="tool", content="price 31.25, fee 20.00, open till 18:48"),
    ]
)


@pytest.mark.parametrize(
    ("text", "sentence", "known"),
    [
        (" 31.25", "", True),
        (" 51.25 in all", "", True),
        (" 11.25 less", "", True),
        (" 62.50", "for 2 aprons", True),
        (" 62.50", "", False),
        (" 900.00", "", False),
        (" to card c55", "", True),
        (" to card c56", "", False),
        (" 3 times", "", True),
        (" 51.25 to your card", "", True),
        (" $51.25", "", True),
        (" 40 to your card", "for 2 aprons", True),
    ],
)
def test_amounts_are_shown_or_follow_from_two_that_are(text: str, sentence: str, known: bool) -> None:
    assert KNOWN.has_amounts(text, sentence) == known


def test_unknown_id_has_the_form_of_a_known_one() -> None:
    assert KNOWN.find_unknown(" order w18 with card c55") == "w18"
    assert KNOWN.find_unknown(" flight ka482") == ""


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        (" on 2026-03-04", ""),
        (" on 2026-03-05", ""),
        (" on 2026-03-06", "2026-03-06"),
        (" to 48 maple street", "48 maple street"),
        (" to 12 hill road, denver", ""),
        (" to 12 hill rd", ""),
    ],
)
def test_dates_and_addresses_must_be_named(text: str, unknown: str) -> None:
    said = "I live at 12 Hill Road, and move on March 5th. It is 2026-03-04, 18:48."
    known = KnownValues([Message(role="user", content=said)])
    assert known.find_unknown(text) == ("" if "2026" in unknown else unknown)
    assert bool(known.find_unknown_date(text)) == ("2026" in unknown)


def test_policy_explains_an_amount_only_beside_an_amount_of_the_sentence() -> None:
    policy = Message(role="system", content="A bag costs 40.00 each.")
    known = KnownValues([policy, Message(role="tool", content="paid 460.00, 10.00 and 30.00")])
    for sentence, found in (("", False), ("500.00, 40.00 for a bag", True), ("a fee of 500.00", False)):
        assert known.has_amounts(" 500.00", sentence) == found
    assert known.has_amounts(" 490.00", "for 490.00")
    assert not known.has_amounts(" 490.00", "an extra 490.00")
