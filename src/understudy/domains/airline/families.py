"""Families of airline tasks: the requests of a conversation, at three difficulties."""

from collections.abc import Mapping, Sequence

from understudy.core.tasks import Difficulty
from understudy.domains.airline.goals import booking, info, rebooking, reservation_change
from understudy.domains.airline.state import Reservation
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.authoring.identification import IDENTIFICATION_MODES, KNOWLEDGE_LEVELS, IdentificationMode
from understudy.domains.authoring.request import Draw, GoalFunction, draw_goal
from understudy.domains.authoring.task_builder import GoalSpec

AirlineGoal = GoalFunction[AirlineTaskBuilder, Reservation]

_ACTIONS: tuple[AirlineGoal, ...] = (
    reservation_change.cancel_reservation,
    reservation_change.add_insurance,
    reservation_change.add_bags,
    reservation_change.correct_name,
)
_QUESTIONS: tuple[AirlineGoal, ...] = (info.ask_price_paid, info.ask_flight_status)

FAMILIES: Mapping[str, Sequence[AirlineGoal]] = {
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
    b: AirlineTaskBuilder, family: str, difficulty: Difficulty
) -> tuple[IdentificationMode, Sequence[GoalSpec]]:
    """Draw how the customer is identified, and the requests of one conversation in order.

    Easy: one request that the first message states completely (`several`: a question, then a request). Medium: the
    agent has to ask more. Hard: two or three requests.
    """
    easy = difficulty == "easy"
    identification = b.rng.choice(IDENTIFICATION_MODES[difficulty])
    knowledge = "described" if family == "find" else b.rng.choice(KNOWLEDGE_LEVELS[difficulty])
    first, *others = b.reservations()
    if family == "several" and easy:
        goal = draw_goal(b, _ACTIONS[:2], first, "told", easy=True)
        return identification, (info.ask_price_paid(b, Draw(first, "told", True, easy)), goal)
    several = difficulty == "hard" or family == "several"
    more = [_further_goal(b, other) for other in others] if several else []
    functions = FAMILIES[family][: 1 if easy and family in ("status", "fare") else None]
    goal = draw_goal(b, functions, first, knowledge, easy=easy)
    if several and not others:
        question = info.ask_price_paid if family == "fare" else info.ask_fare
        more = [question(b, Draw(first, "told", True, True))]
    return identification, (*more, goal) if family == "handover" else (goal, *more)


def _further_goal(b: AirlineTaskBuilder, reservation: Reservation) -> GoalSpec:
    """Draw one more request, about another reservation, that does not use the customer's gift card."""
    reservation = b.set_fields(reservation, payment=b.find_payment("card"))
    return draw_goal(b, _ACTIONS + _QUESTIONS, reservation, b.rng.choice(("told", "described")), easy=True)
