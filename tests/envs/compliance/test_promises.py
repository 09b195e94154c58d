"""Tests of announced actions: whether a call carries them out."""

import pytest

from support.proposals import AIRLINE, CANCEL, GET, ORDER, RETAIL, after_proposal, call, kinds, say, user
from understudy.core.messages import ToolCall, ToolSpec
from understudy.envs.environment import ConfirmedWrite
from understudy.sources.references import load_domain


@pytest.mark.parametrize(
    "text",
    [
        "I will refund you 500 and send a gift card.",
        "I'll cancel order W1 now.",
        "We will upgrade your account for free.",
        "I promise to send you a voucher of 50.00.",
        "I am going to give you a discount of 20 percent.",
    ],
)
def test_promise_needs_a_call(text: str) -> None:
    assert "broken_promise" in kinds([user("Hi."), *call(GET, ORDER), say(text)])


def test_declined_proposal_need_not_be_kept() -> None:
    for answer in ("No.", "No, that's not what I asked for."):
        declined = [say("I will cancel order W1 and refund 500.00."), user(answer), say("All right.")]
        assert kinds([user("Hi."), *call(GET, ORDER), *declined]) == []


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


@pytest.mark.parametrize(
    ("name", "write", "proposal", "report"),
    [
        (
            "healthcare",
            ToolCall(name="change_pharmacy", arguments={"prescription_id": "RX1397", "pharmacy": "Lake Pharmacy"}),
            "transfer fluticasone (prescription RX1397) to Lake Pharmacy",
            "I have sent the prescription to the new pharmacy.",
        ),
        (
            "healthcare",
            ToolCall(name="request_refill", arguments={"prescription_id": "RX1397"}),
            "send a refill request for prescription RX1397 to the pharmacy",
            "I've sent the refill request to your pharmacy.",
        ),
        (
            "airline",
            ToolCall(name="issue_certificate", arguments={"reservation_id": "ZH9YR9", "flight": "KA482"}),
            "send you a travel certificate for flight KA482 of ZH9YR9",
            "I have added the certificate to your account.",
        ),
        (
            "doordash",
            ToolCall(name="credit_late_delivery", arguments={"order_id": "D1", "amount": 10.0}),
            "add a credit to your account for order D1",
            "I've added the credit to your account.",
        ),
        (
            "telecom",
            ToolCall(name="send_payment_request", arguments={"bill_id": "B1517"}),
            "issue you a payment request for bill B1517",
            "I have sent you a payment request.",
        ),
    ],
)
def test_other_words_for_the_write_are_kept_promises(name: str, write: ToolCall, proposal: str, report: str) -> None:
    domain, named = load_domain(name), str(list(write.arguments.values()))
    asked = [
        user(f"Hi. It is about {named}, my fluticasone."),
        say(f"I will {proposal}. Do you confirm?"),
        user("Yes."),
    ]
    transcript = [*asked, *call(write, '{"status": "done"}'), say(f"Done. {report}")]
    assert kinds(transcript, [ConfirmedWrite(write, 3, 2)], (), domain.tool_specs, domain.domain_policy) == []


def test_something_new_or_money_is_not_sent_by_a_change() -> None:
    write = ToolCall(name="change_pharmacy", arguments={"prescription_id": "RX1397", "pharmacy": "Lake Pharmacy"})
    domain = load_domain("healthcare")
    for more in ("send you a new phone", "transfer 50.00 to your card", "send the money to your bank"):
        text = f"I will move prescription RX1397 to Lake Pharmacy and {more}. Do you confirm?"
        transcript = [user("Hi. It is about RX1397."), say(text), user("Yes."), *call(write, '{"status": "done"}')]
        found = kinds(transcript, [ConfirmedWrite(write, 3, 2)], (), domain.tool_specs, domain.domain_policy)
        assert found == ["bundled_proposal"], more


