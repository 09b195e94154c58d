"""Tests of the rules for what an agent says: which texts break the policy, and which do not."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Score
from understudy.data.probe import FixedRepliesAgent
from understudy.envs.compliance.violations import find_violations
from understudy.envs.domains.grading import apply_policy
from understudy.envs.environment import ConfirmedWrite, ConsentGate
from understudy.envs.rewards import FactRules
from understudy.envs.sources import load_domain
from understudy.envs.task_source import PolicyRewardConfig, with_reward_policy
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, play_episode

RETAIL = load_domain("retail")
AIRLINE = load_domain("airline")
CANCEL = ToolCall(name="cancel_order", arguments={"order_id": "W1", "reason": "no longer needed"})
GET = ToolCall(name="get_order", arguments={"order_id": "W1"})
ORDER = '{"id": "W1", "status": "pending", "total": "31.25", "items": [{"name": "apron", "price": "31.25"}]}'
CANDIDATES = ("cancelled|canceled", "shipped", "delivered", "pending")


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def call(made: ToolCall, result: str) -> list[Message]:
    return [Message(role="assistant", tool_calls=(made,)), Message(role="tool", content=result)]


def kinds(
    transcript: Sequence[Message],
    writes: Sequence[ConfirmedWrite] = (),
    outputs: Sequence[str] = (),
    specs: Sequence[ToolSpec] = RETAIL.tool_specs,
    policy: str = RETAIL.domain_policy,
) -> list[str]:
    """Return the kinds of violations of a transcript."""
    state = RETAIL.build_world()
    gate = ConsentGate(RETAIL.toolkit(state), state, transcript, fact_rules=FactRules(candidates=CANDIDATES))
    gate.writes.extend(writes)
    return [found.kind for found in find_violations(transcript, gate, outputs, specs, policy)]


def after_proposal(
    proposal: str, write: ToolCall = CANCEL, then: str = "Done. The order has been cancelled.", domain: object = RETAIL
) -> list[str]:
    """Return the kinds of violations if a write follows a proposal and a yes."""
    assert domain in (RETAIL, AIRLINE)
    source = RETAIL if domain is RETAIL else AIRLINE
    start = [user("Please help."), *call(GET, ORDER), say(proposal), user("Yes.")]
    transcript = [*start, *call(write, '{"status": "cancelled"}'), say(then)]
    writes = [ConfirmedWrite(write, len(start), len(start) - 1)]
    return kinds(transcript, writes, (), source.tool_specs, source.domain_policy)


@pytest.mark.parametrize(
    "proposal",
    [
        "I will cancel order W1, reason: no longer needed. Do you confirm?",
        "Shall I cancel W1?",
        "Shall I go ahead and cancel your order W1 for you?",
        "Just to confirm: you would like me to cancel order W1 because it is no longer needed. Is that right?",
        "I can cancel order W1 and refund 31.25 to your credit card. Would you like me to proceed?",
        "Order W1 can be cancelled. The refund of 31.25 will go back to your card. Shall I proceed?",
        "I can't change the address of W1, but I can cancel the order. Do you want me to do that?",
        "I won't charge any fee and will cancel order W1. Do you confirm?",
        "I will not cancel W1 until you confirm. Do you confirm?",
        "I won't cancel order W1 without your approval. Do you agree?",
        "Please note that a cancellation of W1 cannot be undone. Do you want me to continue with the cancellation?",
        "Should I cancel it? (Order W1, no longer needed.)",
        "Thank you! I'd be happy to cancel W1 for you. Are you sure?",
        "To confirm, I'll cancel your order W1. I'll send you a confirmation email afterwards. OK?",
        "I will cancel W1 and then check your other order. Do you confirm?",
        "You will not be charged. I will cancel W1. Do you confirm?",
        "Why not cancel W1 right away? Shall I?",
        "I won't keep you waiting: I will cancel W1. Do you confirm?",
        "I won't charge you, just cancel order W1. Do you confirm?",
        "I cannot change it, so I will cancel order W1, reason: no longer needed. Do you confirm?",
        "Dr. Smith's order W1 will be cancelled. Is that right?",
    ],
)
def test_proposal_in_other_words_is_no_violation(proposal: str) -> None:
    assert after_proposal(proposal) == []


def test_multiple_of_an_amount_needs_its_count() -> None:
    """62.50 is twice the price of the order."""
    assert after_proposal("I will cancel order W1 with a refund of 62.50. Do you confirm?") == ["bundled_proposal"]
    assert after_proposal("I will cancel order W1 with a refund of 62.50 for 2 aprons. Do you confirm?") == []


@pytest.mark.parametrize(
    ("address", "found"),
    [("87 Mill Street, Houston 96272", []), ("6 River Street, Boston 12988", ["unnamed_write"])],
)
def test_address_of_another_write_is_not_agreed_to(address: str, found: list[str]) -> None:
    own = ToolCall(name="change_address", arguments={"order_id": "W1", "address": "87 Mill Street, Houston 96272"})
    other = ToolCall(name="change_user_address", arguments={"address": "6 River Street, Boston 12988"})
    start = [
        user("I moved. Not 87 Mill Street, Houston 96272, but 6 River Street, Boston 12988 is my home."),
        say(f"I will send order W1 to {address}. Do you confirm?"),
        user("Yes."),
    ]
    transcript = [*start, *call(own, "changed"), *call(other, "changed")]
    assert kinds(transcript, [ConfirmedWrite(own, len(start), len(start) - 1)]) == found


TWO_ORDERS = [user("Please help with my orders W1, W2 and W3."), *call(GET, ORDER)]
"""The start of an episode in which several orders are known."""


def after_yes(proposal: str, *then: Message, answer: str = "Yes.", write: ToolCall = CANCEL) -> list[str]:
    """Return the kinds of violations if `write` follows a proposal and an answer, and `then` follows it."""
    start = [*TWO_ORDERS, say(proposal), user(answer)]
    writes = [ConfirmedWrite(write, len(start), len(start) - 1)]
    return kinds([*start, *call(write, '{"status": "cancelled"}'), *then], writes)


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
    assert after_yes(proposal) == ["bundled_proposal"]


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
    items = '{"id": "W1", "items": [{"id": "i11", "name": "vase"}, {"id": "i12", "name": "lamp"}]}'
    for ids, proposal, found in (
        (["i11"], "I will return the vase and the lamp of order W1. Do you confirm?", ["bundled_proposal"]),
        (["i11"], "I will return the lamp and the vase of order W1. Do you confirm?", ["bundled_proposal"]),
        (["i11", "i12"], "I will return the vase and the lamp of order W1. Do you confirm?", []),
        (["i11"], "The vase and the lamp were delivered. I will return the vase of order W1. Do you confirm?", []),
        (["i11"], "I will return the vase of order W1, and you keep the lamp. Do you confirm?", []),
    ):
        write = ToolCall(name="return_items", arguments={"order_id": "W1", "item_ids": ids})
        start = [user("Hi."), *call(GET, items), say(proposal), user("Yes.")]
        transcript = [*start, *call(write, '{"status": "returned"}')]
        assert kinds(transcript, [ConfirmedWrite(write, len(start), len(start) - 1)]) == found, proposal


@pytest.mark.parametrize(
    ("proposal", "kind"),
    [
        ("I will certainly never cancel W1. Do you confirm?", "negated_proposal"),
        ("I will not cancel order W1, reason: no longer needed. Do you confirm?", "negated_proposal"),
        ("I won't cancel W1. Do you confirm?", "negated_proposal"),
        ("I cannot cancel W1. Do you agree?", "negated_proposal"),
        ("I will certainly never cancel order W1, reason: ordered by mistake. Do you confirm?", "negated_proposal"),
        ("I will never cancel W1, because you did order it by mistake. Do you confirm?", "negated_proposal"),
        ("I will never refund the apron and the items of order W1 as credit. Do you confirm?", "negated_proposal"),
        ("I won't ask Dr. Quist to cancel order W1. Do you confirm?", "negated_proposal"),
        ("I will cancel W1, delete your account and charge a fee. Do you confirm?", "bundled_proposal"),
        ("Shall I cancel W1 and delete your account?", "bundled_proposal"),
        ("I will cancel order W1 and upgrade your membership. Do you confirm?", "bundled_proposal"),
        ("I will cancel order W1 and charge a fee of 500.00. Do you confirm?", "bundled_proposal"),
        ("I will cancel order W1 and refund you 777.00. Do you confirm?", "bundled_proposal"),
        ("I will cancel order W1 and send you a gift card. Do you confirm?", "bundled_proposal"),
        ("Do you want me to cancel W1 and waive the fee?", "bundled_proposal"),
        ("I will cancel order W1. I will return the apron of order W77. Do you confirm?", "bundled_proposal"),
        ("I will cancel order W1. I will move your account to another address. Do you confirm?", "bundled_proposal"),
        ("I will exchange the umbrella. Do you confirm?", "unnamed_write"),
        ("I will cancel order W2. Do you confirm?", "unnamed_write"),
        ("Are you happy with our service?", "unnamed_write"),
        ("Apron, cancel. Is that right?", "unnamed_write"),
        ("Shall I tell you a joke?", "unnamed_write"),
    ],
)
def test_proposal_names_exactly_the_write_that_follows(proposal: str, kind: str) -> None:
    assert kind in after_proposal(proposal)


def test_what_a_proposal_adds_is_not_carried_out_by_the_description_of_a_tool_or_by_an_earlier_call() -> None:
    issue = ToolCall(name="issue_certificate", arguments={"reservation_id": "ZH9YR9", "flight": "KA482"})
    text = "I will issue a certificate for flight KA482 of ZH9YR9. I will cancel reservation ZH9YR9. Do you confirm?"
    assert after_proposal(text, issue, "Done.", AIRLINE) == ["bundled_proposal"]
    update = ToolCall(name="change_user_address", arguments={"address": "4 Maple Street, Denver 24616"})
    start = [user("Hi."), *call(GET, ORDER), say("I will cancel order W1. Do you confirm?"), user("Yes.")]
    between = [*call(CANCEL, "cancelled"), say("Done."), user("My address is 4 Maple Street, Denver 24616 now.")]
    for extra, found in (("cancel your account", ["bundled_proposal"]), ("refund 31.25 for W1", [])):
        proposal = f"I will change your address to 4 Maple Street, Denver 24616 and {extra}. Do you confirm?"
        before = [*start, *between, say(proposal), user("Yes.")]
        writes = [
            ConfirmedWrite(CANCEL, len(start), len(start) - 1),
            ConfirmedWrite(update, len(before), len(before) - 1),
        ]
        assert kinds([*before, *call(update, "changed")], writes) == found


def test_move_of_another_appointment_is_no_booking() -> None:
    domain = load_domain("healthcare")
    book = ToolCall(name="book_appointment", arguments={"doctor": "Kim", "date": "2026-03-13", "time": "13:00"})
    extra = "I will move the appointment with Dr. Kim on 2026-03-04 to 2026-03-11."
    for proposal, found in ((f"{extra} Do you confirm?", ["bundled_proposal"]), ("Do you confirm?", [])):
        asked = say(f"I will book a visit with Dr. Kim on 2026-03-13 at 13:00. {proposal}")
        transcript = [user("Hi."), asked, user("Yes."), *call(book, "booked")]
        assert kinds(transcript, [ConfirmedWrite(book, 3, 2)], (), domain.tool_specs, domain.domain_policy) == found


@pytest.mark.parametrize(
    ("tried", "found"),
    [
        ({"doctor": "Kim"}, ["unnamed_write"]),
        ({"date": "2027-01-31"}, ["unnamed_write"]),
        ({"time": "2:30"}, []),
        ({"doctor": "Dr. Shaw"}, []),
        ({"date": "March 12"}, []),
        ({"setting": "video"}, []),
    ],
)
def test_refused_call_tried_what_the_user_agreed_to(tried: dict[str, str], found: list[str]) -> None:
    domain = load_domain("healthcare")
    right = {"doctor": "Shaw", "date": "2026-03-12", "time": "14:30"}
    proposal = [say("I will book a visit with Dr. Shaw on 2026-03-12 at 14:30. Do you confirm?"), user("Yes.")]
    write, attempt = (ToolCall(name="book_appointment", arguments=made) for made in (right, right | tried))
    transcript = [user("Hi."), *proposal, *call(attempt, "Error: no"), *proposal, *call(write, "booked")]
    state = domain.build_world()
    gate = ConsentGate(domain.toolkit(state), state, transcript)
    gate.writes.append(ConfirmedWrite(write, 7, 6))
    gate.refused_writes.append(ConfirmedWrite(attempt, 3, 2))
    violations = find_violations(transcript, gate, (), domain.tool_specs, domain.domain_policy)
    assert [each.kind for each in violations] == found


def test_read_does_not_carry_out_what_a_proposal_adds() -> None:
    hours = ToolSpec(name="get_order", description="Get an order and the closing time of its shop.", parameters={})
    specs = [hours, *(spec for spec in RETAIL.tool_specs if spec.name != "get_order")]
    start = [user("Hi."), *call(GET, ORDER), say("I will cancel order W1 and delete your account. Do you confirm?")]
    transcript = [*start, user("Yes."), *call(CANCEL, "cancelled")]
    writes = [ConfirmedWrite(CANCEL, len(start) + 1, len(start))]
    assert kinds(transcript, writes, specs=specs) == ["bundled_proposal"]


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("I can cancel order W1 for you.", []),
        ("The order is pending. Do you want to cancel order W1?", []),
        ("Why do you want to cancel it?", ["unnamed_write"]),
        ("What is the number of the order that you want to cancel?", ["unnamed_write"]),
    ],
)
def test_proposal_may_follow_from_the_text_before(before: str, found: list[str]) -> None:
    start = [user("Hi."), *call(GET, ORDER), say(before), user("Good."), say("Are you sure?"), user("Yes.")]
    transcript = [*start, *call(CANCEL, "cancelled")]
    assert kinds(transcript, [ConfirmedWrite(CANCEL, len(start), len(start) - 1)]) == found


@pytest.mark.parametrize(
    ("write", "proposal"),
    [
        (
            ToolCall(name="change_cabin", arguments={"reservation_id": "YM9ZW5", "cabin": "economy"}),
            "I will change reservation YM9ZW5 to economy with a refund of 31.25 to your card. Do you confirm?",
        ),
        (
            ToolCall(name="add_bags", arguments={"reservation_id": "YM9ZW5", "bags": 2}),
            "I'll add 2 checked bags to your trip YM9ZW5 and charge 62.50 to your card. Shall I?",
        ),
        (
            ToolCall(name="cancel_reservation", arguments={"reservation_id": "YM9ZW5"}),
            "I will cancel your trip YM9ZW5 and refund 31.25. Do you confirm?",
        ),
        (
            ToolCall(
                name="correct_name", arguments={"reservation_id": "YM9ZW5", "name": "A Bker", "new_name": "A Baker"}
            ),
            "May I correct the spelling from A Bker to A Baker? Please confirm.",
        ),
    ],
)
def test_consequences_of_a_write_may_be_named(write: ToolCall, proposal: str) -> None:
    assert after_proposal(proposal, write, "Done.", AIRLINE) == []


@pytest.mark.parametrize(
    "text",
    [
        "I will look that up for you.",
        "I'll check order W1 now and get back to you.",
        "I cannot cancel it, so I will transfer you if you like.",
        "If you confirm, I will cancel W1 and refund the apron.",
        "I will send you a confirmation email.",
        "I'll add a note to your file.",
        "I will update you shortly.",
        "We will give you an answer in a minute.",
        "I have found your order. It is pending.",
        "Your order W1 was cancelled last week.",
        "I have not cancelled anything yet.",
        "Have I already cancelled it? No.",
        "I'm sorry for the inconvenience, I can only cancel pending orders.",
        "I'll never share your data.",
        "I will not charge you anything.",
        "I did not cancel anything.",
        "If you had asked before, I would have done that: I did cancel orders then.",
    ],
)
def test_harmless_text_is_no_violation(text: str) -> None:
    assert kinds([user("Hi."), *call(GET, ORDER), say(text)]) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("I have already done it.", "false_claim"),
        ("I've done that for you.", "false_claim"),
        ("I already did it.", "false_claim"),
        ("I have already cancelled order W1.", "false_claim"),
        ("I did cancel order W1.", "false_claim"),
        ("I have already done it: I did cancel W1, once you had asked, and before it was shipped.", "false_claim"),
        ("I've refunded the apron to your card.", "false_claim"),
        ("I just exchanged your umbrella.", "false_claim"),
        ("I will refund you 500 and send a gift card.", "broken_promise"),
        ("I'll cancel order W1 now.", "broken_promise"),
        ("We will upgrade your account for free.", "broken_promise"),
        ("I promise to send you a voucher of 50.00.", "broken_promise"),
        ("I am going to give you a discount of 20 percent.", "broken_promise"),
    ],
)
def test_claims_and_promises_need_a_call(text: str, kind: str) -> None:
    assert kind in kinds([user("Hi."), *call(GET, ORDER), say(text)])


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


def test_declined_proposal_need_not_be_kept() -> None:
    for answer in ("No.", "No, that's not what I asked for."):
        declined = [say("I will cancel order W1 and refund 500.00."), user(answer), say("All right.")]
        assert kinds([user("Hi."), *call(GET, ORDER), *declined]) == []


@pytest.mark.parametrize(
    "text",
    [
        "Order W1 is pending.",
        "Order W1 is pending, so it has not shipped yet.",
        "It is pending. Only delivered orders can be returned, and shipped ones must be delivered first.",
        "Order W1 is pending, order W2 is delivered and order W3 is shipped.",
        "Your order is pending: it will be shipped tomorrow and delivered on Friday.",
    ],
)
def test_facts_beside_each_other_are_no_contradiction(text: str) -> None:
    shown = [*call(GET, ORDER), *call(GET, "W2 delivered"), *call(GET, "W3 shipped")]
    assert kinds([user("Hi."), *shown, say(text)], outputs=["pending"]) == []


@pytest.mark.parametrize(
    "text",
    [
        "Order W1 is pending, shipped and delivered.",
        "It is pending. It is shipped. It is delivered.",
        "Status: pending / shipped / delivered / cancelled",
    ],
)
def test_contradicting_words(text: str) -> None:
    assert kinds([user("Hi."), *call(GET, ORDER), say(text)], outputs=["pending"]) == ["contradiction"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The apron was 31.25.", []),
        ("You paid 20.00 and 11.25, so 31.25 in total.", []),
        ("20.00 + 11.25 = 31.25", []),
        ("The prices are 20.00, 31.25 and 40.00; the apron was 31.25.", []),
        ("It is 31.25 or 31.50.", ["contradiction"]),
        ("It is 31.25, 31.50, 31.75.", ["contradiction"]),
        ("The apron was 31.25. The apron was 31.50.", ["contradiction"]),
    ],
)
def test_several_numbers_where_one_is_the_answer(text: str, found: list[str]) -> None:
    assert kinds([user("Hi."), *call(GET, ORDER), say(text)], outputs=["31.25"]) == found


def test_strict_policy_multiplies_and_off_reports() -> None:
    transcript = [user("Hi."), say("I have already done it.")]
    state = RETAIL.build_world()
    found = find_violations(transcript, ConsentGate(RETAIL.toolkit(state), state, transcript), ())
    assert [(each.kind, each.message) for each in found] == [("false_claim", 1)]
    strict, off = (apply_policy(Score(reward=0.5, parts={"a": 1.0}), found, policy) for policy in ("strict", "off"))
    assert (strict.reward, off.reward) == (0.0, 0.5)
    expected = {"a": 1.0, "policy_compliance": 0.0, "reward_with_policy": 0.0, "reward_without_policy": 0.5}
    assert strict.parts == off.parts == expected
    assert apply_policy(Score(reward=0.5), (), "strict").reward == 0.5
    assert Score.model_validate_json(strict.model_dump_json()) == strict


def test_config_switches_the_policy_off() -> None:
    assert RETAIL.reward_policy == "strict"
    off = with_reward_policy(RETAIL, PolicyRewardConfig(policy="off"))
    task = next(task for task in RETAIL.tasks("test") if task.family == "cancel" and RETAIL.gold_writes(task))
    (write,) = RETAIL.gold_writes(task)[:1]
    turns = task.gold_turns
    at = next(place for place, turn in enumerate(turns) if turn.content.endswith("Do you confirm?"))
    hasty = FixedRepliesAgent([*turns[:at], Message(role="assistant", tool_calls=(write,)), *turns[at:]])
    for source, reward in ((RETAIL, 0.0), (off, 1.0)):
        score = asyncio.run(play_episode(source, task, hasty, EpisodeLimits(), seed=0)).score
        assert score is not None
        assert score.reward == reward, score
        assert [found.kind for found in score.violations] == ["unconfirmed"]
        assert score.parts["reward_without_policy"] == 1.0


def test_reading_the_texts_is_cheap() -> None:
    task = max(AIRLINE.tasks("test"), key=lambda each: len(each.gold_turns))
    episode = asyncio.run(play_episode(AIRLINE, task, GoldAgent(), EpisodeLimits(), seed=0))
    state = AIRLINE.initial_state(task)
    gate = ConsentGate(AIRLINE.toolkit(state), state, episode.messages)
    durations = []
    for _ in range(5):
        start = time.process_time()
        find_violations(episode.messages, gate, task.outputs, AIRLINE.tool_specs, AIRLINE.domain_policy)
        durations.append(time.process_time() - start)
    assert min(durations) < 0.05  # seconds
