"""Shared parts of the requests about lines, bills and tickets."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import get_args

from understudy.core.messages import Message
from understudy.domains.authoring.request import Draw, grant, refuse
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.telecom import user_tools
from understudy.domains.telecom.state import TODAY, SuspendReason, Topic
from understudy.domains.telecom.task_builder import LineMention, TelecomTaskBuilder
from understudy.domains.telecom.world import PLANS
from understudy.envs.dates import date_variants
from understudy.envs.gold import gold_call, gold_instruction, gold_proposal

RESUME_TERMS = (
    "resume|resumes|resumed|resuming|restore|restores|restored|restoring|reinstate|reinstates|reinstated|reinstating"
    "|reactivate|reactivates|reactivated|reactivating|reactivation|activate|activates|activated|activating|activation"
    "|unsuspend|unsuspended|unsuspending|unblock|unblocked|unblocking|unfreeze|unfrozen|unfreezing|lift|lifts|lifted"
    "|lifting|back on|turn on|turned on|turning on|switch on|switched on|switching on"
)
PAYMENT_TERMS = "request|requests|requested|requesting|pay|paid|paying|payment"
SIM_TERMS, REPLACEMENT_TERMS = "sim|sim card", "new|replace|replaces|replaced|replacing|replacement|another"
AMOUNT_CUES = ("how many", "how much", "gb do you", "amount of data")


def set_overdue(b: TelecomTaskBuilder, number: str) -> tuple[tuple[Message, ...], tuple[tuple[str, ...], ...]]:
    """Suspend a line for an overdue bill. Return the gold turns until it is paid, and the steps that the user
    accepts.
    """
    bill_id = b.rng.choice(b.customer.bills)
    b.set_line(number, suspended="overdue bill")
    b.patch("bills", bill_id, status="overdue")
    bills = b.customer.bills[::-1]
    reads = [gold_call("get_bill", bill_id=key) for key in bills[: bills.index(bill_id) + 1]]
    turns = (gold_call("get_customer"), *reads, *payment_turns(b, bill_id, f"bill {bill_id}"))
    return turns, ((PAYMENT_TERMS, bill_id, f"{b.world.bills[bill_id].total}"),)


def payment_turns(b: TelecomTaskBuilder, bill_id: str, name: str) -> tuple[Message, ...]:
    """Return the gold turns that have a bill paid."""
    return (
        gold_proposal(f"send you a payment request for {name} of {b.world.bills[bill_id].total}"),
        gold_call("send_payment_request", bill_id=bill_id),
        *gold_instruction("Done. Please pay the payment request on your phone.", user_tools.PAY_BILL),
    )


def grant_data(b: TelecomTaskBuilder, goal: GoalSpec, mention: LineMention, gb: int) -> GoalSpec:
    """Return the request with the gold turns that add data."""
    price = b.plan_terms(mention.number).extra_gb
    reads = (
        gold_call("get_plan", plan=b.plan_name(mention.number)),
        gold_call("calculate", expression=f"{gb} * {price}"),
    )
    call = gold_call("add_data", number=mention.number, gb=gb)
    proposal = f"add {gb} GB to {mention.proposal_phrase} for {gb * price}"
    return grant(goal, proposal, call, "The data has been added.", reads)


def grant_roaming(b: TelecomTaskBuilder, goal: GoalSpec, mention: LineMention) -> GoalSpec:
    """Return the request with the gold turns that enable roaming."""
    reads = [gold_call("get_plan", plan=b.plan_name(mention.number))]
    call = gold_call("set_roaming", number=mention.number, on=True)
    proposal = f"enable roaming for {mention.proposal_phrase}, at {b.plan_terms(mention.number).roaming_day} a day"
    return grant(goal, proposal, call, "Roaming is enabled for your line.", reads)


def ensure_roaming_plan(b: TelecomTaskBuilder, number: str) -> None:
    """Set a plan with roaming for the line."""
    if b.plan_terms(number).roaming_day is None:
        plans = [name for name, row in PLANS.items() if row[3] and not other_line_has_plan(b, number, name)]
        b.set_line(number, plan=b.rng.choice(plans))


def other_line_has_plan(b: TelecomTaskBuilder, number: str, plan: str) -> bool:
    """Return whether another line of the customer has the plan. Plans must identify lines."""
    return any(b.plan_name(other) == plan for other in b.customer.lines if other != number)


def set_ticket(b: TelecomTaskBuilder, number: str, topic: Topic, status: str) -> tuple[str, Sequence[Message]]:
    """Give the customer one ticket about this topic. Return its id and the gold calls that read it."""
    key = b.customer.tickets[0] if b.customer.tickets else f"T{b.key[1:]}0"
    b.patch("tickets", key, number=number, topic=topic, status=status)
    b.patch("customers", b.key, tickets=[key])
    return key, (gold_call("get_customer"), gold_call("get_ticket", ticket_id=key))


def refuse_unchangeable(b: TelecomTaskBuilder, draw: Draw[str], goal: GoalSpec, action: str) -> GoalSpec:
    """Refuse a request because the line is suspended or its contract has ended."""
    goal = replace(goal, gold_turns=())  # the line is read before any question for a detail
    if b.draw_bool(0.5):
        return refuse_ended_contract(b, draw, goal, action)
    cause = b.rng.choice((*get_args(SuspendReason), "overdue bill"))
    b.set_line(draw.entity, suspended=cause)
    reason = f"Line {draw.entity} is suspended (reason: {cause}), so I cannot {action}."
    return refuse(b, goal, reason, cause, easy=draw.easy)


def refuse_ended_contract(b: TelecomTaskBuilder, draw: Draw[str], goal: GoalSpec, action: str) -> GoalSpec:
    """Refuse a request because the contract of the line has ended."""
    ended = end_contract(b, draw.entity)
    reason = f"The contract of line {draw.entity} ended on {ended}, so I cannot {action}."
    return refuse(b, goal, reason, date_variants(ended), easy=draw.easy)


def end_contract(b: TelecomTaskBuilder, number: str) -> str:
    """Set a past end of the line's contract and return the date."""
    ended = f"{TODAY - timedelta(days=b.rng.randint(1, 120))}"
    b.set_line(number, contract_until=ended)
    return ended