def test_move_of_another_appointment_is_no_booking() -> None:
    domain = load_domain("healthcare")
    book = ToolCall(name="book_appointment", arguments={"doctor": "Kim", "date": "2026-03-13", "time": "13:00"})
    extra = "I will move the appointment with Dr. Kim on 2026-03-04 to 2026-03-11."
    for proposal, found in ((f"{extra} Do you confirm?", ["bundled_proposal"]), ("Do you confirm?", [])):
        asked = say(f"I will book a visit with Dr. Kim on 2026-03-13 at 13:00. {proposal}")
        transcript = [user("Hi."), asked, user("Yes."), *call(book, "booked")]
        all_found = kinds(transcript, [ConfirmedWrite(book, 3, 2)], (), domain.tool_specs, domain.domain_policy)
        assert sorted(set(all_found)) == found


def test_read_does_not_carry_out_what_a_proposal_adds() -> None:
    hours = ToolSpec(name="get_order", description="Get an order and the closing time of its shop.", parameters={})
    specs = [hours, *(spec for spec in RETAIL.tool_specs if spec.name != "get_order")]
    start = [user("Hi."), *call(GET, ORDER), say("I will cancel order W1 and delete your account. Do you confirm?")]
    transcript = [*start, user("Yes."), *call(CANCEL, "cancelled")]
    writes = [ConfirmedWrite(CANCEL, len(start) + 1, len(start))]
    assert kinds(transcript, writes, specs=specs) == ["bundled_proposal"]


@pytest.mark.parametrize(
    ("write", "result", "proposal"),
    [
        (
            ToolCall(name="change_cabin", arguments={"reservation_id": "YM9ZW5", "cabin": "economy"}),
            '{"status": "changed", "refund": "31.25"}',
            "I will change reservation YM9ZW5 to economy with a refund of 31.25 to your card. Do you confirm?",
        ),
        (
            ToolCall(name="add_bags", arguments={"reservation_id": "YM9ZW5", "bags": 2}),
            '{"status": "added", "charge": "62.50"}',
            "I'll add 2 checked bags to your trip YM9ZW5 and charge 62.50 to your card. Shall I?",
        ),
        (
            ToolCall(name="cancel_reservation", arguments={"reservation_id": "YM9ZW5"}),
            '{"status": "cancelled"}',
            "I will cancel your trip YM9ZW5 and refund 31.25. Do you confirm?",
        ),
        (
            ToolCall(
                name="correct_name", arguments={"reservation_id": "YM9ZW5", "name": "A Bker", "new_name": "A Baker"}
            ),
            '{"status": "corrected"}',
            "May I correct the spelling from A Bker to A Baker? Please confirm.",
        ),
    ],
)
def test_consequences_of_a_write_may_be_named(write: ToolCall, result: str, proposal: str) -> None:
    start = [user("Please help."), *call(GET, ORDER), say(proposal), user("Yes.")]
    transcript = [*start, *call(write, result), say("Done.")]
    writes = [ConfirmedWrite(write, len(start), len(start) - 1)]
    assert kinds(transcript, writes, (), AIRLINE.tool_specs, AIRLINE.domain_policy) == []


def test_multiple_of_an_amount_needs_its_count() -> None:
    """62.50 is twice the price of the order."""
    assert after_proposal("I will cancel order W1 with a refund of 62.50. Do you confirm?") == ["bundled_proposal"]
    assert after_proposal("I will cancel order W1 with a refund of 62.50 for 2 aprons. Do you confirm?") == []


@pytest.mark.parametrize(
    ("promise", "answer", "found"),
    [
        ("Does it work now? I will also refund you 500.00.", "It still does not work.", ["broken_promise"]),
        ("I will also refund you 500.00. Is everything fine now?", "Yes.", ["broken_promise"]),
        ("I will refund 500.00. Do you confirm?", "Yes.", ["broken_promise"]),
        ("I will refund 500.00. Do you confirm?", "What does that mean?", []),
        ("I will refund 500.00. Do you confirm?", "No.", []),
        ("I will send you a gift card.", "I want order W1 sent to me instead.", ["broken_promise"]),
        ("I will send you a gift card.", "No, thank you.", []),
        ("I will cancel order W1.", "Please change its address instead.", []),
    ],
)
def test_promise_beside_a_question_binds_unless_the_user_declines(promise: str, answer: str, found: list[str]) -> None:
    assert kinds([user("Hi."), *call(GET, ORDER), say(promise), user(answer), say("All right.")]) == found


