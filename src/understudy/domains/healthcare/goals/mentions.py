"""Appointments, prescriptions and bills as caller and agent refer to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring import task_builder
from understudy.domains.authoring.task_builder import gold_call, gold_text
from understudy.domains.healthcare.clinic_calendar import WORKING_DAYS, draw_spoken_day
from understudy.domains.healthcare.state import Appointment, Bill, Prescription, RecordKind
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.envs.dates import date_variants, format_month_day

Row = TypeVar("Row", Appointment, Prescription, Bill)
PatientKnowledge = Literal["told", "described", "vague", "wrong"]
"""How a caller refers to a record: by name, by a description, by name when asked, or by a wrong name."""

EASY_KNOWLEDGE: Sequence[PatientKnowledge] = ("told",)
HARD_KNOWLEDGE: Sequence[PatientKnowledge] = ("told", "described", "vague", "wrong")

_WHICH_VISIT = ("which appointment", "which visit", "which one", "which of", "which doctor")
_WHICH_DRUG = ("which medicine", "which prescription", "which one", "which of", "which medication", "which drug")
_WHICH_BILL = ("which bill", "which one", "which of")


@dataclass(frozen=True)
class PatientRecordMention(task_builder.EntityMention, Generic[Row]):
    """A record of the patient."""

    row: Row
    terms: tuple[str, ...]
    clarifying_question: str = ""
    """The agent's question which one is meant, if needed."""

    @property
    def required_terms(self) -> tuple[str, ...]:
        """The terms that a proposal must contain for the caller to recognize it."""
        return self.terms


def appointment_mention(
    builder: HealthcareTaskBuilder, row: Appointment, easy: bool
) -> PatientRecordMention[Appointment]:
    """Return an appointment as the caller refers to it."""
    knowledge = builder.rng.choice(EASY_KNOWLEDGE if easy else HARD_KNOWLEDGE)
    others = [a for a in builder.appointments() if a.id != row.id]
    specialty = builder.world.doctors[row.doctor].specialty
    words = {"owner": builder.possessive, "doctor": row.doctor, "specialty": specialty}
    known = builder.phrase("visit", **words)
    fact = Fact(text=builder.phrase("which", thing=f"the one with Dr. {row.doctor}"), keywords=_WHICH_VISIT)
    names, asks, said = (row.doctor,), "", known
    if knowledge == "described" and all(builder.world.doctors[a.doctor].specialty != specialty for a in others):
        said = known = builder.phrase("visit_described", **words)
    elif knowledge == "vague" and row.status == "booked":
        booked = [f"Dr. {a.doctor}" for a in builder.appointments() if a.status == "booked"]
        said, asks = f"{builder.possessive} appointment", _which("appointment", booked)
    elif knowledge == "wrong":
        wrong = builder.rng.choice(
            [day for day in WORKING_DAYS if all(a.time[:10] != day for a in builder.appointments())]
        )
        said = builder.phrase("visit_wrong", owner=builder.possessive, day=draw_spoken_day(builder.phrases.rng, wrong))
        asks = f"There is no appointment on {wrong}. Which one is it?"
    return PatientRecordMention("visit", said, known, row, names, asks, facts=(fact,))


def prescription_mention(
    builder: HealthcareTaskBuilder, row: Prescription, easy: bool
) -> PatientRecordMention[Prescription]:
    """Return a prescription as the caller refers to it."""
    knowledge = builder.rng.choice(EASY_KNOWLEDGE if easy else HARD_KNOWLEDGE)
    known = said = f"{builder.possessive} {row.drug}"
    fact = Fact(text=builder.phrase("which", thing=f"the {row.drug}"), keywords=_WHICH_DRUG)
    names, asks = (row.drug,), ""
    if knowledge == "described":
        said = known = builder.phrase("drug_described", owner=builder.possessive, use=row.use)
    elif knowledge == "vague":
        said = builder.phrase("drug_vague", owner=builder.possessive)
        asks = _which("medicine", [other.drug for other in builder.patient_rows("prescriptions")])
    elif knowledge == "wrong":
        wrong = f"RX{builder.rng.randint(100, 999)}"
        said, asks = f"prescription {wrong}", f"There is no prescription {wrong}. Which one is it?"
    return PatientRecordMention("drug", said, known, row, names, asks, facts=(fact,))


def bill_mention(builder: HealthcareTaskBuilder, row: Bill, easy: bool) -> PatientRecordMention[Bill]:
    """Return a bill as the caller refers to it."""
    knowledge = builder.rng.choice(EASY_KNOWLEDGE if easy else HARD_KNOWLEDGE)
    known = said = f"bill {row.id}"
    fact = Fact(text=builder.phrase("which", thing=f"bill {row.id}"), keywords=_WHICH_BILL)
    names, asks = (row.id,), ""
    if knowledge in ("described", "wrong"):
        said = known = builder.phrase("bill_described", day=format_month_day(row.date))
        names = (f"{row.id}|{date_variants(row.date)}",)
    elif knowledge == "vague":
        said, asks = (
            builder.phrase("bill_vague"),
            _which("bill", [r.id for r in builder.patient_rows("bills")]),
        )
    return PatientRecordMention("bill", said, known, row, names, asks, facts=(fact,))


def _which(kind: str, candidates: Sequence[str]) -> str:
    """Return the question that asks which of the candidates is meant, or "" if there is only one."""
    *others, last = candidates
    return f"Which {kind} is it: {', '.join(others)} or {last}?" if others else ""


def record_lookup(mention: PatientRecordMention[Row], kind: RecordKind) -> tuple[Message, ...]:
    """Return the gold turns that find the record."""
    return (
        gold_call("get_records", kind=kind),
        *((gold_text(mention.clarifying_question),) if mention.clarifying_question else ()),
    )
