"""Families: what the requests of a talk are, at three difficulties."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from understudy.domains.drafts import Want
from understudy.domains.healthcare.accounts import insurance, phone, referral
from understudy.domains.healthcare.bills import owed, pay, spread
from understudy.domains.healthcare.bookings import book, specialist
from understudy.domains.healthcare.drafts import Draft, Identity
from understudy.domains.healthcare.handovers import advice, outside, urgent
from understudy.domains.healthcare.medicines import move_medicine, other_pharmacy, refill
from understudy.domains.healthcare.questions import closing, copay, lab, next_free, on_file, referral_left, when
from understudy.domains.healthcare.talks import person
from understudy.domains.healthcare.visits import MakeWant, cancel, move, other_time, rather_move
from understudy.domains.healthcare.world import callers
from understudy.domains.talks import Person
from understudy.tasks import Difficulty

GRANTED = 0.72
"""Share of the requests that can be granted."""

_VISITS: tuple[MakeWant, ...] = (cancel, move, book, copay, referral)
_MEDICINES: tuple[MakeWant, ...] = (refill, move_medicine)
_BILLS: tuple[MakeWant, ...] = (pay, spread, owed)
_FILE: tuple[MakeWant, ...] = (phone, lab, closing)
_GROUPS: Mapping[Sequence[MakeWant], Sequence[MakeWant]] = {
    _VISITS: (specialist, other_time, rather_move, when, next_free, referral_left, insurance),
    _MEDICINES: (other_pharmacy,),
    _BILLS: (),
    _FILE: (on_file,),
}
"""Requests in groups: common ones, and others that touch the same rows. Those of two groups go together in a talk."""
_QUESTIONS: tuple[MakeWant, ...] = (lab, owed, closing, on_file)

FAMILIES: Mapping[str, Sequence[MakeWant]] = {
    "book": (book,),
    "specialist": (specialist,),
    "move": (move,),
    "cancel": (cancel,),
    "refill": (refill,),
    "pharmacy": (move_medicine,),
    "referral": (referral,),
    "account": (phone, insurance),
    "bill": (pay, spread),
    "balance": (owed,),
    "coverage": (copay,),
    "labs": (lab,),
    "question": (when, next_free, referral_left, on_file, closing),
    "several": (cancel, move, book, refill, move_medicine, pay, spread, phone),
    "correction": (other_time, rather_move, other_pharmacy),
    "proxy": (cancel, move, refill, move_medicine),
    "handover": (urgent, advice, outside, outside),
}
"""The request that a family is about. `several` is never one request alone, in `correction` the caller has another mind
when asked to confirm, and in `proxy` somebody calls for the patient, who may be on the patient's list or not."""

_IDENTITY: Mapping[Difficulty, Sequence[Identity]] = {
    "easy": ("opened", "opened", "opened", "asked", "asked"),
    "medium": ("opened", "asked", "member"),
    "hard": ("opened", "asked", "member"),
}


def talk(draft: Draft, family: str, difficulty: Difficulty) -> tuple[Person, Sequence[Want]]:
    """Draw how the patient is identified, the requests of one talk in order, and who speaks.

    Easy is one request with nothing about it unsaid (`several`: a question, then a request), medium leaves more to find
    out, hard has two requests or three.
    """
    draft.identity = draft.random.choice(_IDENTITY[difficulty])
    wants = _drawn(draft, family, difficulty)
    return person(draft, difficulty == "easy"), wants


def _drawn(draft: Draft, family: str, difficulty: Difficulty) -> Sequence[Want]:
    """The requests."""
    easy = difficulty == "easy"
    if family == "proxy":
        return _for_another(draft, difficulty)
    make = draft.random.choice(FAMILIES[family])
    if family == "several" and easy:
        return _one(draft, _question(draft, make), True), _one(draft, make, True)
    request = _one(draft, make, easy)
    if draft.identity == "urgent" or (difficulty != "hard" and family != "several"):
        return (request,)
    more = _more(draft, make)
    return (*more, request) if family == "handover" else (request, *more)


def _for_another(draft: Draft, difficulty: Difficulty) -> Sequence[Want]:
    """Requests of somebody who calls for the patient; all are refused to one who is not on the patient's list."""
    draft.identity, make = "proxy", draft.random.choice(FAMILIES["proxy"])
    listed, allowed = draft.patient.proxies, draft.likely(GRANTED)
    others = [name for name in callers() if name not in listed]
    draft.caller = draft.random.choice(listed if allowed and listed else others)
    if allowed:
        draft.patch("patients", draft.key, proxies=sorted({*listed, draft.caller}))
        request = _one(draft, make, difficulty == "easy")
        other = draft.random.choice([other for other in FAMILIES["proxy"] if (other in _VISITS) != (make in _VISITS)])
        return (request, _one(draft, other, True)) if difficulty == "hard" else (request,)
    want = make(draft, True, difficulty == "easy")
    text = f"{draft.caller} is not on the patient's list, so I cannot help with this."
    return (draft.refused(replace(want, turns=(), meant=""), text, "list|authorized", easy=difficulty == "easy"),)


def _more(draft: Draft, make: MakeWant) -> list[Want]:
    """One or two further requests of other groups."""
    groups = [group for group, others in _GROUPS.items() if make not in (*group, *others)]
    chosen = draft.random.sample(groups, draft.random.randint(1, 2))
    return [_one(draft, draft.random.choice(group), True) for group in chosen]


def _question(draft: Draft, make: MakeWant) -> MakeWant:
    """A question of another group than a request's."""
    own = next(group for group in _GROUPS if make in group)
    return draft.random.choice([question for question in _QUESTIONS if question not in own])


def _one(draft: Draft, make: MakeWant, easy: bool) -> Want:
    return make(draft, draft.likely(GRANTED), easy)
