"""Questions: the cost or time of a visit, a lab result, what is on file."""

from understudy.domains.authoring.request import answer, refuse
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.healthcare.clinic_calendar import (
    WORKING_DAYS,
    datetime_variants,
    format_datetime,
    time_variants,
)
from understudy.domains.healthcare.coverage import compute_coverage
from understudy.domains.healthcare.goals.booking import OUT_OF_NETWORK, set_obstacle
from understudy.domains.healthcare.goals.mentions import appointment_mention
from understudy.domains.healthcare.state import TODAY, Lab, Referral
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.envs.dates import add_days, date_variants
from understudy.envs.gold import gold_call


def ask_copay(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for the copay of a visit, or unless `easy` for the total of several visits."""
    doctor = b.rng.choice(sorted({row.doctor for row in b.appointments()} | {b.patient.doctor}))
    uncovered = not grantable and b.plan.out_of_network is None
    set_obstacle(b, doctor, "network" if uncovered else "", grantable)
    visits, reads = 1 if easy else b.rng.randint(2, 6), [gold_call("check_coverage", doctor=doctor)]
    text = b.phrase("copay" if visits == 1 else "copays", doctor=doctor, times=f"{visits}")
    goal, plan = GoalSpec(text, kind="number"), b.patient.plan
    if uncovered:
        reason = f"Dr. {doctor} is out of network and {plan} does not cover that, so I cannot give you a copay."
        return refuse(b, goal, reason, OUT_OF_NETWORK, easy=True, reads=reads)
    copay = compute_coverage(plan, b.plan, doctor, b.find_doctor(doctor), "in person", True, ()).copay
    assert copay is not None
    if visits == 1:
        return answer(goal, f"A visit to Dr. {doctor} costs you {copay}.", f"{copay}", reads=reads)
    total = f"{copay * visits}"
    reads.append(gold_call("calculate", expression=f"{copay} * {visits}"))
    return answer(goal, f"That comes to {total} in total.", total, reads=reads)


def ask_lab_result(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for a lab result, which is told only after its release."""
    rows: list[Lab] = b.patient_rows("labs")
    status = "released" if grantable else b.rng.choice(("in progress", "under review"))
    row = b.update_row("labs", b.rng.choice(rows), status=status)
    text, reads = b.phrase("lab", test=row.test), [gold_call("get_records", kind="labs")]
    if not grantable:
        reason = f"Your {row.test} test is still {status}, so I cannot tell you the result."
        return refuse(b, GoalSpec(text, kind="text"), reason, status, easy=True, reads=reads)
    goal, output = GoalSpec(text, kind="number"), row.result.split()[0]
    return answer(goal, f"The {row.test} result is {row.result}.", output, reads=reads)


def ask_appointment_time(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for the time of a visit."""
    row = b.set_visit_booked(b.rng.choice(b.appointments()), False)
    mention = appointment_mention(b, row, True)
    goal = GoalSpec(b.phrase("when"), mention, kind="text")
    return answer(goal, f"It is on {format_datetime(row.time)}.", *datetime_variants(row.time))


def ask_next_free_time(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for a doctor's first free time."""
    doctor = b.rng.choice(b.appointments()).doctor
    time = b.first_free_time(doctor, b.visit_minutes(doctor), WORKING_DAYS)
    goal, reads = GoalSpec(b.phrase("next", doctor=doctor), kind="text"), [gold_call("get_slots", doctor=doctor)]
    text = f"Dr. {doctor} is available on {format_datetime(time)}."
    return answer(goal, text, *datetime_variants(time), reads=reads)


def ask_referral_left(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask how long a referral is valid or how many visits are left; only for members of an HMO."""
    rows: list[Referral] = b.patient_rows("referrals")
    if not rows:
        return ask_patient_data(b, grantable, easy)
    days, visits = b.rng.randint(3, 90), b.rng.randint(1, 6)
    row = b.update_row("referrals", b.rng.choice(rows), until=add_days(TODAY, days), visits=visits)
    reads = [gold_call("get_records", kind="referrals")]
    if b.draw_bool(0.5):
        goal = GoalSpec(b.phrase("until", specialty=row.specialty), kind="text")
        return answer(goal, f"It is valid until {row.until}.", date_variants(row.until), reads=reads)
    goal = GoalSpec(b.phrase("left", specialty=row.specialty), kind="number")
    return answer(goal, f"There are {visits} visits left on it.", f"{visits}", reads=reads)


def ask_patient_data(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for something on file: allergies, the primary doctor or the phone number."""
    patient = b.patient
    answers = {
        "allergies": (f"On file: {', '.join(patient.allergies)}.", *patient.allergies),
        "primary": (f"Your primary doctor is Dr. {patient.doctor}.", patient.doctor),
        "on_file": (f"The number on file is {patient.phone}.", patient.phone),
    }
    question = b.rng.choice(list(answers)[0 if patient.allergies else 1 :])
    return answer(GoalSpec(b.phrase(question), kind="text"), *answers[question], reads=[gold_call("get_patient")])


def ask_pharmacy_hours(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask when a pharmacy closes."""
    name, pharmacy = b.rng.choice(list(b.world.pharmacies.items()))
    goal, reads = GoalSpec(b.phrase("closes", pharmacy=name), kind="text"), [gold_call("find_pharmacies")]
    return answer(goal, f"{name} closes at {pharmacy.closes}.", time_variants(pharmacy.closes), reads=reads)
