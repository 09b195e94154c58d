"""Families: what the requests of a talk are, at three difficulties."""

from collections.abc import Mapping, Sequence

from understudy.domains.callers import IDENTITIES, KNOWLEDGES, Identity, Knowledge
from understudy.domains.doordash import changes, claims, purchases, questions
from understudy.domains.doordash.drafts import Draft
from understudy.domains.doordash.state import Order
from understudy.domains.doordash.wants import MakeWant
from understudy.domains.drafts import Want
from understudy.tasks import Difficulty

GRANTED = 0.7
"""Share of the requests that can be granted."""

_ACTIONS: tuple[MakeWant, ...] = (
    changes.cancel,
    changes.change_address,
    changes.change_dropoff,
    changes.change_tip,
    claims.missing,
)
"""Those that change nothing but an order and the account, so that several fit into one talk."""
_QUESTIONS: tuple[MakeWant, ...] = (questions.paid, questions.track)

FAMILIES: Mapping[str, Sequence[MakeWant]] = {
    "cancel": (changes.cancel,),
    "address": (changes.change_address,),
    "dropoff": (changes.change_dropoff,),
    "tip": (changes.change_tip,),
    "items": (changes.change_items,),
    "promotion": (changes.apply_promotion,),
    "missing": (claims.missing,),
    "late": (claims.late,),
    "redeliver": (claims.redeliver,),
    "place": (purchases.place,),
    "again": (purchases.again,),
    "allergy": (purchases.allergy,),
    "cheapest": (purchases.cheaper,),
    "paid": (questions.paid,),
    "track": (questions.track,),
    "menu": (questions.menu,),
    "several": _ACTIONS,
    "correction": (changes.other_address, changes.other_tip, changes.rather_keep),
    "handover": (claims.outside, claims.over_limit),
}
"""The request that a family is about. `several` is never one request alone, and in `correction` the customer has
another mind when asked to confirm."""


def talk(draft: Draft, family: str, difficulty: Difficulty) -> tuple[Identity, Sequence[Want]]:
    """Draw how the customer is identified, and the requests of one talk in order.

    Easy is one request with nothing about it unsaid (`several`: a question, then a request), medium leaves more to find
    out, hard has two requests or three. A human agent comes last.
    """
    easy = difficulty == "easy"
    identity = draft.random.choice(IDENTITIES[difficulty])
    first, *others = draft.orders()
    if family == "several" and easy:
        question = questions.paid(draft, first, "told", True, easy)
        return identity, (question, _one_of(draft, _ACTIONS, first, "told", easy))
    last = family == "handover" and difficulty == "hard"
    knows: Knowledge = "told" if last else draft.random.choice(KNOWLEDGES[difficulty])
    request = _one_of(draft, FAMILIES[family], first, knows, easy)
    more = _more(draft, family, others) if difficulty == "hard" or family == "several" else []
    return identity, (*more, request) if last else (request, *more)


def _more(draft: Draft, family: str, others: Sequence[Order]) -> list[Want]:
    """Further requests, about the customer's other orders as far as there are any."""
    if not others:
        make = purchases.cheaper if family == "menu" else questions.menu
        return [make(draft, draft.orders()[0], "told", True, True)]
    makers = _QUESTIONS if family == "handover" else _ACTIONS + _QUESTIONS
    return [_one_of(draft, makers, order, draft.random.choice(("told", "described")), True) for order in others]


def _one_of(draft: Draft, makers: Sequence[MakeWant], order: Order, knows: Knowledge, easy: bool) -> Want:
    return draft.random.choice(makers)(draft, order, knows, draft.likely(GRANTED), easy)