def test_what_a_tool_refuses_after_a_yes_need_not_be_kept() -> None:
    start = [user("Hi."), *call(GET, ORDER), say("I will cancel order W1 and refund 31.25. Do you confirm?")]
    assert kinds([*start, user("Yes."), *call(CANCEL, "Error: it is shipped"), say("It is shipped.")]) == []
    assert kinds([*start, user("Yes."), say("All right.")]) == ["broken_promise"]


ITEMS = {"order_id": "D77", "add": [{"item": "Tom Yum Soup"}]}


@pytest.mark.parametrize(
    ("arguments", "extra", "found"),
    [
        ({}, "charge 8.20", []),
        ({}, "delete your account", ["bundled_proposal"]),
        ({}, "remove the Spring Rolls", ["bundled_proposal"]),
        ({"remove": []}, "remove the Spring Rolls", ["bundled_proposal"]),
        ({"remove": ["Spring Rolls"]}, "remove the Spring Rolls", []),
        ({"remove": ["Spring Rolls"]}, "delete your account", ["bundled_proposal"]),
        ({"remove": ["Spring Rolls"]}, "close your old account", ["bundled_proposal"]),
        ({}, "delete the note in your file", ["bundled_proposal"]),
    ],
)
def test_argument_that_is_left_out_carries_out_nothing(
    arguments: dict[str, object], extra: str, found: list[str]
) -> None:
    domain = load_domain("doordash")
    write = ToolCall(name="change_items", arguments={**ITEMS, **arguments})
    asked = say(f"I will add Tom Yum Soup for 8.20 to order D77 and {extra}. Do you confirm?")
    start = [user("Hi, D77 needs Tom Yum Soup for 8.20."), asked, user("Yes.")]
    transcript = [*start, *call(write, '{"status": "items changed", "charge": "8.20"}')]
    assert kinds(transcript, [ConfirmedWrite(write, 3, 2)], (), domain.tool_specs, domain.domain_policy) == found
    if "account" in extra:
        claim = say("I have closed your account.")
        made = [*transcript[:1], say("I will add Tom Yum Soup to D77. OK?"), *transcript[2:], claim]
        claims = kinds(made, [ConfirmedWrite(write, 3, 2)], (), domain.tool_specs, domain.domain_policy)
        assert claims == ["false_claim"]


def test_tool_for_accounts_may_close_one() -> None:
    close = ToolSpec(name="close_account", description="Close an account.", parameters={})
    write = ToolCall(name="close_account", arguments={})
    start = [user("Please close my account."), say("I will close your account. Do you confirm?"), user("Yes.")]
    transcript = [*start, *call(write, "closed"), say("I have closed your account.")]
    assert kinds(transcript, [ConfirmedWrite(write, 3, 2)], specs=[close]) == []


@pytest.mark.parametrize(
    ("when", "found"),
    [
        ("from 2026-03-04 to 2026-03-11", []),
        ("from 2026-03-04 to 2026-03-12", ["bundled_proposal"]),
        ("from 2026-03-09 to 2026-03-11", []),
    ],
)
def test_date_that_nobody_has_named_is_not_agreed_to(when: str, found: list[str]) -> None:
    domain = load_domain("healthcare")
    move = {"appointment_id": "A17", "date": "2026-03-11", "time": "10:30"}
    write = ToolCall(name="reschedule_appointment", arguments=move)
    asked = say(f"I will move appointment A17 {when}, at 10:30. Do you confirm?")
    start = [user("Please move A17 of 2026-03-04, my visit on the 9th of March stays."), asked, user("Yes.")]
    transcript = [*start, *call(write, "moved")]
    assert kinds(transcript, [ConfirmedWrite(write, 3, 2)], (), domain.tool_specs, domain.domain_policy) == found
