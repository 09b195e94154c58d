"""Shared parts of the requests about reservations.

`grantable` says whether the policy allows the request. The first message does not reveal it.
"""

from dataclasses import replace
from decimal import Decimal
from typing import Any, Protocol

from understudy.core.messages import Message
from understudy.domains.airline.state import Reservation
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_text
from understudy.envs.dates import format_month_day

NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four"}
_PAYMENT_KINDS = {"card": "credit card", "gift": "gift card", "certificate": "travel certificate"}

INSURE_TERMS = "insure|insured|insurance|insuring"


class AirlineGoalFactory(Protocol):
    """A function that draws one request about a reservation."""

    def __call__(
        self, builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
    ) -> GoalSpec:
        """Draw a request. With `easy`, the first message states everything about it."""


def add_refusal(
    builder: AirlineTaskBuilder,
    goal: GoalSpec,
    refusal: Message,
    output: str,
    easy: bool,
    reads: tuple[Message, ...] = (),
) -> GoalSpec:
    """Refuse the request for a reason. Some customers contest the refusal."""
    contests = not easy and builder.draw_bool(0.5)
    return replace(goal, gold_turns=reads + (refusal,) * (1 + contests), outputs=(output,), contests_refusal=contests)


def add_unchangeable_refusal(
    builder: AirlineTaskBuilder,
    goal: GoalSpec,
    reservation: Reservation,
    action: str,
    easy: bool = False,
    reads: tuple[Message, ...] = (),
    **fields: Any,
) -> GoalSpec:
    """Refuse the request because the reservation is cancelled or, unless `easy`, flown."""
    if not easy and builder.draw_bool(0.5):
        return add_flown_refusal(builder, goal, reservation, action, reads, **fields)
    builder.set_upcoming(reservation, one_way=easy, cancelled="change of plans", **fields)
    return add_cancelled_refusal(builder, goal, reservation, action, easy, reads)


def add_flown_refusal(
    builder: AirlineTaskBuilder,
    goal: GoalSpec,
    reservation: Reservation,
    action: str,
    reads: tuple[Message, ...] = (),
    **fields: Any,
) -> GoalSpec:
    """Refuse the request because the first flight of the reservation has been flown."""
    trip = builder.set_past(reservation, **fields).trips[0]
    check = gold_call("get_flight_status", flight=trip.flights[0], date=trip.date)
    refusal = gold_text(f"Flight {trip.flights[0]} on {format_month_day(trip.date)} has landed, so I cannot {action}.")
    return add_refusal(builder, goal, refusal, "landed|flown|departed", False, (*reads, check))


def add_cancelled_refusal(
    builder: AirlineTaskBuilder,
    goal: GoalSpec,
    reservation: Reservation,
    action: str,
    easy: bool,
    reads: tuple[Message, ...] = (),
) -> GoalSpec:
    """Refuse the request because the reservation is cancelled."""
    refusal = gold_text(f"Reservation {reservation.id} is cancelled, so I cannot {action}.")
    return add_refusal(builder, goal, refusal, "cancelled|canceled", easy, reads)


def calculate_total(price: Decimal, number: int) -> tuple[Message, ...]:
    """Return the gold turn that calculates `number` times a price, or no turn if `number` is 1."""
    return (gold_call("calculate", expression=f"{price} * {number}"),) if number > 1 else ()


def payment_kind(payment_id: str) -> str:
    """Return the kind of a payment in words, such as "credit card"."""
    return _PAYMENT_KINDS[payment_id.partition("_")[0]]


def format_count(number: int, thing: str) -> str:
    """Return a count as in "1 bag" and "2 bags"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def format_more_bags(number: int) -> str:
    """Return a number of further bags as customers say it."""
    return format_count(number, "more checked bag")
