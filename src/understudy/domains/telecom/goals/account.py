"""Requests to pay a bill, to open a ticket, and for what no tool can do."""

from collections.abc import Mapping
from dataclasses import replace

from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import (
    GoalSpec,
    gold_call,
    gold_change,
    gold_text,
)
from understudy.domains.telecom import user_tools
from understudy.domains.telecom.goals.base import PAYMENT_TERMS, add_refusal, request_payment, set_ticket
from understudy.domains.telecom.state import Topic
from understudy.domains.telecom.task_builder import TelecomTaskBuilder
from understudy.domains.telecom.world import TOPICS

TOPIC_TERMS: Mapping[Topic, str] = {
    "weak signal": "weak signal|weak reception|poor signal|poor reception|bad signal|bad reception|low signal",
    "dropped calls": "dropped calls|dropped call|dropping calls|call drops|calls drop|calls dropping",
    "spam calls": "spam calls|spam call|spam",
    "wrong bill": "wrong bill|wrong bills|incorrect bill|billing|bill is wrong|bill being wrong",
}
"""The accepted forms of a topic in a proposal."""


def open_ticket(
    builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Open a ticket. It is refused if one is open already."""
    mention, topic = builder.line_mention(number, knowledge), builder.rng.choice(TOPICS)
    text = f"{builder.phrase(f'report.{topic}')} {builder.phrase('look_into')}"
    key = set_ticket(builder, number, topic, "solved" if grantable else builder.rng.choice(("open", "in progress")))
    goal = GoalSpec(text, mention, required_terms=(*mention.required_terms, "ticket", TOPIC_TERMS[topic]))
    reads = (gold_call("get_customer"), gold_call("get_ticket", ticket_id=key))
    if not grantable:
        refusal = f"Ticket {key} about {topic} is not solved yet, so I cannot open another one."
        return add_refusal(builder, goal, reads, refusal, key, easy)
    do = gold_call("open_ticket", number=number, topic=topic)
    return replace(
        goal,
        gold_turns=reads
        + gold_change(f"open a ticket about {topic} for {mention.proposal_phrase}", do, "The ticket has been opened."),
    )


def pay_bill(builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool) -> GoalSpec:
    """Pay a bill on the phone, by a payment request."""
    bill_id = builder.customer.bills[-1] if knowledge == "told" else builder.rng.choice(builder.customer.bills)
    builder.patch("bills", bill_id, status=builder.rng.choice(("open", "overdue")) if grantable else "paid")
    mention = builder.bill_mention(bill_id, knowledge)
    goal = GoalSpec(
        builder.phrase("pay"),
        mention,
        required_terms=(*mention.required_terms, PAYMENT_TERMS, f"{builder.world.bills[bill_id].total}"),
        user_actions=(user_tools.PAY_BILL,),
    )
    if not grantable:
        bill = f"{mention.proposal_phrase[0].upper()}{mention.proposal_phrase[1:]}"
        refusal = f"{bill} is already paid, so I cannot send a payment request for it."
        return add_refusal(builder, goal, (), refusal, "paid", easy)
    return replace(
        goal,
        gold_turns=(*request_payment(builder, bill_id, mention.proposal_phrase), gold_text("The bill has been paid.")),
    )


def ask_out_of_scope(
    builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for something that no tool can do."""
    text = builder.phrase("outside")
    turns = (gold_call("transfer_to_human", summary=text), gold_text("I have transferred you to a human agent."))
    return GoalSpec(text, gold_turns=turns, required_terms=("human|transfer|transferred",))
