"""Families of airline tasks: the requests of a conversation, at three difficulties."""

from collections.abc import Mapping, Sequence

from understudy.core.tasks import Difficulty
from understudy.domains.airline.goals import booking, info, rebooking, reservation_change
from understudy.domains.airline.goals.base import AirlineGoalFactory
from understudy.domains.airline.state import Reservation
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.authoring.identification import (
    IDENTIFICATION_MODES,
    KNOWLEDGE_LEVELS,
    IdentificationMode,
    Knowledge,
)
from understudy.domains.authoring.task_builder import GoalSpec

GRANTABLE_SHARE = 0.72
"""Share of requests that are allowed."""

_ACTIONS: tuple[AirlineGoalFactory, ...] = (
    reservation_change.cancel_reservation,
    reservation_change.add_insurance,
    reservation_change.add_bags,
    reservation_change.correct_name,
)
_QUESTIONS: tuple[AirlineGoalFactory, ...] = (info.ask_price_paid, info.ask_flight_status)

FAMILIES: Mapping[str, Sequence[AirlineGoalFactory]] = {
    "cancel": (reservation_change.cancel_reservation,),
    "insurance": (reservation_change.add_insurance,),
    "bags": (reservation_change.add_bags,),
    "name": (reservation_change.correct_name,),
    "compensation": (reservation_change.claim_compensation,),
    "flights": (rebooking.change_flights,),
    "cabin": (rebooking.change_cabin,),
    "book": (booking.book_trip,),
    "status": (info.ask_flight_status, info.ask_flight_time),
    "fare": (info.ask_fare, info.ask_bags_price),
    "find": _ACTIONS,
    "several": _ACTIONS,
    "correction": (
        reservation_change.correct_bags,
        reservation_change.switch_cancel_to_insurance,
        rebooking.correct_date,
    ),
    "handover": (reservation_change.ask_out_of_scope,),
}
"""The main requests of a family. Easy tasks of `status` and `fare` draw only the first one. In `find` the user knows
the reservation by its city only. `several` always has more than one request. In `correction` the user changes their
mind when asked to confirm."""


def draw_goals(
    builder: AirlineTaskBuilder, family: str, difficulty: Difficulty
) -> tuple[IdentificationMode, Sequence[GoalSpec]]:
    """Draw how the customer is identified, and the requests of one conversation in order.

    Easy: one request that the first message states completely (`several`: a question, then a request). Medium: the
    agent has to ask more. Hard: two or three requests.
    """
    easy = difficulty == "easy"
    identity = builder.rng.choice(IDENTIFICATION_MODES[difficulty])
    knowledge = "described" if family == "find" else builder.rng.choice(KNOWLEDGE_LEVELS[difficulty])
    first, *others = builder.reservations()
    if family == "several" and easy:
        request = _one_of(
            builder, (reservation_change.cancel_reservation, reservation_change.add_insurance), first, "told", easy
        )
        return identity, (info.ask_price_paid(builder, first, "told", True, easy), request)
    more = [_further(builder, other) for other in others] if difficulty == "hard" or family == "several" else []
    makers = FAMILIES[family][: 1 if easy and family in ("status", "fare") else None]
    request = _one_of(builder, makers, first, knowledge, easy)
    if not others and (difficulty == "hard" or family == "several"):
        more = [(info.ask_price_paid if family == "fare" else info.ask_fare)(builder, first, "told", True, True)]
    return identity, (*more, request) if family == "handover" else (request, *more)


def _further(builder: AirlineTaskBuilder, reservation: Reservation) -> GoalSpec:
    """Draw one more request, about another reservation, that does not use the customer's gift card."""
    reservation = builder.set_fields(reservation, payment=builder.find_payment("card"))
    return _one_of(builder, _ACTIONS + _QUESTIONS, reservation, builder.rng.choice(("told", "described")), True)


def _one_of(
    builder: AirlineTaskBuilder,
    factories: Sequence[AirlineGoalFactory],
    about: Reservation,
    knowledge: Knowledge,
    easy: bool,
) -> GoalSpec:
    return builder.rng.choice(factories)(builder, about, knowledge, builder.draw_bool(GRANTABLE_SHARE), easy)
