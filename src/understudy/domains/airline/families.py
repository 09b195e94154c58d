"""Families: what the requests of a talk are, at three difficulties."""

from collections.abc import Mapping, Sequence

from understudy.domains.airline import bookings, questions, travels, wants
from understudy.domains.airline.drafts import Draft
from understudy.domains.airline.state import Reservation
from understudy.domains.airline.wants import MakeWant
from understudy.domains.callers import IDENTITIES, KNOWLEDGES, Identity, Knowledge
from understudy.domains.drafts import Want
from understudy.tasks import Difficulty

GRANTED = 0.72
"""Share of the requests that can be granted."""

_ACTIONS: tuple[MakeWant, ...] = (wants.cancel, wants.insure, wants.bags, wants.correct_name)
_QUESTIONS: tuple[MakeWant, ...] = (questions.paid, questions.status)

FAMILIES: Mapping[str, Sequence[MakeWant]] = {
    "cancel": (wants.cancel,),
    "insurance": (wants.insure,),
    "bags": (wants.bags,),
    "name": (wants.correct_name,),
    "compensation": (wants.compensate,),
    "flights": (travels.change_flights,),
    "cabin": (travels.change_cabin,),
    "book": (bookings.book,),
    "status": (questions.status, questions.times_of_day),
    "fare": (questions.fare, questions.bags_quote),
    "find": _ACTIONS,
    "several": _ACTIONS,
    "correction": (wants.other_bags, wants.rather_keep, travels.other_date),
    "handover": (wants.outside,),
}
"""The request that a family is about; easy questions are the first of their kinds. In `find` the reservation is known
by its city only, `several` is never one request alone, and in `correction` the user changes their mind when asked to
confirm."""


def talk(draft: Draft, family: str, difficulty: Difficulty) -> tuple[Identity, Sequence[Want]]:
    """Draw how the customer is identified, and the requests of one talk in order.

    Easy is one request with nothing about it unsaid (`several`: a question, then a request), medium leaves more to find
    out, hard has two requests or three.
    """
    easy = difficulty == "easy"
    identity = draft.random.choice(IDENTITIES[difficulty])
    knows = "described" if family == "find" else draft.random.choice(KNOWLEDGES[difficulty])
    first, *others = draft.reservations()
    if family == "several" and easy:
        request = _one_of(draft, (wants.cancel, wants.insure), first, "told", easy)
        return identity, (questions.paid(draft, first, "told", True, easy), request)
    more = [_further(draft, other) for other in others] if difficulty == "hard" or family == "several" else []
    makers = FAMILIES[family][: 1 if easy and family in ("status", "fare") else None]
    request = _one_of(draft, makers, first, knows, easy)
    if not others and (difficulty == "hard" or family == "several"):
        more = [(questions.paid if family == "fare" else questions.fare)(draft, first, "told", True, True)]
    return identity, (*more, request) if family == "handover" else (request, *more)


def _further(draft: Draft, reservation: Reservation) -> Want:
    """One more request, about another reservation, that leaves the customer's gift card alone."""
    reservation = draft.shape(reservation, payment=draft.payment("card"))
    return _one_of(draft, _ACTIONS + _QUESTIONS, reservation, draft.random.choice(("told", "described")), True)


def _one_of(draft: Draft, makers: Sequence[MakeWant], about: Reservation, knows: Knowledge, easy: bool) -> Want:
    return draft.random.choice(makers)(draft, about, knows, draft.likely(GRANTED), easy)
