"""Shared parts of the requests about reservations."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from understudy.core.messages import Message
from understudy.domains.airline.state import Reservation
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.authoring.payments import payment_kind
from understudy.domains.authoring.request import Draw, refuse, settle
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.envs.dates import format_month_day
from understudy.envs.gold import gold_call

NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four"}
INSURE_TERMS = "insure|insured|insurance|insuring"


def refuse_unchangeable(
    b: AirlineTaskBuilder, draw: Draw[Reservation], goal: GoalSpec, action: str, **fields: Any
) -> GoalSpec:
    """Refuse the request because the reservation is cancelled or, unless the task is easy, flown."""
    if not draw.easy and b.draw_bool(0.5):
        return refuse_flown(b, draw, goal, action, **fields)
    b.set_upcoming(draw.entity, one_way=draw.easy, cancelled="change of plans", **fields)
    return refuse_cancelled(b, draw, goal, action)


def refuse_flown(
    b: AirlineTaskBuilder, draw: Draw[Reservation], goal: GoalSpec, action: str, **fields: Any
) -> GoalSpec:
    """Refuse the request because the first flight of the reservation has been flown."""
    trip = b.set_past(draw.entity, **fields).trips[0]
    flight = trip.flights[0]
    reason = f"Flight {flight} on {format_month_day(trip.date)} has landed, so I cannot {action}."
    reads = [read_flight_status(flight, trip.date)]
    return refuse(b, goal, reason, "landed|flown|departed", easy=draw.easy, reads=reads)


def refuse_cancelled(b: AirlineTaskBuilder, draw: Draw[Reservation], goal: GoalSpec, action: str) -> GoalSpec:
    """Refuse the request because the reservation is cancelled."""
    reason = f"Reservation {draw.entity.id} is cancelled, so I cannot {action}."
    return refuse(b, goal, reason, "cancelled|canceled", easy=draw.easy)


def refuse_basic_economy(b: AirlineTaskBuilder, draw: Draw[Reservation], goal: GoalSpec, action: str) -> GoalSpec:
    """Refuse the request because the reservation is basic economy."""
    reason = f"Reservation {draw.entity.id} is basic economy, so I cannot {action}."
    return refuse(b, goal, reason, "basic economy", easy=draw.easy)


def settle_paid(
    goal: GoalSpec,
    proposal: str,
    tool: str,
    report: str,
    payer: str,
    reads: Sequence[Message],
    term: str,
    **arguments: Any,
) -> GoalSpec:
    """Return the request with the gold turns that grant it. An empty `payer` is the reservation's payment method.

    `term` is the price as a term of the proposal, and `arguments` are those of the tool.
    """
    if not payer:
        return settle(goal, proposal, gold_call(tool, **arguments), report, reads, terms=[term])
    kind = payment_kind(payer)
    call = gold_call(tool, **arguments, payment_id=payer)
    reads, terms = (*reads, gold_call("get_customer")), (term, f"{kind}|{payer}")
    return settle(goal, f"{proposal}, with your {kind} {payer}", call, report, reads, terms=terms)


def read_flight_status(flight: str, date: str) -> Message:
    """Return the gold call that reads the status of a flight on a date."""
    return gold_call("get_flight_status", flight=flight, date=date)


def calculate_total(price: Decimal, number: int) -> tuple[Message, ...]:
    """Return the gold turn that calculates `number` times a price, or no turn if `number` is 1."""
    return (gold_call("calculate", expression=f"{price} * {number}"),) if number > 1 else ()


def format_count(number: int, thing: str) -> str:
    """Return a count as in "1 bag" and "2 bags"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def format_more_bags(number: int) -> str:
    """Return a number of further bags as customers say it."""
    return format_count(number, "more checked bag")
