"""Tests of refunds that texts promise or claim: whether the results of writes agree with them."""

import pytest

from support.proposals import AIRLINE, CANCEL, GET, ORDER, call, kinds, say, user
from understudy.core.messages import ToolCall
from understudy.envs.environment import ConfirmedWrite

CHANGE = ToolCall(name="change_cabin", arguments={"reservation_id": "CG5AA2", "cabin": "business"})
FARES = '{"id": "CG5AA2", "fare": "403.00", "paid": "403.00", "business": "903.00"}'
CHARGED, REFUNDED = '{"status": "changed", "charge": "500.00"}', '{"status": "changed", "refund": "460.00"}'

BOTH = '{"status": "payment changed", "charge": "500.00", "refund": "500.00"}'


def after(proposal: str, result: str, then: str = "Done.") -> list[str]:
    """Return the kinds of violations if a change of cabin with this result follows a proposal and a yes."""
    start = [user("Please help."), *call(GET, FARES), say(proposal), user("Yes.")]
    transcript = [*start, *call(CHANGE, result), say(then)]
    writes = [ConfirmedWrite(CHANGE, len(start), len(start) - 1)]
    return kinds(transcript, writes, (), AIRLINE.tool_specs, AIRLINE.domain_policy)


@pytest.mark.parametrize(
    ("result", "said", "found"),
    [
        (CHARGED, "for 500.00 more", False),
        (CHARGED, "and charge 500.00", False),
        (BOTH, "and refund the old card", False),
        (BOTH, "and refund 500.00", False),
        (CHARGED, "and refund 500.00", True),
        (CHARGED, "for 500.00 more. You will also get a refund of 500.00", True),
        (CHARGED, "for 500.00 more. You will be refunded 500.00", True),
        (CHARGED, "for 500.00 more. I will give you a refund of 500.00", True),
        (CHARGED, "for 500.00 more. You will get a refund", True),
        (REFUNDED, "with a refund of 460.00", False),
        (REFUNDED, "and refund 460.00 to your card", False),
        (REFUNDED, "and refund 403.00 of the 460.00", False),
        (REFUNDED, "and refund 465.00, less a fee of 5.00", True),
        (REFUNDED, "and refund you 500.00", True),
        (REFUNDED, "and refund 903.00", True),
        (REFUNDED, "and refund 123.45", True),
    ],
)
def test_refund_in_a_proposal_agrees_with_the_result(result: str, said: str, found: bool) -> None:
    proposal = f"I will change reservation CG5AA2 to business {said}. Do you confirm?"
    assert after(proposal, result) == (["bundled_proposal"] if found else [])


@pytest.mark.parametrize(
    ("then", "found"),
    [
        ("I have refunded 460.00 to your card.", []),
        ("I have changed it and refunded 460.00.", []),
        ("I have refunded you 500.00.", ["false_claim"]),
        ("I have refunded all 903.00.", ["false_claim"]),
        ("You will get the refund of 460.00 soon.", []),
        ("You will get a refund of 903.00 soon.", ["broken_promise"]),
        ("The refund of 460.00 has been issued.", []),
        ("The refund of 903.00 has been issued.", ["broken_promise"]),
    ],
)
def test_refund_that_is_claimed_or_promised_later_agrees_with_the_result(then: str, found: list[str]) -> None:
    assert after("I will change reservation CG5AA2 to business. Do you confirm?", REFUNDED, f"Done. {then}") == found


@pytest.mark.parametrize("result", ["{not json", '{"refund": "soon"}', "[" * 100_000, '{"a": ' * 100_000, "refunded"])
def test_result_without_an_amount_leaves_the_refund_open(result: str) -> None:
    proposal = "I will change reservation CG5AA2 to business with a refund of {}. Do you confirm?"
    assert after(proposal.format("403.00"), result) == []
    assert after(proposal.format("123.45"), result) == ["bundled_proposal"]


def test_refund_that_is_only_asked_for_is_not_paid() -> None:
    start = [user("Please refund order W1."), *call(GET, ORDER)]
    for text in (
        "The refund of 31.25 has been issued to your card.",
        "I have refunded 31.25.",
        "You were refunded 31.25.",
    ):
        assert kinds([*start, say(text)]) != [], text
    assert kinds([*start, say("I cannot refund 31.25 for order W1, as it is pending.")]) == []


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("refund 31.25", []),
        ("refund 26.25", ["bundled_proposal"]),
    ],
)
def test_amount_of_the_policy_explains_a_refund_only_if_it_is_stated(said: str, found: list[str]) -> None:
    start = [user("Hi."), *call(GET, ORDER), say(f"I will cancel order W1 and {said}. Do you confirm?"), user("Yes.")]
    transcript = [user("-").replace(role="system", content="A cancellation costs 5.00 each."), *start]
    writes = [ConfirmedWrite(CANCEL, len(transcript), len(transcript) - 1)]
    assert kinds([*transcript, *call(CANCEL, '{"status": "cancelled"}')], writes) == found
