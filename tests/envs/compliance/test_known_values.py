"""Tests of the amounts and ids that an agent may state."""

import pytest

from understudy.core.messages import Message, ToolCall
from understudy.envs.compliance.known_values import KnownValues

PAY = ToolCall(name="pay", arguments={"card": "c55"})
KNOWN = KnownValues(
    [
        Message(role="user", content="It is order W17."),
        Message(
            role="assistant", content="I see 900.00.", tool_calls=(ToolCall(name="pay", arguments={"card": "c55"}),)
        ),
        Message(role="tool", content="price 31.25, fee 20.00"),
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
    ],
)
def test_amounts_are_shown_or_follow_from_two_that_are(text: str, sentence: str, known: bool) -> None:
    assert KNOWN.has_amounts(text, sentence) == known


def test_unknown_id_has_the_form_of_a_known_one() -> None:
    assert KNOWN.find_unknown_id(" order w18 with card c55") == "w18"
    assert KNOWN.find_unknown_id(" flight ka482") == ""
