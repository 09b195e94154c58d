"""Families of delivery tasks: the requests of a conversation, at three difficulties."""

from collections.abc import Mapping, Sequence

from understudy.core.tasks import Difficulty
from understudy.domains.authoring.identification import (
    IDENTIFICATION_MODES,
    KNOWLEDGE_LEVELS,
    IdentificationMode,
    Knowledge,
)
from understudy.domains.authoring.request import Draw, GoalFunction, draw_goal
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.doordash.goals import claim, info, order_change, purchase
from understudy.domains.doordash.state import Order
from understudy.domains.doordash.task_builder import DoordashTaskBuilder

DoordashGoal = GoalFunction[DoordashTaskBuilder, Order]

_ACTIONS: tuple[DoordashGoal, ...] = (
    order_change.cancel_order,
    order_change.change_address,
    order_change.change_dropoff,
    order_change.change_tip,
    claim.claim_missing_items,
)
"""Requests that only change an order and the account, so that several fit into one conversation."""
_QUESTIONS: tuple[DoordashGoal, ...] = (info.ask_price_paid, info.track_order)

FAMILIES: Mapping[str, Sequence[DoordashGoal]] = {
    "cancel": (order_change.cancel_order,),
    "address": (order_change.change_address,),
    "dropoff": (order_change.change_dropoff,),
    "tip": (order_change.change_tip,),
    "items": (order_change.change_items,),
    "promotion": (order_change.apply_promotion,),
    "missing": (claim.claim_missing_items,),
    "late": (claim.claim_late_delivery,),
    "redeliver": (claim.claim_redelivery,),
    "place": (purchase.place_order,),
    "again": (purchase.reorder,),
    "allergy": (purchase.order_without_allergen,),
    "cheapest": (purchase.order_cheapest,),
    "paid": (info.ask_price_paid,),
    "track": (info.track_order,),
    "menu": (info.ask_menu,),
    "several": _ACTIONS,
    "correction": (
        order_change.correct_address,
        order_change.correct_tip,
        order_change.switch_cancel_to_dropoff,
    ),
    "handover": (claim.ask_out_of_scope, claim.claim_over_refund_limit),
}
"""The main requests of a family. `several` always has more than one request, and in `correction` the customer changes
their mind when asked to confirm."""


def draw_goals(
    b: DoordashTaskBuilder, family: str, difficulty: Difficulty
) -> tuple[IdentificationMode, Sequence[GoalSpec]]:
    """Draw how the customer is identified, and the requests of one conversation in order.

    Easy: one request that the first message states completely (`several`: a question, then a request). Medium: the
    agent has to ask more. Hard: two or three requests. A transfer to a human agent comes last.
    """
    easy = difficulty == "easy"
    identification = b.rng.choice(IDENTIFICATION_MODES[difficulty])
    first, *others = b.orders()
    if family == "several" and easy:
        question = info.ask_price_paid(b, Draw(first, "told", True, easy))
        return identification, (question, draw_goal(b, _ACTIONS, first, "told", easy=True))
    last = family == "handover" and difficulty == "hard"
    knowledge: Knowledge = "told" if last else b.rng.choice(KNOWLEDGE_LEVELS[difficulty])
    goal = draw_goal(b, FAMILIES[family], first, knowledge, easy=easy)
    more = _more(b, family, others) if difficulty == "hard" or family == "several" else []
    return identification, (*more, goal) if last else (goal, *more)


def _more(b: DoordashTaskBuilder, family: str, others: Sequence[Order]) -> list[GoalSpec]:
    """Draw further requests, about the customer's other orders if there are any."""
    if not others:
        make = purchase.order_cheapest if family == "menu" else info.ask_menu
        return [make(b, Draw(b.orders()[0], "told", True, True))]
    functions = _QUESTIONS if family == "handover" else _ACTIONS + _QUESTIONS
    return [draw_goal(b, functions, order, b.rng.choice(("told", "described")), easy=True) for order in others]
