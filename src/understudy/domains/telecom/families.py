"""Families: what the requests of a talk are, at three difficulties."""

from collections.abc import Mapping, Sequence

from understudy.domains.callers import IDENTITIES, KNOWLEDGES, Identity, Knowledge
from understudy.domains.drafts import Want
from understudy.domains.telecom import wants
from understudy.domains.telecom.drafts import Caller, Draft
from understudy.domains.telecom.repairs import Symptom, trouble
from understudy.domains.telecom.wants import MakeWant
from understudy.tasks import Difficulty

GRANTED = 0.72
"""Share of the requests that can be granted, and of the troubles that can be repaired."""

_CHANGES: tuple[MakeWant, ...] = (wants.suspend, wants.plan, wants.data, wants.roaming, wants.sim)
_QUESTIONS: tuple[MakeWant, ...] = (wants.usage, wants.bill)
_REQUESTS: Mapping[str, Sequence[MakeWant]] = {
    "suspend": (wants.suspend,),
    "resume": (wants.resume,),
    "plan": (wants.plan,),
    "data": (wants.data,),
    "roaming": (wants.roaming,),
    "sim": (wants.sim,),
    "pay": (wants.pay,),
    "bill": (wants.bill,),
    "usage": (wants.usage,),
    "ticket": (wants.report, wants.progress),
    "several": _CHANGES,
    "correction": (wants.other_plan, wants.rather_plan),
    "handover": (wants.outside,),
}
"""The request that a family is about. `several` is never one request alone, and in `correction` the user has another
mind when asked to confirm."""

_TROUBLES: Sequence[Symptom] = ("internet", "calls", "slow", "abroad")
"""Something does not work: no internet, no calls, a slow internet, no internet abroad. Agent and user find out why."""

FAMILIES: tuple[str, ...] = (*_REQUESTS, *_TROUBLES)

_BY_NAME: Sequence[Knowledge] = ("described", "vague")
"""Who does not know their own number knows none of the others."""


def talk(draft: Draft, family: str, difficulty: Difficulty) -> tuple[Caller, Sequence[Want]]:
    """Draw how the customer is identified, the line that they call from, and the requests of one talk in order.

    Easy is one request with nothing about it unsaid (`several`: a question, then a request), medium leaves more to find
    out, hard has two requests or more, or two causes of one trouble.
    """
    identity = draft.random.choice(IDENTITIES[difficulty])
    number, requests = _drawn(draft, identity, family, difficulty)
    draft.patch("desk", "now", number=number)
    return Caller(identity, number), requests


def _drawn(draft: Draft, identity: Identity, family: str, difficulty: Difficulty) -> tuple[str, Sequence[Want]]:
    """The line that the customer calls from, and the requests."""
    easy = difficulty == "easy"
    first, *others = draft.lines()
    if symptom := next((symptom for symptom in _TROUBLES if symptom == family), None):
        request = trouble(draft, first, identity, symptom, draft.likely(GRANTED), difficulty)
        further = _more(draft, identity, others)[:1] if difficulty == "hard" and draft.likely(0.4) else []
        return first, (request,) if _hands_over(request) else (request, *further)
    knows = draft.random.choice(_BY_NAME if identity == "other" else KNOWLEDGES[difficulty])
    if family == "several" and easy:
        return first, tuple(_one_of(draft, makers, first, "told") for makers in (_QUESTIONS, _CHANGES))
    make = draft.random.choice(_REQUESTS[family])
    request = make(draft, first, knows, draft.likely(GRANTED), easy)
    more = _more(draft, identity, others) if difficulty == "hard" or family == "several" else []
    caller = draft.random.choice(draft.customer.lines)
    return caller, (*more, request) if family == "handover" else (request, *more)


def _hands_over(want: Want) -> bool:
    return any(call.name == "transfer_to_human" for turn in want.turns for call in turn.tool_calls)


def _more(draft: Draft, identity: Identity, others: Sequence[str]) -> list[Want]:
    """Further requests, about the customer's other lines as far as there are any."""
    if not others:
        return [wants.bill(draft, "", "told", True, True)]
    known: Sequence[Knowledge] = ("described",) if identity == "other" else ("told", "described")
    return [_one_of(draft, _CHANGES + _QUESTIONS, number, draft.random.choice(known)) for number in others]


def _one_of(draft: Draft, makers: Sequence[MakeWant], number: str, knows: Knowledge) -> Want:
    return draft.random.choice(makers)(draft, number, knows, draft.likely(GRANTED), True)
