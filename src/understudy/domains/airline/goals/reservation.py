"""Shared parts of the requests about reservations."""

from decimal import Decimal
from typing import Any

from understudy.core.messages import Message
from understudy.domains.airline.state import Reservation
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.authoring.payments import payment_kind
from understudy.domains.authoring.request import Draw, refuse
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.envs.dates import format_month_day
from understudy.envs.gold import gold_call

NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four"}
INSURE_TERMS = "insure|insures|insured|insurance|insuring"


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


def pay_with(payer: str) -> tuple[str, dict[str, str], tuple[Message, ...], tuple[str, ...]]:
    """Return what a change has beside the rest if `payer` is to pay for it, and not the reservation's payment method.

    It is the end of the proposal, an argument of the call, a lookup, and a term of the proposal. All are empty if
    `payer` is.
    """
    if not payer:
        return "", {}, (), ()
    kind = payment_kind(payer)
    words, term = f", with your {kind} {payer}", f"{kind}|{payer}"
    return words, {"payment_id": payer}, (gold_call("get_customer"),), (term,)


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
