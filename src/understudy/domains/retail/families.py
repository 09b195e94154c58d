"""Families of retail tasks: the requests of a conversation, at three difficulties."""

from collections.abc import Mapping, Sequence

from understudy.core.tasks import Difficulty
from understudy.domains.authoring.identification import (
    IDENTIFICATION_MODES,
    KNOWLEDGE_LEVELS,
    IdentificationMode,
    Knowledge,
)
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.retail.goals import info, order_change
from understudy.domains.retail.goals.base import RetailGoalFactory
from understudy.domains.retail.state import Order
from understudy.domains.retail.task_builder import RetailTaskBuilder

GRANTABLE_SHARE = 0.72
"""Share of the requests that can be granted."""

_ACTIONS: tuple[RetailGoalFactory, ...] = (
    order_change.cancel_order,
    order_change.return_items,
    order_change.change_address,
)
_QUESTIONS: tuple[RetailGoalFactory, ...] = (info.ask_price, info.ask_status)

FAMILIES: Mapping[str, Sequence[RetailGoalFactory]] = {
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
    builder: RetailTaskBuilder, family: str, difficulty: Difficulty
) -> tuple[IdentificationMode, Sequence[GoalSpec]]:
    """Draw how the customer is identified, and the requests of one conversation in order.

    Easy: one request that the first message states completely (`several`: a question, then a request). Medium: the
    agent has to ask more. Hard: two or three requests.
    """
    easy = difficulty == "easy"
    identity = builder.rng.choice(IDENTIFICATION_MODES[difficulty])
    knowledge = "described" if family == "find" else builder.rng.choice(KNOWLEDGE_LEVELS[difficulty])
    first, *others = builder.orders()
    if family == "several" and easy:
        question = info.ask_price(builder, first, "told", True, easy)
        return identity, (question, _one_of(builder, _ACTIONS, first, "told", easy))
    request = _one_of(builder, FAMILIES[family], first, knowledge, easy)
    more = _more(builder, family, first, others) if difficulty == "hard" or family == "several" else []
    return identity, (*more, request) if family == "handover" else (request, *more)


def _more(builder: RetailTaskBuilder, family: str, first: Order, others: Sequence[Order]) -> list[GoalSpec]:
    """Draw further requests, about the customer's other orders if there are any."""
    if not others:
        make = info.ask_price if family == "profile" else order_change.change_profile
        return [make(builder, first, "told", True, True)]
    return [
        _one_of(builder, _ACTIONS + _QUESTIONS, order, builder.rng.choice(("told", "described")), True)
        for order in others
    ]


def _one_of(
    builder: RetailTaskBuilder, factories: Sequence[RetailGoalFactory], order: Order, knowledge: Knowledge, easy: bool
) -> GoalSpec:
    return builder.rng.choice(factories)(builder, order, knowledge, builder.draw_bool(GRANTABLE_SHARE), easy)
