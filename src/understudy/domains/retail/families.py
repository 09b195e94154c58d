"""Families of retail tasks: the requests of a conversation, at three difficulties."""

from collections.abc import Mapping, Sequence

from understudy.core.tasks import Difficulty
from understudy.domains.authoring.identification import IDENTIFICATION_MODES, KNOWLEDGE_LEVELS, IdentificationMode
from understudy.domains.authoring.request import Draw, GoalFunction, draw_goal
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.retail.goals import info, order_change
from understudy.domains.retail.state import Order
from understudy.domains.retail.task_builder import RetailTaskBuilder

RetailGoal = GoalFunction[RetailTaskBuilder, Order]

_ACTIONS: tuple[RetailGoal, ...] = (
    order_change.cancel_order,
    order_change.return_items,
    order_change.change_address,
)
_QUESTIONS: tuple[RetailGoal, ...] = (info.ask_price, info.ask_status)

FAMILIES: Mapping[str, Sequence[RetailGoal]] = {
    "cancel": (order_change.cancel_order,),
    "return": (order_change.return_items,),
    "exchange": (order_change.exchange_item,),
    "items": (order_change.change_item,),
    "address": (order_change.change_address,),
    "payment": (order_change.change_payment,),
    "profile": (order_change.change_profile,),
    "price": (info.ask_price,),
    "status": (info.ask_status,),
    "stock": (info.ask_stock_price,),
    "find": _ACTIONS,
    "several": _ACTIONS,
    "correction": (order_change.correct_address, order_change.switch_cancel_to_address),
    "handover": (order_change.ask_out_of_scope,),
}
"""The main requests of a family. In `find` the user knows the order by an item only, `several` always has more than one
request, and in `correction` the user changes their mind when asked to confirm."""


def draw_goals(
    b: RetailTaskBuilder, family: str, difficulty: Difficulty
) -> tuple[IdentificationMode, Sequence[GoalSpec]]:
    """Draw how the customer is identified, and the requests of one conversation in order.

    Easy: one request that the first message states completely (`several`: a question, then a request). Medium: the
    agent has to ask more. Hard: two or three requests.
    """
    easy = difficulty == "easy"
    identification = b.rng.choice(IDENTIFICATION_MODES[difficulty])
    knowledge = "described" if family == "find" else b.rng.choice(KNOWLEDGE_LEVELS[difficulty])
    first, *others = b.orders()
    if family == "several" and easy:
        question = info.ask_price(b, Draw(first, "told", True, easy))
        return identification, (question, draw_goal(b, _ACTIONS, first, "told", easy=True))
    goal = draw_goal(b, FAMILIES[family], first, knowledge, easy=easy)
    more = _more(b, family, first, others) if difficulty == "hard" or family == "several" else []
    return identification, (*more, goal) if family == "handover" else (goal, *more)


def _more(b: RetailTaskBuilder, family: str, first: Order, others: Sequence[Order]) -> list[GoalSpec]:
    """Draw further requests, about the customer's other orders if there are any."""
    if not others:
        make = info.ask_price if family == "profile" else order_change.change_profile
        return [make(b, Draw(first, "told", True, True))]
    functions = _ACTIONS + _QUESTIONS
    return [draw_goal(b, functions, order, b.rng.choice(("told", "described")), easy=True) for order in others]
