"""Requests that must be transferred: urgent symptoms, medical questions, and what no tool can do."""

from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_text
from understudy.domains.healthcare.goals.time_preference import draw_spoken_datetime
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder


def report_urgent_symptom(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for a visit because of urgent symptoms: the caller must go to a nurse at once."""
    builder.identification = "urgent"
    name = builder.rng.choice(builder.appointments()).doctor
    symptom = builder.phrase("urgent")
    visit = builder.phrase("book_vague", visit=builder.phrase("meet"), doctor=name)
    if not easy and builder.draw_bool(0.5):
        when = draw_spoken_datetime(builder, builder.draw_time(name, 60), easy)
        visit = builder.phrase("book", visit=builder.phrase("meet"), doctor=name, when=when)
    text = " ".join(builder.rng.sample((symptom, visit), 2))
    summary = f"{builder.patient.name}, born {builder.patient.born}: {symptom}"
    return _handed(text, "nurse", summary)


def ask_medical_advice(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask a medical question."""
    drug, test = (
        builder.rng.choice(builder.patient_rows("prescriptions")).drug,
        builder.rng.choice(builder.patient_rows("labs")).test,
    )
    text = builder.phrase("advice", drug=drug, test=test)
    return _handed(text, "nurse", text)


def ask_out_of_scope(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for something that no tool can do."""
    text = builder.phrase("outside")
    return _handed(text, "staff", text)


def _handed(text: str, to: str, summary: str) -> GoalSpec:
    goes = "a nurse" if to == "nurse" else "our staff"
    turns = (gold_call("transfer", to=to, summary=summary), gold_text(f"I have transferred you to {goes}."))
    return GoalSpec(text, gold_turns=turns, required_terms=("nurse|staff|transfer|transferred",))
