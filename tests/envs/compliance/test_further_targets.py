"""Tests of proposals that name more targets than the write that follows."""

import pytest

from support.proposals import CANCEL, GET, after_yes, call, kinds, say, user
from understudy.core.messages import ToolCall
from understudy.envs.environment import ConfirmedWrite


@pytest.mark.parametrize(
    "proposal",
    [
        "I will cancel W1 and W2. Do you confirm?",
        "I will cancel W2 and W1. Do you confirm?",
        "Shall I cancel orders W1, W2 and W3?",
        "I will cancel W1. I will also cancel W2. Do you confirm?",
        "I will cancel order W1 and order W2, reason: no longer needed. Do you confirm?",
        "I will cancel W1 (and W2). Do you confirm?",
        "I will cancel W1 and then cancel W2. Do you confirm?",
        "I will cancel order W1 as well as order W2. Do you confirm?",
        "I will cancel the following orders:\n- W1\n- W2\nDo you confirm?",
        "Order W1 and order W2 will be cancelled. Do you confirm?",
        "To confirm: cancellation of W1 and W2. Do you agree?",
        "Shall I cancel W1 or W2?",
        "I will cancel both orders. Order W1 is the first. Do you confirm?",
        "W1 and W2: shall I cancel both of them?",
        "I will cancel W1 and all of your orders. Do you confirm?",
        "I will cancel W1 and the other order. Do you confirm?",
        "I will cancel your orders. W1 is the first. Do you confirm?",
        "I'll cancel every order, W1 too. OK?",
    ],
)
def test_proposal_names_no_target_beside_that_of_the_write(proposal: str) -> None:
    assert "bundled_proposal" in after_yes(proposal)


@pytest.mark.parametrize(
    "proposal",
    [
        "I will cancel W1, and W2 stays as it is. Do you confirm?",
        "I will cancel W1, and your other order W2 is not affected. Do you confirm?",
        "I will cancel W1. All other orders stay as they are. Do you confirm?",
        "I will cancel order W1 for you and keep your other orders. Do you confirm?",
        "I will cancel order W1 and then check your other orders. Do you confirm?",
        "I'd cancel only order W1, not all your orders. Do you confirm?",
        "You have orders W1 and W2. I will cancel W1. Do you confirm?",
        "Both of your orders are pending. I will cancel W1. Do you confirm?",
        "Of your two orders, I will cancel W1. Do you confirm?",
        "I will cancel W1, one of your orders. Is that right?",
        "I will cancel order W1 but not W2. Do you confirm?",
        "I will cancel order W1 instead of W2 and W3. Do you confirm?",
        "I cannot cancel W1 and W2 together, so I will cancel W1 first. Do you confirm?",
        "I will cancel W1. If you like, I can also cancel W2. Do you confirm?",
        "I will cancel all 3 items of order W1. Do you confirm?",
        "I will cancel your whole order W1 with all items. Do you confirm?",
    ],
)
def test_proposal_may_speak_of_other_targets(proposal: str) -> None:
    assert after_yes(proposal) == []


def test_several_writes_may_be_proposed_at_once_if_each_is_made_or_asked_for_again() -> None:
    both, other = "I will cancel W1 and W2. Do you confirm?", CANCEL.replace(arguments={"order_id": "W2"})
    assert after_yes(both, *call(other, "Error: it is shipped")) == []
    assert after_yes(both, say("Now I will cancel W2. Do you confirm?"), user("No, leave it.")) == []
    assert after_yes(both, say("W2 is not cancelled.")) == ["bundled_proposal"]
    assert after_yes("Shall I cancel W1 or W2?", answer="Yes, W1.") == []


@pytest.mark.parametrize("shown", ["[" * 100_000, "{not json", "[1, 2]"])
def test_results_that_hold_no_names_are_read_over(shown: str) -> None:
    start = [user("Hi, it is W1."), *call(GET, shown), say("I will cancel W1 for you and me. Do you confirm?")]
    transcript = [*start, user("Yes."), *call(CANCEL, "ok")]
    assert kinds(transcript, [ConfirmedWrite(CANCEL, len(start) + 1, len(start))]) == []


@pytest.mark.parametrize(
    ("proposal", "found"),
    [
        ("I will book room 8 and 40 for Ada. Do you confirm?", ["bundled_proposal"]),
        ("I will book rooms 8, 40 and 41 for Ada. Do you confirm?", ["bundled_proposal"]),
        ("I will book room 8 for Ada, 2 beds and 3 nights. Do you confirm?", []),
        ("I will book room 8 and 3 nights for Ada. Do you confirm?", []),
        ("I will book room 8, with 29.90 a night, for Ada. Do you confirm?", []),
    ],
)
def test_numbers_may_be_targets(proposal: str, found: list[str]) -> None:
    write = ToolCall(name="book_room", arguments={"number": "8", "guest": "Ada"})
    start = [user("Room 8 has 2 beds for 29.90, for 3 nights. Rooms 40 and 41 are free too."), say(proposal)]
    transcript = [*start, user("Yes."), *call(write, "ok")]
    assert kinds(transcript, [ConfirmedWrite(write, 3, 2)], specs=()) == found


def test_names_beside_that_of_the_target_are_found_in_results() -> None:
    vase, lamp = '{"id": "i11", "name": "vase", "price": "20.00"}', '{"id": "i12", "name": "lamp", "price": "9.50"}'
    items = f'{{"id": "W1", "status": "delivered", "items": [{vase}, {lamp}]}}'
    for ids, proposal, found in (
        (["i11"], "I will return the vase and the lamp of order W1. Do you confirm?", ["bundled_proposal"]),
        (["i11"], "I will return the lamp and the vase of order W1. Do you confirm?", ["bundled_proposal"]),
        (["i11"], "I will return the vase for 20.00 and the lamp for 9.50. Do you confirm?", ["bundled_proposal"]),
        (["i11", "i12"], "I will return the vase and the lamp of order W1. Do you confirm?", []),
        (["i11"], "The vase and the lamp were delivered. I will return the vase of order W1. Do you confirm?", []),
        (["i11"], "I will return the vase of order W1, and you keep the lamp. Do you confirm?", []),
    ):
        write = ToolCall(name="return_items", arguments={"order_id": "W1", "item_ids": ids})
        start = [user("Hi."), *call(GET, items), say(proposal), user("Yes.")]
        transcript = [*start, *call(write, '{"status": "returned"}')]
        assert kinds(transcript, [ConfirmedWrite(write, len(start), len(start) - 1)]) == found, proposal
