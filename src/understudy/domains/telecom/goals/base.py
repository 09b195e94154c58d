"""Shared parts of the requests about lines, bills and tickets.

`grantable` says whether the policy allows the request. The first message does not reveal it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Protocol, get_args

from understudy.core.messages import Message
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import (
    GoalSpec,
    gold_call,
    gold_change,
    gold_instruction,
    gold_proposal,
    gold_text,
)
from understudy.domains.telecom import user_tools
from understudy.domains.telecom.state import TODAY, SuspendReason, Topic
from understudy.domains.telecom.task_builder import TelecomTaskBuilder
from understudy.domains.telecom.world import PLANS
from understudy.envs.dates import date_variants

RESUME_TERMS = (
    "resume|resumed|resuming|restore|restored|restoring|reinstate|reactivate|reactivated|reactivating|activate|activated"
    "|unsuspend|unblock|unblocked|unfreeze|lift|lifted|back on|turn on|switch on"
)
PAYMENT_TERMS = "request|pay|payment"
SIM_TERMS, REPLACEMENT_TERMS = "sim|sim card", "new|replace|replacement|another"
AMOUNT_CUES = ("how many", "how much", "gb do you", "amount of data")


class TelecomGoalFactory(Protocol):
    """A function that draws one request about a line."""

    def __call__(
        self, builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool
    ) -> GoalSpec:
        """Draw a request. With `easy`, the first message states everything about it."""


def set_overdue(builder: TelecomTaskBuilder, number: str) -> tuple[tuple[Message, ...], tuple[tuple[str, ...], ...]]:
    """Suspend a line for an overdue bill. Return the gold turns until it is paid, and the steps that the user
    accepts.
    """
    bill_id = builder.rng.choice(builder.customer.bills)
    builder.set_line(number, suspended="overdue bill")
    builder.patch("bills", bill_id, status="overdue")
    bills = builder.customer.bills[::-1]
    reads = [gold_call("get_bill", bill_id=key) for key in bills[: bills.index(bill_id) + 1]]
    turns = (gold_call("get_customer"), *reads, *request_payment(builder, bill_id, f"bill {bill_id}"))
    return turns, ((PAYMENT_TERMS, bill_id, f"{builder.world.bills[bill_id].total}"),)


def request_payment(builder: TelecomTaskBuilder, bill_id: str, named: str) -> Iterator[Message]:
    """Yield the gold turns that have a bill paid."""
    total = builder.world.bills[bill_id].total
    yield gold_proposal(f"send you a payment request for {named} of {total}")
    yield gold_call("send_payment_request", bill_id=bill_id)
    yield from gold_instruction("Done. Please pay the payment request on your phone.", user_tools.PAY_BILL)


def add_data_turns(builder: TelecomTaskBuilder, number: str, named: str, gb: int) -> Iterator[Message]:
    """Yield the gold turns that add data."""
    extra = builder.plan_terms(number).extra_gb
    yield gold_call("get_plan", plan=builder.plan_name(number))
    yield gold_call("calculate", expression=f"{gb} * {extra}")
    do = gold_call("add_data", number=number, gb=gb)
    yield from gold_change(f"add {gb} GB to {named} for {gb * extra}", do, "The data has been added.")


def ensure_roaming_plan(builder: TelecomTaskBuilder, number: str) -> None:
    """Set a plan with roaming for the line."""
    if builder.plan_terms(number).roaming_day is None:
        free = [name for name, row in PLANS.items() if row[3] and not other_line_has_plan(builder, number, name)]
        builder.set_line(number, plan=builder.rng.choice(free))


def enable_roaming_turns(builder: TelecomTaskBuilder, number: str, named: str) -> Iterator[Message]:
    """Yield the gold turns that enable roaming."""
    yield gold_call("get_plan", plan=builder.plan_name(number))
    do = gold_call("set_roaming", number=number, on=True)
    proposal = f"enable roaming for {named}, at {builder.plan_terms(number).roaming_day} a day"
    yield from gold_change(proposal, do, "Roaming is enabled for your line.")


def other_line_has_plan(builder: TelecomTaskBuilder, number: str, plan: str) -> bool:
    """Return whether another line of the customer has the plan. Plans must identify lines."""
    return any(builder.plan_name(other) == plan for other in builder.customer.lines if other != number)


def set_ticket(builder: TelecomTaskBuilder, number: str, topic: Topic, status: str) -> str:
    """Give the customer one ticket about this topic."""
    key = builder.customer.tickets[0] if builder.customer.tickets else f"T{builder.key[1:]}0"
    builder.patch("tickets", key, number=number, topic=topic, status=status)
    builder.patch("customers", builder.key, tickets=[key])
    return key


def add_unchangeable_refusal(
    builder: TelecomTaskBuilder, goal: GoalSpec, number: str, action: str, easy: bool
) -> GoalSpec:
    """Refuse a request because the line is suspended or its contract has ended."""
    if builder.draw_bool(0.5):
        return add_contract_refusal(builder, goal, number, action, easy)
    reason = builder.rng.choice((*get_args(SuspendReason), "overdue bill"))
    builder.set_line(number, suspended=reason)
    refusal = f"Line {number} is suspended (reason: {reason}), so I cannot {action}."
    return add_refusal(builder, goal, (), refusal, reason, easy)


def end_contract(builder: TelecomTaskBuilder, number: str) -> str:
    """Set a past end of the line's contract and return the date."""
    ended = f"{TODAY - timedelta(days=builder.rng.randint(1, 120))}"
    builder.set_line(number, contract_until=ended)
    return ended


def add_contract_refusal(builder: TelecomTaskBuilder, goal: GoalSpec, number: str, action: str, easy: bool) -> GoalSpec:
    """Refuse a request because the contract of the line has ended."""
    ended = end_contract(builder, number)
    refusal = f"The contract of line {number} ended on {ended}, so I cannot {action}."
    return add_refusal(builder, goal, (), refusal, date_variants(ended), easy)


def add_refusal(
    builder: TelecomTaskBuilder, goal: GoalSpec, before: Sequence[Message], refusal: str, output: str, easy: bool
) -> GoalSpec:
    """Refuse a request for a reason. Some customers contest the refusal."""
    contests = not easy and builder.draw_bool(0.5)
    turns = (*before, *(gold_text(refusal),) * (1 + contests))
    return replace(goal, gold_turns=turns, outputs=(output,), contests_refusal=contests)
