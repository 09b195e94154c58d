"""Questions about usage, bills and tickets: nothing changes."""

from dataclasses import replace
from decimal import Decimal

from understudy.core.tasks import Fact
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import (
    GoalSpec,
    gold_call,
    gold_text,
)
from understudy.domains.telecom.goals.base import set_ticket
from understudy.domains.telecom.task_builder import BILL_CUES, TelecomTaskBuilder
from understudy.domains.telecom.world import TOPICS


def ask_usage(builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool) -> GoalSpec:
    """Ask how much data is used, or unless `easy` how much is left."""
    mention, plan_data = builder.line_mention(number, knowledge), builder.plan_terms(number).data
    used = plan_data * builder.rng.randint(10, 99) / 100
    used, added = used.quantize(Decimal("0.1")), builder.rng.choice((0, 0, 1, 2, 3))
    builder.set_line(number, data_used=f"{used}", data_added=f"{added}.0")
    read = gold_call("get_usage", number=number)
    if easy:
        answer = gold_text(f"You have used {used} GB on line {number}.")
        return GoalSpec(builder.phrase("used"), mention, (read, answer), "number", outputs=(f"{used}",))
    left = f"{plan_data + added - used:.1f}"
    turns = (
        read,
        gold_call("calculate", expression=f"{plan_data} + {added}.0 - {used}"),
        gold_text(f"You have {left} GB left on line {number}."),
    )
    return GoalSpec(builder.phrase("left"), mention, turns, "number", outputs=(left,))


def ask_ticket_status(
    builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for the status of a ticket."""
    topic, status = builder.rng.choice(TOPICS), builder.rng.choice(("open", "in progress", "solved"))
    key = set_ticket(builder, number, topic, status)
    turns = (
        gold_call("get_customer"),
        gold_call("get_ticket", ticket_id=key),
        gold_text(f"Ticket {key} about {topic} is {status}."),
    )
    return GoalSpec(builder.phrase("progress", topic=topic), gold_turns=turns, kind="text", outputs=(status,))


def ask_bill(builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for the total or one item of a bill, or unless `easy` sometimes for the difference between two bills."""
    bill_id, other = builder.rng.sample(builder.customer.bills, 2)
    mention = builder.bill_mention(bill_id, knowledge)
    if not easy and builder.draw_bool(0.6):
        return _difference(builder, bill_id, other)
    if easy and builder.draw_bool(0.5):
        total = f"{mention.bill.total}"
        answer = gold_text(f"{mention.proposal_phrase[0].upper()}{mention.proposal_phrase[1:]} is {total}.")
        return GoalSpec(builder.phrase("total"), mention, (answer,), "number", outputs=(total,))
    item = builder.rng.choice(mention.bill.items)
    answer = gold_text(f"You were charged {item.amount} for the {item.text}.")
    return GoalSpec(
        builder.phrase("position", item=item.text),
        mention,
        (answer,),
        "number",
        outputs=(f"{item.amount}",),
    )


def _difference(builder: TelecomTaskBuilder, bill_id: str, other: str) -> GoalSpec:
    """Ask for the difference between two bills. The older one is read last."""
    first, second = (builder.world.bills[key] for key in (bill_id, other))
    text = builder.phrase("more_than", bill=f"my {first.month} bill", other=f"my {second.month} bill")
    fact = Fact(
        text=builder.phrase("bill_months", month=first.month, other=second.month),
        keywords=BILL_CUES,
        in_opening=True,
    )
    older = min(bill_id, other, key=builder.customer.bills.index)
    low, high = sorted((first.total, second.total))
    return GoalSpec(
        text,
        replace(builder.bill_mention(older, "described"), facts=(fact,)),
        (gold_call("calculate", expression=f"{high} - {low}"), gold_text(f"The difference is {high - low}.")),
        "number",
        outputs=(f"{high - low}",),
    )
