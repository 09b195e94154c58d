"""Questions: the cost or time of a visit, a lab result, what is on file."""

from dataclasses import replace

from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_text
from understudy.domains.healthcare.clinic_calendar import WORKING_DAYS, add_days, time_variants
from understudy.domains.healthcare.coverage import compute_coverage
from understudy.domains.healthcare.goals import mentions
from understudy.domains.healthcare.goals.base import format_datetime, set_visit_booked
from understudy.domains.healthcare.goals.booking import OUT_OF_NETWORK, set_obstacle
from understudy.domains.healthcare.state import TODAY, Lab, Referral
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.envs.dates import date_variants


def ask_copay(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for the copay of a visit, or unless `easy` for the total of several visits."""
    name = builder.rng.choice(sorted({row.doctor for row in builder.appointments()} | {builder.patient.doctor}))
    out = not grantable and builder.plan.out_of_network is None
    set_obstacle(builder, name, "network" if out else "", grantable)
    ask, times = gold_call("check_coverage", doctor=name), 1 if easy else builder.rng.randint(2, 6)
    text = builder.phrase("copay" if times == 1 else "copays", doctor=name, times=f"{times}")
    goal = GoalSpec(text, gold_turns=(ask,), kind="number")
    if out:
        plan = builder.patient.plan
        text = f"Dr. {name} is out of network and {plan} does not cover that, so I cannot give you a copay."
        return builder.add_refusal(goal, text, OUT_OF_NETWORK, easy=easy)
    costs = compute_coverage(
        builder.patient.plan, builder.plan, name, builder.find_doctor(name), "in person", True, ()
    ).copay
    assert costs is not None
    if times == 1:
        return replace(
            goal, gold_turns=(ask, gold_text(f"A visit to Dr. {name} costs you {costs}.")), outputs=(f"{costs}",)
        )
    total = f"{costs * times}"
    turns = (
        ask,
        gold_call("calculate", expression=f"{costs} * {times}"),
        gold_text(f"That comes to {total} in total."),
    )
    return replace(goal, gold_turns=turns, outputs=(total,))


def ask_lab_result(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for a lab result, which is told only after its release."""
    rows: list[Lab] = builder.patient_rows("labs")
    status = "released" if grantable else builder.rng.choice(("in progress", "under review"))
    row = builder.update_row("labs", builder.rng.choice(rows), status=status)
    goal = GoalSpec(
        builder.phrase("lab", test=row.test),
        gold_turns=(gold_call("get_records", kind="labs"),),
        kind="number" if grantable else "text",
    )
    if not grantable:
        text = f"Your {row.test} test is still {status}, so I cannot tell you the result."
        return builder.add_refusal(goal, text, status, easy=easy)
    turns = (*goal.gold_turns, gold_text(f"The {row.test} result is {row.result}."))
    return replace(goal, gold_turns=turns, outputs=(row.result.split()[0],))


def ask_appointment_time(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for the time of a visit."""
    row = set_visit_booked(builder, builder.rng.choice(builder.appointments()), False)
    mention = mentions.appointment_mention(builder, row, True)
    turns = (*mentions.record_lookup(mention, "appointments"), gold_text(f"It is on {format_datetime(row.time)}."))
    outputs = (date_variants(row.time[:10]), time_variants(row.time[11:]))
    return GoalSpec(builder.phrase("when"), mention, turns, "text", outputs=outputs)


def ask_next_free_time(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for a doctor's first free time."""
    name = builder.rng.choice(builder.appointments()).doctor
    time = builder.first_free_time(name, builder.visit_minutes(name), WORKING_DAYS)
    turns = (gold_call("get_slots", doctor=name), gold_text(f"Dr. {name} is available on {format_datetime(time)}."))
    outputs = (date_variants(time[:10]), time_variants(time[11:]))
    return GoalSpec(builder.phrase("next", doctor=name), gold_turns=turns, kind="text", outputs=outputs)


def ask_referral_left(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask how long a referral is valid or how many visits are left; only for members of an HMO."""
    rows: list[Referral] = builder.patient_rows("referrals")
    if not rows:
        return ask_patient_data(builder, grantable, easy)
    days, visits = builder.rng.randint(3, 90), builder.rng.randint(1, 6)
    row = builder.update_row("referrals", builder.rng.choice(rows), until=add_days(TODAY, days), visits=visits)
    read = gold_call("get_records", kind="referrals")
    if builder.draw_bool(0.5):
        turns = (read, gold_text(f"It is valid until {row.until}."))
        text = builder.phrase("until", specialty=row.specialty)
        return GoalSpec(text, gold_turns=turns, kind="text", outputs=(date_variants(row.until),))
    turns = (read, gold_text(f"There are {visits} visits left on it."))
    return GoalSpec(
        builder.phrase("left", specialty=row.specialty),
        gold_turns=turns,
        kind="number",
        outputs=(f"{visits}",),
    )


def ask_patient_data(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for something on file: allergies, the primary doctor or the phone number."""
    patient, read = builder.patient, gold_call("get_patient")
    asked = builder.rng.choice(("allergies", "doctor", "phone") if patient.allergies else ("doctor", "phone"))
    if asked == "allergies":
        answer = gold_text(f"On file: {', '.join(patient.allergies)}.")
        return GoalSpec(builder.phrase("allergies"), gold_turns=(read, answer), kind="text", outputs=patient.allergies)
    if asked == "doctor":
        answer = gold_text(f"Your primary doctor is Dr. {patient.doctor}.")
        return GoalSpec(builder.phrase("primary"), gold_turns=(read, answer), kind="text", outputs=(patient.doctor,))
    answer = gold_text(f"The number on file is {patient.phone}.")
    return GoalSpec(builder.phrase("on_file"), gold_turns=(read, answer), kind="text", outputs=(patient.phone,))


def ask_pharmacy_hours(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask when a pharmacy closes."""
    name, pharmacy = builder.rng.choice(list(builder.world.pharmacies.items()))
    turns = (gold_call("find_pharmacies"), gold_text(f"{name} closes at {pharmacy.closes}."))
    return GoalSpec(
        builder.phrase("closes", pharmacy=name),
        gold_turns=turns,
        kind="text",
        outputs=(time_variants(pharmacy.closes),),
    )
