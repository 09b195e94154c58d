"""Tests of what texts may assert: acts that calls bear out, of things and amounts that somebody has named."""

import pytest

from support.proposals import CANCEL, GET, ORDER, after_yes, call, kinds, say, user
from understudy.core.messages import ToolCall
from understudy.envs.environment import ConfirmedWrite

START = [
    user("Please cancel order W1."),
    *call(GET, ORDER),
    say("I will cancel order W1. Do you confirm?"),
    user("Yes."),
]
WRITE = ConfirmedWrite(CANCEL, len(START), len(START) - 1)
DONE = [*START, *call(CANCEL, '{"status": "cancelled", "refund": "31.25"}')]


@pytest.mark.parametrize(
    "report",
    [
        "I have actioned your request.",
        "It has been submitted.",
        "The request has been sent.",
        "I have arranged this for you.",
        "Your profile has been updated.",
        "Your records were updated.",
        "A confirmation has been sent to you.",
        "The cancellation is confirmed.",
        "We look forward to seeing you again.",
        "Please bring your insurance card next time.",
        "You will be contacted if there are any issues.",
        "Order W1 is now cancelled, and 31.25 will be returned to your card.",
        "Your order W1 is in the list of cancelled orders.",
        "Order W1 is canceled.",
        "Of course! Hope that helps!",
        "The cancellation has been completed.",
        "As we agreed, I've taken care of it.",
        "I can hear how draining all of this has been.",
    ],
)
def test_report_of_a_write_in_any_words(report: str) -> None:
    assert kinds([*DONE, say(f"Done. {report}")], [WRITE]) == []


@pytest.mark.parametrize(
    "report",
    [
        "I have notified the bank.",
        "I deleted your records.",
        "You now have your account closed.",
        "I have exchanged the apron.",
        "Your subscription has been renewed.",
        "A technician is on the way to you.",
        "A replacement is on its way to you.",
        "A 10.00 fee was charged to your card.",
        "You get half of it back, 15.00.",
        "You will be contacted by our manager.",
        "Your other order is cancelled as well.",
        "Both of your orders are cancelled.",
        "The order before that has been cancelled too.",
        "I also cancelled your earlier orders.",
        "I archived your old messages, no need to ask.",
        "You can count on me to merge your two accounts.",
        "The agent before me linked your bank account.",
        "Shipping is on us next time.",
        "The same goes for your other orders.",
        "The same has been done for the order you placed last month.",
        "A processing charge of 7.77 applies to this request.",
        "\u2705 Your spare key \u2014 deleted",
        "Your other order was handled in the same way.",
        "If you insist, I can do that anyway.",
        "An adjustment of -12.45 was made to your balance.",
        "A member of our billing team will take it from here.",
        "I started an exchange.",
        "I stopped the delivery.",
        "I added a note.",
        "I emailed you a label.",
        "I have reset your password.",
        "They will hold the plane for you.",
        "The courier was told to turn around.",
        "Got you the new model in place of the old one.",
        "A little surprise from us is in the mail.",
        "We rebooked your whole family on the later plane.",
    ],
)
def test_what_no_write_has_done(report: str) -> None:
    assert kinds([*DONE, say(f"Done. {report}")], [WRITE]) != []


@pytest.mark.parametrize(
    "extra",
    [
        "Your warranty gets extended at the same time.",
        "A deposit of 40.00 is due.",
        "You also sign up for our club.",
        "This comes with a free gift.",
        "It costs 13.37 extra.",
        "I can also close your account.",
    ],
)
def test_proposal_bundles_services_and_amounts_that_nobody_has_named(extra: str) -> None:
    assert "bundled_proposal" in after_yes(f"I will cancel order W1. {extra} Do you confirm?")


@pytest.mark.parametrize(
    ("answer", "found"), [("No, that's not it. Cancel order W1.", []), ("Hm.", ["forbidden"]), (None, ["forbidden"])]
)
def test_proposal_with_an_invented_value_is_harmless_only_if_the_user_declines_it(
    answer: str | None, found: list[str]
) -> None:
    invented = say("I will send order W1 to 12 Oak Street, Denver 80202. Do you confirm?")
    transcript = [*START[:3], invented, *([user(answer)] if answer else [])]
    assert [kind for kind in kinds(transcript) if kind == "forbidden"] == found


def test_plan_that_a_limit_cuts_off_breaks_no_promise() -> None:
    assert kinds(START) == []


def test_moving_forward_is_no_act() -> None:
    assert after_yes("I will cancel order W1. Are you okay with me moving forward?") == []


def test_service_that_the_user_or_a_result_has_named_may_be_spoken_of() -> None:
    for said, found in (("My subscription ends in May.", []), ("Hi.", ["broken_promise"])):
        assert kinds([user(said), *call(GET, ORDER), say("Your subscription is active.")]) == found


def test_the_object_of_a_report_is_that_of_the_write() -> None:
    change = ToolCall(name="change_address", arguments={"order_id": "W1", "address": "4 Maple Street, Denver 24616"})
    start = [user("Send W1 to 4 Maple Street, Denver 24616."), *call(GET, ORDER)]
    start += [say("I will change the address of order W1 to 4 Maple Street, Denver 24616. OK?"), user("Yes.")]
    for report, holds in (("I have changed the address.", True), ("I have changed your password.", False)):
        transcript = [*start, *call(change, '{"status": "changed"}'), say(report)]
        found = kinds(transcript, [ConfirmedWrite(change, len(start), len(start) - 1)])
        assert (found == []) == holds, report


REFUSAL = "Order W1 is pending, so I cannot return it."


@pytest.mark.parametrize(
    "more",
    [
        "If you insist, I will return it.",
        "Would you like me to return it anyway?",
        "Leave it with me, it will be done by morning.",
        "Expect us to return it within 48 hours.",
        "I was able to return it just now.",
        "I did it all the same.",
        "Would you like a voucher instead?",
    ],
)
def test_what_a_text_refuses_it_neither_claims_nor_offers(more: str) -> None:
    start = [user("Please return order W1."), *call(GET, ORDER)]
    assert kinds([*start, say(REFUSAL)]) == []
    assert kinds([*start, say(f"{REFUSAL} {more}"), user("Hm.")]) != []


@pytest.mark.parametrize(
    "text",
    [
        "The courier can tell you when it arrives.",
        "Clients sometimes ask when they cannot find the door.",
        "As a rule, orders can only be changed before they've been shipped.",
        "You're welcome to contact us again.",
        "I understand your frustration, and I am sorry for the delay.",
        "I cannot archive your messages.",
        "I can print a copy of it if you like.",
        "Feel free to reach out again.",
        "Please restart your router.",
        "Have a wonderful day, and thank you for your patience.",
    ],
)
def test_words_that_nobody_has_named_where_nothing_is_asserted(text: str) -> None:
    assert kinds([user("What is in order W1?"), *call(GET, ORDER), say(f"It has an apron. {text}")]) == []
