"""Appointments, prescriptions and bills as caller and agent refer to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from understudy.core.tasks import Fact
from understudy.domains.authoring import task_builder
from understudy.domains.healthcare.clinic_calendar import WORKING_DAYS, draw_spoken_day
from understudy.domains.healthcare.state import Appointment, Bill, Prescription, RecordKind
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.envs.dates import date_variants, format_month_day
from understudy.envs.gold import gold_call, gold_text

Row = TypeVar("Row", Appointment, Prescription, Bill)
PatientKnowledge = Literal["told", "described", "vague", "wrong"]
"""How a caller refers to a record: by name, by a description, by name when asked, or by a wrong name."""

KNOWLEDGE_LEVELS: Sequence[PatientKnowledge] = ("told", "described", "vague", "wrong")
"""The levels of medium and hard requests. Easy ones have the first only."""

_WHICH_VISIT = ("which appointment", "which visit", "which one", "which of", "which doctor")
_WHICH_DRUG = ("which medicine", "which prescription", "which one", "which of", "which medication", "which drug")
_WHICH_BILL = ("which bill", "which one", "which of")


@dataclass(frozen=True)
class PatientRecordMention(task_builder.EntityMention, Generic[Row]):
    """A record of the patient."""

    row: Row
    terms: tuple[str, ...]

    @property
    def required_terms(self) -> tuple[str, ...]:
        """The terms that a proposal must contain for the caller to recognize it."""
        return self.terms


def appointment_mention(b: HealthcareTaskBuilder, row: Appointment, easy: bool) -> PatientRecordMention[Appointment]:
    """Return an appointment as the caller refers to it."""
    knowledge = b.rng.choice(KNOWLEDGE_LEVELS[: 1 if easy else None])
    visits, specialty = b.appointments(), b.world.doctors[row.doctor].specialty
    words = {"owner": b.possessive, "doctor": row.doctor, "specialty": specialty}
    said = known = b.phrase("visit", **words)
    fact = Fact(text=b.phrase("which", thing=f"the one with Dr. {row.doctor}"), keywords=_WHICH_VISIT)
    question = ""
    same_specialty = [visit for visit in visits if b.world.doctors[visit.doctor].specialty == specialty]
    if knowledge == "described" and len(same_specialty) == 1:
        said = known = b.phrase("visit_described", **words)
    elif knowledge == "vague" and row.status == "booked":
        said = f"{b.possessive} appointment"
        question = _ask_which("appointment", [f"Dr. {visit.doctor}" for visit in visits if visit.status == "booked"])
    elif knowledge == "wrong":
        day = b.rng.choice([day for day in WORKING_DAYS if all(visit.time[:10] != day for visit in visits)])
        said = b.phrase("visit_wrong", owner=b.possessive, day=draw_spoken_day(b.phrases.rng, day))
        question = f"There is no appointment on {day}. Which one is it?"
    return _mention("visit", "appointments", row, said, known, fact, question, row.doctor)


def prescription_mention(b: HealthcareTaskBuilder, row: Prescription, easy: bool) -> PatientRecordMention[Prescription]:
    """Return a prescription as the caller refers to it."""
    knowledge = b.rng.choice(KNOWLEDGE_LEVELS[: 1 if easy else None])
    said = known = f"{b.possessive} {row.drug}"
    fact = Fact(text=b.phrase("which", thing=f"the {row.drug}"), keywords=_WHICH_DRUG)
    question = ""
    if knowledge == "described":
        said = known = b.phrase("drug_described", owner=b.possessive, use=row.use)
    elif knowledge == "vague":
        said = b.phrase("drug_vague", owner=b.possessive)
        question = _ask_which("medicine", [other.drug for other in b.patient_rows("prescriptions")])
    elif knowledge == "wrong":
        wrong = f"RX{b.rng.randint(100, 999)}"
        said, question = f"prescription {wrong}", f"There is no prescription {wrong}. Which one is it?"
    return _mention("drug", "prescriptions", row, said, known, fact, question, row.drug)


def bill_mention(b: HealthcareTaskBuilder, row: Bill, easy: bool) -> PatientRecordMention[Bill]:
    """Return a bill as the caller refers to it."""
    knowledge = b.rng.choice(KNOWLEDGE_LEVELS[: 1 if easy else None])
    said = known = f"bill {row.id}"
    fact = Fact(text=b.phrase("which", thing=f"bill {row.id}"), keywords=_WHICH_BILL)
    term, question = row.id, ""
    if knowledge in ("described", "wrong"):
        said = known = b.phrase("bill_described", day=format_month_day(row.date))
        term = f"{row.id}|{date_variants(row.date)}"
    elif knowledge == "vague":
        said = b.phrase("bill_vague")
        question = _ask_which("bill", [other.id for other in b.patient_rows("bills")])
    return _mention("bill", "bills", row, said, known, fact, question, term)


def _ask_which(kind: str, candidates: Sequence[str]) -> str:
    """Return the question that asks which of the candidates is meant, or "" if there is only one."""
    *others, last = candidates
    return f"Which {kind} is it: {', '.join(others)} or {last}?" if others else ""


def _mention(
    placeholder: str, kind: RecordKind, row: Row, said: str, known: str, fact: Fact, question: str, term: str
) -> PatientRecordMention[Row]:
    reads = (gold_call("get_records", kind=kind), *([gold_text(question)] if question else []))
    return PatientRecordMention(placeholder, said, known, row, (term,), facts=(fact,), lookup_turns=reads)
