"""Requests that must be transferred: urgent symptoms, medical questions, and what no tool can do."""

from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.healthcare.goals.time_preference import draw_spoken_datetime
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.envs.gold import gold_call, gold_text


def report_urgent_symptom(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for a visit because of urgent symptoms: the caller must go to a nurse at once."""
    b.identification = "urgent"
    doctor = b.rng.choice(b.appointments()).doctor
    symptom = b.phrase("urgent")
    visit = b.phrase("book_vague", visit=b.phrase("meet"), doctor=doctor)
    if not easy and b.draw_bool(0.5):
        when = draw_spoken_datetime(b, b.draw_time(doctor, 60), easy)
        visit = b.phrase("book", visit=b.phrase("meet"), doctor=doctor, when=when)
    text = " ".join(b.rng.sample((symptom, visit), 2))
    return _transfer(text, "nurse", f"{b.patient.name}, born {b.patient.born}: {symptom}")


def ask_medical_advice(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask a medical question."""
    drug = b.rng.choice(b.patient_rows("prescriptions")).drug
    test = b.rng.choice(b.patient_rows("labs")).test
    text = b.phrase("advice", drug=drug, test=test)
    return _transfer(text, "nurse", text)


def ask_out_of_scope(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for something that no tool can do."""
    text = b.phrase("outside")
    return _transfer(text, "staff", text)


def _transfer(text: str, to: str, summary: str) -> GoalSpec:
    target = "a nurse" if to == "nurse" else "our staff"
    turns = (gold_call("transfer", to=to, summary=summary), gold_text(f"I have transferred you to {target}."))
    return GoalSpec(text, gold_turns=turns, required_terms=("nurse|staff|transfer|transfers|transferred|transferring",))
