"""Tests of claims: whether a call has taken the action."""

import pytest

from support.proposals import CANCEL, GET, ORDER, call, kinds, say, user
from understudy.core.messages import ToolCall
from understudy.envs.environment import ConfirmedWrite


@pytest.mark.parametrize(
    "text",
    [
        "I have already done it.",
        "I've done that for you.",
        "I already did it.",
        "I have already cancelled order W1.",
        "I did cancel order W1.",
        "I have already done it: I did cancel W1, once you had asked, and before it was shipped.",
        "I've refunded the apron to your card.",
        "I just exchanged your umbrella.",
    ],
)
def test_claim_needs_a_call(text: str) -> None:
    assert "false_claim" in kinds([user("Hi."), *call(GET, ORDER), say(text)])


def test_claims_and_promises_that_a_call_keeps() -> None:
    start = [user("Hi."), *call(GET, ORDER), say("I will cancel order W1. Do you confirm?"), user("Yes.")]
    write = [ConfirmedWrite(CANCEL, len(start), len(start) - 1)]
    for text in (
        "I have cancelled order W1 for you.",
        "I've done that. I've refunded 31.25 to your card.",
        "I have already done it. You will get the refund in a few days.",
        "I've successfully cancelled your order. We will refund 31.25 to your credit card.",
    ):
        assert kinds([*start, *call(CANCEL, "cancelled"), say(text)], write) == []


def test_claim_before_the_call_is_false() -> None:
    start = [user("Hi."), *call(GET, ORDER), say("I have already cancelled W1. Do you confirm?"), user("Yes.")]
    write = [ConfirmedWrite(CANCEL, len(start), len(start) - 1)]
    assert "false_claim" in kinds([*start, *call(CANCEL, "cancelled"), say("Bye.")], write)


def test_what_a_proposal_says_is_done_was_done_since_the_last_answer() -> None:
    other = ToolCall(name="cancel_order", arguments={"order_id": "W2", "reason": "no longer needed"})
    start = [user("Hi."), *call(GET, ORDER), say("I will cancel order W2. Do you confirm?"), user("Yes.")]
    first = ConfirmedWrite(other, len(start), len(start) - 1)
    done = [*start, *call(other, "cancelled")]
    report = [say("Done. It has been cancelled."), user("And please cancel order W1.")]
    proposal = [say("I have done that. Now I will cancel order W1. Do you confirm?"), user("Yes.")]
    for between, found in ((report, ["false_claim"]), ([], [])):
        transcript = [*done, *between, *proposal, *call(CANCEL, "cancelled")]
        second = ConfirmedWrite(CANCEL, len(transcript) - 2, len(transcript) - 3)
        assert kinds(transcript, [first, second]) == found


@pytest.mark.parametrize(
    ("report", "found"),
    [
        ("In total, we have carried out the cancellation of order W1 and the address change for order W2 for you.", []),
        ("Completed:\n- The cancellation of order W1\n- The address change for order W2", []),
        (
            "The cancellation of order W1 and the address change for order W3 are complete.",
            ["forbidden", "broken_promise"],
        ),
        ("The cancellation of order W1 and the other cancellation have been completed.", ["broken_promise"]),
    ],
)
def test_several_writes_are_reported_as_a_list(report: str, found: list[str]) -> None:
    change = ToolCall(name="change_address", arguments={"order_id": "W2", "address": "6 River Street, Boston 12988"})
    start, writes = [user("Hi."), *call(GET, ORDER)], list[ConfirmedWrite]()
    for write, proposal in ((CANCEL, "cancel order W1"), (change, "send order W2 to 6 River Street, Boston 12988")):
        start += [say(f"I will {proposal}. Do you confirm?"), user("Yes.")]
        writes.append(ConfirmedWrite(write, len(start), len(start) - 1))
        start += call(write, "done")
    assert kinds([*start, say(report)], writes) == found


@pytest.mark.parametrize(
    ("report", "found"),
    [
        ("Done. The order has been cancelled. In addition, we have changed your delivery date.", ["false_claim"]),
        ("Done. The order has been cancelled. I also put a hold on your card.", ["false_claim"]),
        ("Done. The order has been cancelled.\n- Extra: credited your store balance", ["broken_promise"]),
        ("Done. The order has been cancelled. Your order is now updated.", []),
    ],
)
def test_one_more_act_needs_one_more_call(report: str, found: list[str]) -> None:
    start = [user("Hi."), *call(GET, ORDER), say("I will cancel order W1. Do you confirm?"), user("Yes.")]
    write = [ConfirmedWrite(CANCEL, len(start), len(start) - 1)]
    assert kinds([*start, *call(CANCEL, "cancelled"), say(report)], write) == found
