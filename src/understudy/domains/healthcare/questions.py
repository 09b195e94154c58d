"""Questions, which change nothing: what a visit costs, what a test came to, when a visit is, what is on file."""

from dataclasses import replace

from understudy.domains.days import any_day
from understudy.domains.drafts import Want, call, say
from understudy.domains.healthcare import phrases, refs
from understudy.domains.healthcare.bookings import OUT_OF_NETWORK, allow
from understudy.domains.healthcare.coverage import covered
from understudy.domains.healthcare.dates import DAYS, any_time, plus_days
from understudy.domains.healthcare.drafts import Draft
from understudy.domains.healthcare.state import TODAY, Lab, Referral
from understudy.domains.healthcare.visits import at, booked


def copay(draft: Draft, ok: bool, easy: bool) -> Want:
    """Ask what a visit costs; or, not as easy, what some visits cost in all."""
    name = draft.random.choice(sorted({row.doctor for row in draft.visits()} | {draft.patient.doctor}))
    out = not ok and draft.plan.out_of_network is None
    allow(draft, name, "network" if out else "", ok)
    ask, times = call("check_coverage", doctor=name), 1 if easy else draft.random.randint(2, 6)
    text = draft.pick(phrases.COPAY if times == 1 else phrases.COPAYS, doctor=name, times=f"{times}")
    want = Want(text, turns=(ask,), kind="number")
    if out:
        text = f"Dr. {name} is out of network and {draft.patient.plan} does not cover that, so I cannot name a co-pay."
        return draft.refused(want, text, OUT_OF_NETWORK, easy=easy)
    costs = covered(draft.patient.plan, draft.plan, name, draft.doctor(name), "in person", True, ()).copay
    assert costs is not None
    if times == 1:
        return replace(want, turns=(ask, say(f"A visit to Dr. {name} costs you {costs}.")), outputs=(f"{costs}",))
    total = f"{costs * times}"
    turns = (ask, call("calculate", expression=f"{costs} * {times}"), say(f"That comes to {total} in all."))
    return replace(want, turns=turns, outputs=(total,))


def lab(draft: Draft, ok: bool, easy: bool) -> Want:
    """Ask what a test came to, which is told once the doctor has released it."""
    rows: list[Lab] = draft.own("labs")
    status = "released" if ok else draft.random.choice(("in progress", "under review"))
    row = draft.change("labs", draft.random.choice(rows), status=status)
    want = Want(
        draft.pick(phrases.LAB, test=row.test),
        turns=(call("get_records", kind="labs"),),
        kind="number" if ok else "text",
    )
    if not ok:
        text = f"Your {row.test} test is still {status}, so I cannot tell you the result."
        return draft.refused(want, text, status, easy=easy)
    turns = (*want.turns, say(f"The {row.test} result is {row.result}."))
    return replace(want, turns=turns, outputs=(row.result.split()[0],))


def when(draft: Draft, ok: bool, easy: bool) -> Want:
    """Ask when a visit is."""
    row = booked(draft, draft.random.choice(draft.visits()), False)
    ref = refs.visit(draft, row, True)
    turns = (*refs.reads(ref, "appointments"), say(f"It is on {at(row.time)}."))
    outputs = (any_day(row.time[:10]), any_time(row.time[11:]))
    return Want(draft.pick(phrases.WHEN), ref, turns, "text", outputs=outputs)


def next_free(draft: Draft, ok: bool, easy: bool) -> Want:
    """Ask when a doctor is free first."""
    name = draft.random.choice(draft.visits()).doctor
    time = draft.first_free(name, draft.minutes(name), DAYS)
    turns = (call("get_slots", doctor=name), say(f"Dr. {name} is free on {at(time)}."))
    outputs = (any_day(time[:10]), any_time(time[11:]))
    return Want(draft.pick(phrases.NEXT, doctor=name), turns=turns, kind="text", outputs=outputs)


def referral_left(draft: Draft, ok: bool, easy: bool) -> Want:
    """Ask until when a referral is valid, or how many visits are left; of an HMO's member alone."""
    rows: list[Referral] = draft.own("referrals")
    if not rows:
        return on_file(draft, ok, easy)
    days, visits = draft.random.randint(3, 90), draft.random.randint(1, 6)
    row = draft.change("referrals", draft.random.choice(rows), until=plus_days(TODAY, days), visits=visits)
    read = call("get_records", kind="referrals")
    if draft.likely(0.5):
        turns = (read, say(f"It is valid until {row.until}."))
        text = draft.pick(phrases.UNTIL, specialty=row.specialty)
        return Want(text, turns=turns, kind="text", outputs=(any_day(row.until),))
    turns = (read, say(f"There are {visits} visits left on it."))
    return Want(draft.pick(phrases.LEFT, specialty=row.specialty), turns=turns, kind="number", outputs=(f"{visits}",))


def on_file(draft: Draft, ok: bool, easy: bool) -> Want:
    """Ask for something that the desk has on file: allergies, the primary doctor, the phone number."""
    patient, read = draft.patient, call("get_patient")
    asked = draft.random.choice(("allergies", "doctor", "phone") if patient.allergies else ("doctor", "phone"))
    if asked == "allergies":
        answer = say(f"On file: {', '.join(patient.allergies)}.")
        return Want(draft.pick(phrases.ALLERGIES), turns=(read, answer), kind="text", outputs=patient.allergies)
    if asked == "doctor":
        answer = say(f"Your primary doctor is Dr. {patient.doctor}.")
        return Want(draft.pick(phrases.PRIMARY), turns=(read, answer), kind="text", outputs=(patient.doctor,))
    answer = say(f"The number on file is {patient.phone}.")
    return Want(draft.pick(phrases.ON_FILE), turns=(read, answer), kind="text", outputs=(patient.phone,))


def closing(draft: Draft, ok: bool, easy: bool) -> Want:
    """Ask when a pharmacy closes."""
    name, pharmacy = draft.random.choice(list(draft.world.pharmacies.items()))
    turns = (call("find_pharmacies"), say(f"{name} closes at {pharmacy.closes}."))
    return Want(
        draft.pick(phrases.CLOSES, pharmacy=name), turns=turns, kind="text", outputs=(any_time(pharmacy.closes),)
    )
