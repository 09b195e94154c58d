"""Requests to pay a bill, to open a ticket, and for what no tool can do."""

from collections.abc import Mapping
from dataclasses import replace

from understudy.domains.authoring.request import Draw, grant, plain_request, refuse, transfer
from understudy.domains.authoring.task_builder import GoalSpec, capitalize_sentences
from understudy.domains.telecom import user_tools
from understudy.domains.telecom.goals.line import PAYMENT_TERMS, payment_turns, set_ticket
from understudy.domains.telecom.state import Topic
from understudy.domains.telecom.task_builder import TelecomTaskBuilder
from understudy.domains.telecom.world import TOPICS
from understudy.envs.gold import gold_call, gold_text

TOPIC_TERMS: Mapping[Topic, str] = {
    "weak signal": "weak signal|weak reception|poor signal|poor reception|bad signal|bad reception|low signal",
    "dropped calls": "dropped calls|dropped call|dropping calls|call drops|calls drop|calls dropping",
    "spam calls": "spam calls|spam call|spam",
    "wrong bill": "wrong bill|wrong bills|incorrect bill|billing|bill is wrong|bill being wrong",
}
"""The accepted forms of a topic in a proposal."""


def open_ticket(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Open a ticket. It is refused if one is open already."""
    mention, topic = b.line_mention(draw), b.rng.choice(TOPICS)
    text = f"{b.phrase(f'report.{topic}')} {b.phrase('look_into')}"
    status = "solved" if draw.grantable else b.rng.choice(("open", "in progress"))
    key, reads = set_ticket(b, draw.entity, topic, status)
    goal = plain_request(text, mention, "ticket", TOPIC_TERMS[topic])
    if not draw.grantable:
        reason = f"Ticket {key} about {topic} is not solved yet, so I cannot open another one."
        return refuse(b, goal, reason, key, easy=draw.easy, reads=reads)
    call = gold_call("open_ticket", number=draw.entity, topic=topic)
    proposal = f"open a ticket about {topic} for {mention.proposal_phrase}"
    return grant(goal, proposal, call, "The ticket has been opened.", reads)


def pay_bill(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Pay a bill on the phone, by a payment request."""
    bill_id = b.customer.bills[-1] if draw.knowledge == "told" else b.rng.choice(b.customer.bills)
    b.patch("bills", bill_id, status=b.rng.choice(("open", "overdue")) if draw.grantable else "paid")
    mention = b.bill_mention(bill_id, draw.knowledge)
    goal = plain_request(b.phrase("pay"), mention, PAYMENT_TERMS, f"{mention.bill.total}")
    goal = replace(goal, user_actions=(user_tools.PAY_BILL,))
    name = mention.proposal_phrase
    if not draw.grantable:
        reason = f"{capitalize_sentences(name)} is already paid, so I cannot send a payment request for it."
        return refuse(b, goal, reason, "paid", easy=draw.easy)
    return replace(goal, gold_turns=(*payment_turns(b, bill_id, name), gold_text("The bill has been paid.")))


def ask_out_of_scope(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Ask for something that no tool can do."""
    text = b.phrase("outside")
    return transfer(GoalSpec(text), text)
