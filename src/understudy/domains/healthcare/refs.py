"""Appointments, prescriptions and bills as the caller and the agent call them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from understudy.domains import drafts
from understudy.domains.days import any_day, month_day
from understudy.domains.drafts import call, say
from understudy.domains.healthcare import phrases
from understudy.domains.healthcare.dates import DAYS, spoken_day
from understudy.domains.healthcare.drafts import Draft
from understudy.domains.healthcare.state import Appointment, Bill, Kind, Prescription
from understudy.messages import Message
from understudy.tasks import Fact

Row = TypeVar("Row", Appointment, Prescription, Bill)
Knowledge = Literal["told", "described", "vague", "wrong"]
"""What the caller says of a thing: its name at once, something else about it, its name when asked, or a wrong one."""

EASY: Sequence[Knowledge] = ("told",)
HARDER: Sequence[Knowledge] = ("told", "described", "vague", "wrong")

_WHICH_VISIT = ("which appointment", "which visit", "which one", "which of", "which doctor")
_WHICH_DRUG = ("which medicine", "which prescription", "which one", "which of", "which medication", "which drug")
_WHICH_BILL = ("which bill", "which one", "which of")


@dataclass(frozen=True)
class Ref(drafts.Mention, Generic[Row]):
    """A row of the patient's."""

    row: Row
    names: tuple[str, ...]
    """What a proposal has to name for the caller to recognize it."""
    asks: str = ""
    """What the agent says to find out which one is meant, if it has to."""


def visit(draft: Draft, row: Appointment, easy: bool) -> Ref[Appointment]:
    """An appointment of the patient's."""
    knows = draft.random.choice(EASY if easy else HARDER)
    others = [a for a in draft.visits() if a.id != row.id]
    specialty = draft.world.doctors[row.doctor].specialty
    words = {"owner": draft.owner, "doctor": row.doctor, "specialty": specialty}
    known = draft.pick(phrases.VISIT, **words)
    fact = Fact(says=draft.pick(phrases.WHICH, thing=f"the one with Dr. {row.doctor}"), cues=_WHICH_VISIT)
    names, asks, said = (row.doctor,), "", known
    if knows == "described" and all(draft.world.doctors[a.doctor].specialty != specialty for a in others):
        said = known = draft.pick(phrases.VISIT_DESCRIBED, **words)
        names = (f"{row.doctor}|{specialty}",)
    elif knows == "vague" and row.status == "booked":
        booked = [f"Dr. {a.doctor}" for a in draft.visits() if a.status == "booked"]
        said, asks = f"{draft.owner} appointment", _which("appointment", booked)
    elif knows == "wrong":
        wrong = draft.random.choice([day for day in DAYS if all(a.time[:10] != day for a in draft.visits())])
        said = draft.pick(phrases.VISIT_WRONG, owner=draft.owner, day=spoken_day(draft.random, wrong))
        asks = f"There is no appointment on {wrong}. Which one is it?"
    return Ref("visit", said, known, row, names, asks, facts=(fact,))


def medicine(draft: Draft, row: Prescription, easy: bool) -> Ref[Prescription]:
    """A prescription of the patient's."""
    knows = draft.random.choice(EASY if easy else HARDER)
    known = said = f"{draft.owner} {row.drug}"
    fact = Fact(says=draft.pick(phrases.WHICH, thing=f"the {row.drug}"), cues=_WHICH_DRUG)
    names, asks = (row.drug,), ""
    if knows == "described":
        said = known = draft.pick(phrases.DRUG_DESCRIBED, owner=draft.owner, use=row.use)
        names = (f"{row.drug}|{row.use}",)
    elif knows == "vague":
        said = draft.pick(phrases.DRUG_VAGUE, owner=draft.owner)
        asks = _which("medicine", [other.drug for other in draft.own("prescriptions")])
    elif knows == "wrong":
        wrong = f"RX{draft.random.randint(100, 999)}"
        said, asks = f"prescription {wrong}", f"There is no prescription {wrong}. Which one is it?"
    return Ref("drug", said, known, row, names, asks, facts=(fact,))


def bill(draft: Draft, row: Bill, easy: bool) -> Ref[Bill]:
    """A bill of the patient's."""
    knows = draft.random.choice(EASY if easy else HARDER)
    known = said = f"bill {row.id}"
    fact = Fact(says=draft.pick(phrases.WHICH, thing=f"bill {row.id}"), cues=_WHICH_BILL)
    names, asks = (row.id,), ""
    if knows in ("described", "wrong"):
        said = known = draft.pick(phrases.BILL_DESCRIBED, day=month_day(row.date))
        names = (f"{row.id}|{any_day(row.date)}",)
    elif knows == "vague":
        said, asks = draft.pick(phrases.BILL_VAGUE), _which("bill", [r.id for r in draft.own("bills")])
    return Ref("bill", said, known, row, names, asks, facts=(fact,))


def _which(kind: str, candidates: Sequence[str]) -> str:
    """The question which of several is meant; none where there is one alone."""
    *others, last = candidates
    return f"Which {kind} is it: {', '.join(others)} or {last}?" if others else ""


def reads(ref: Ref[Row], kind: Kind) -> tuple[Message, ...]:
    """How the agent finds the row that is meant."""
    return (call("get_records", kind=kind), *((say(ref.asks),) if ref.asks else ()))
