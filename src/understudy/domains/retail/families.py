"""Families: what the requests of a talk are, at three difficulties."""

from collections.abc import Mapping, Sequence

from understudy.domains.callers import IDENTITIES, KNOWLEDGES, Identity, Knowledge
from understudy.domains.drafts import Want
from understudy.domains.retail import wants
from understudy.domains.retail.drafts import Draft
from understudy.domains.retail.state import Order
from understudy.domains.retail.wants import MakeWant
from understudy.tasks import Difficulty

GRANTED = 0.72
"""Share of the requests that can be granted."""

_ACTIONS: tuple[MakeWant, ...] = (wants.cancel, wants.give_back, wants.change_address)
_QUESTIONS: tuple[MakeWant, ...] = (wants.price, wants.status)

FAMILIES: Mapping[str, Sequence[MakeWant]] = {
    "cancel": (wants.cancel,),
    "return": (wants.give_back,),
    "exchange": (wants.exchange,),
    "items": (wants.change_item,),
    "address": (wants.change_address,),
    "payment": (wants.change_payment,),
    "profile": (wants.change_profile,),
    "price": (wants.price,),
    "status": (wants.status,),
    "stock": (wants.stock,),
    "find": _ACTIONS,
    "several": _ACTIONS,
    "correction": (wants.other_address, wants.rather_keep),
    "handover": (wants.outside,),
}
"""The request that a family is about. In `find` its order is known by an item only, `several` is never one request
alone, and in `correction` the user has another mind when asked to confirm."""


def talk(draft: Draft, family: str, difficulty: Difficulty) -> tuple[Identity, Sequence[Want]]:
    """Draw how the customer is identified, and the requests of one talk in order.

    Easy is one request with nothing about it unsaid (`several`: a question, then a request), medium leaves more to find
    out, hard has two requests or three.
    """
    easy = difficulty == "easy"
    identity = draft.random.choice(IDENTITIES[difficulty])
    knows = "described" if family == "find" else draft.random.choice(KNOWLEDGES[difficulty])
    first, *others = draft.orders()
    if family == "several" and easy:
        question = wants.price(draft, first, "told", True, easy)
        return identity, (question, _one_of(draft, _ACTIONS, first, "told", easy))
    request = _one_of(draft, FAMILIES[family], first, knows, easy)
    more = _more(draft, family, first, others) if difficulty == "hard" or family == "several" else []
    return identity, (*more, request) if family == "handover" else (request, *more)


def _more(draft: Draft, family: str, first: Order, others: Sequence[Order]) -> list[Want]:
    """Further requests, about the customer's other orders as far as there are any."""
    if not others:
        make = wants.price if family == "profile" else wants.change_profile
        return [make(draft, first, "told", True, True)]
    return [
        _one_of(draft, _ACTIONS + _QUESTIONS, order, draft.random.choice(("told", "described")), True)
        for order in others
    ]


def _one_of(draft: Draft, makers: Sequence[MakeWant], order: Order, knows: Knowledge, easy: bool) -> Want:
    return draft.random.choice(makers)(draft, order, knows, draft.likely(GRANTED), easy)
