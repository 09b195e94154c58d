"""Questions about usage, bills and tickets: nothing changes."""

from dataclasses import replace
from decimal import Decimal

from understudy.core.tasks import Fact
from understudy.domains.authoring.request import Draw, answer
from understudy.domains.authoring.task_builder import GoalSpec, capitalize_sentences
from understudy.domains.telecom.goals.line import set_ticket
from understudy.domains.telecom.task_builder import BILL_CUES, TelecomTaskBuilder
from understudy.domains.telecom.world import TOPICS
from understudy.envs.gold import gold_call


def ask_usage(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Ask how much data is used, or unless easy how much is left."""
    number, mention = draw.entity, b.line_mention(draw)
    plan_data = b.plan_terms(number).data
    used = (plan_data * b.rng.randint(10, 99) / 100).quantize(Decimal("0.1"))
    added = b.rng.choice((0, 0, 1, 2, 3))
    b.set_line(number, data_used=f"{used}", data_added=f"{added}.0")
    reads = [gold_call("get_usage", number=number)]
    if draw.easy:
        goal = GoalSpec(b.phrase("used"), mention, kind="number")
        return answer(goal, f"You have used {used} GB on line {number}.", f"{used}", reads=reads)
    left = f"{plan_data + added - used:.1f}"
    reads.append(gold_call("calculate", expression=f"{plan_data} + {added}.0 - {used}"))
    goal = GoalSpec(b.phrase("left"), mention, kind="number")
    return answer(goal, f"You have {left} GB left on line {number}.", left, reads=reads)


def ask_ticket_status(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Ask for the status of a ticket."""
    topic, status = b.rng.choice(TOPICS), b.rng.choice(("open", "in progress", "solved"))
    key, reads = set_ticket(b, draw.entity, topic, status)
    goal = GoalSpec(b.phrase("progress", topic=topic), kind="text")
    return answer(goal, f"Ticket {key} about {topic} is {status}.", status, reads=reads)


def ask_bill(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Ask for the total or one item of a bill, or unless easy sometimes for the difference between two bills."""
    bill_id, other = b.rng.sample(b.customer.bills, 2)
    mention = b.bill_mention(bill_id, draw.knowledge)
    if not draw.easy and b.draw_bool(0.6):
        return _ask_difference(b, bill_id, other)
    if draw.easy and b.draw_bool(0.5):
        total = f"{mention.bill.total}"
        goal = GoalSpec(b.phrase("total"), mention, kind="number")
        return answer(goal, f"{capitalize_sentences(mention.proposal_phrase)} is {total}.", total)
    item = b.rng.choice(mention.bill.items)
    goal = GoalSpec(b.phrase("position", item=item.text), mention, kind="number")
    return answer(goal, f"You were charged {item.amount} for the {item.text}.", f"{item.amount}")


def _ask_difference(b: TelecomTaskBuilder, bill_id: str, other: str) -> GoalSpec:
    """Ask for the difference between two bills. The older one is read last."""
    first, second = (b.world.bills[key] for key in (bill_id, other))
    text = b.phrase("more_than", bill=f"my {first.month} bill", other=f"my {second.month} bill")
    months = b.phrase("bill_months", month=first.month, other=second.month)
    older = min(bill_id, other, key=b.customer.bills.index)
    facts = (Fact(text=months, keywords=BILL_CUES, in_opening=True),)
    mention = replace(b.bill_mention(older, "described"), facts=facts)
    low, high = sorted((first.total, second.total))
    reads = [gold_call("calculate", expression=f"{high} - {low}")]
    goal = GoalSpec(text, mention, kind="number")
    return answer(goal, f"The difference is {high - low}.", f"{high - low}", reads=reads)
