"""Requests for a new visit: with a known doctor, or with a specialist that the agent must find."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.request import grant, plain_request, refuse
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.healthcare.clinic_calendar import (
    SLOT_TIMES,
    datetime_variants,
    draw_spoken_day,
    format_datetime,
    half_hour_slots,
)
from understudy.domains.healthcare.coverage import needs_referral
from understudy.domains.healthcare.goals.time_preference import draw_time_preference
from understudy.domains.healthcare.state import TODAY, VisitSetting
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.domains.healthcare.world import SPECIALTIES
from understudy.envs.dates import add_days, date_variants
from understudy.envs.gold import gold_call

Obstacle = Literal["", "booked", "network", "referral", "ends", "telehealth"]
"""Why a visit cannot be booked: the patient already has a visit to the doctor (booked), the doctor is out of network
(network), there is no valid referral (referral), the referral expires before the visit (ends), or the doctor offers no
telehealth (telehealth)."""

OUT_OF_NETWORK = "out of network|out-of-network|not in network|not in your network|not in the network|outside"
"""Accepted ways to say that a doctor does not take the patient's plan."""
_VIDEO = "telehealth|video"
_NO_TELEHEALTH = "no telehealth|not offer telehealth|n't offer telehealth|not have telehealth"


def book_appointment(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Book a visit with a doctor of the patient."""
    row = b.rng.choice(b.appointments())
    doctor = row.doctor
    obstacle: Obstacle = "" if grantable else b.rng.choice(_obstacles(b, doctor))
    video = obstacle == "telehealth" or (obstacle != "booked" and b.draw_bool(0.2))
    setting: VisitSetting = "telehealth" if video else "in person"
    costly = grantable and not video and b.plan.out_of_network is not None and b.draw_bool(0.4)
    if obstacle == "booked":
        row = b.set_visit_booked(row, False)
    elif row.status == "booked" or video:
        row = b.set_visit_closed(row, "completed")
    set_obstacle(b, doctor, obstacle, not costly)
    if video:
        b.patch("doctors", doctor, telehealth=obstacle != "telehealth")
    to = draw_time_preference(b, doctor, b.visit_minutes(doctor), easy)
    visit = b.phrase("video" if video else "meet")
    text = b.phrase("book_vague" if to.vague else "book", visit=visit, doctor=doctor, when=to.opening_phrase)
    price = str(b.plan.out_of_network) if costly else ""
    terms = [term for term in (_VIDEO if video else "", price) if term]
    goal = plain_request(text, None, doctor, *to.required_terms, *terms)
    agrees = Fact(text=b.phrase("costly"), keywords=("network", "costs", "price"))
    goal = replace(goal, facts=(*to.facts, agrees), gold_turns=(_check_coverage(doctor, setting),))
    if obstacle:
        reads = to.question_turns if obstacle in ("ends", "booked") else ()
        reads += to.lookup_turns[:1] if obstacle == "booked" else ()
        return _refuse(b, replace(goal, gold_turns=goal.gold_turns + reads), doctor, obstacle, row.time, easy)
    goal = replace(goal, final_text=text + to.fallback if to.fallback else "")
    return _grant_booking(goal, doctor, to.time, setting, price, to.gold_turns)


def book_specialist(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Find a specialist at a clinic or in the network, and book the first free time of a day."""
    known = {row.doctor for row in b.appointments()}
    specialty = b.rng.choice(SPECIALTIES[1:])
    candidates = [name for name, row in b.world.doctors.items() if row.specialty == specialty and name not in known]
    doctor, at_clinic = b.rng.choice(candidates), easy or b.draw_bool(0.5)
    if not grantable and b.plan.out_of_network is not None:
        b.set_hmo_plan()
    possible = ("referral", "network") if at_clinic else ("referral",)
    obstacles = [obstacle for obstacle in _obstacles(b, doctor) if obstacle in possible]
    obstacle: Obstacle = b.rng.choice(obstacles) if not grantable and obstacles else ""
    set_obstacle(b, doctor, obstacle, True)
    if not at_clinic:  # this doctor alone takes the patient's plan
        for name, row in b.world.doctors.items():
            if row.specialty == specialty:
                b.set_in_network(name, name == doctor)
    day = b.draw_time(doctor, 60)[:10]
    time = _set_first_free_time(b, doctor, day)
    clinic = b.world.doctors[doctor].clinic
    where = f"at the {clinic} clinic" if at_clinic else "in my network"
    spoken = day if easy else draw_spoken_day(b.phrases.rng, day)
    text = b.phrase("specialist", specialty=specialty, where=where, day=spoken)
    goal = plain_request(text, None, doctor, *datetime_variants(time))
    search = gold_call("find_doctors", specialty=specialty, **({"clinic": clinic} if at_clinic else {}))
    goal = replace(goal, gold_turns=(search, _check_coverage(doctor, "in person")))
    if obstacle:
        return _refuse(b, goal, doctor, obstacle, "", easy)
    return _grant_booking(goal, doctor, time, "in person", "", [gold_call("get_slots", doctor=doctor, date=day)])


def set_obstacle(b: HealthcareTaskBuilder, doctor: str, obstacle: Obstacle, in_network: bool) -> None:
    """Set up the doctor and the referrals so that only this obstacle prevents a visit."""
    specialty = b.find_doctor(doctor).specialty
    b.set_in_network(doctor, in_network and obstacle != "network")
    if not needs_referral(b.patient.plan, specialty):
        return
    if obstacle == "referral":
        b.set_referrals(specialty)
        return
    days = b.rng.randint(0, 1) if obstacle == "ends" else b.rng.randint(20, 90)
    b.set_referrals(specialty, until=add_days(TODAY, days), visits=b.rng.randint(1, 4), status="signed")


def _obstacles(b: HealthcareTaskBuilder, doctor: str) -> Sequence[Obstacle]:
    obstacles: list[Obstacle] = ["booked", "telehealth"]
    if b.plan.out_of_network is None:
        obstacles.append("network")
    if needs_referral(b.patient.plan, b.find_doctor(doctor).specialty):
        obstacles += ["referral", "ends"]
    return obstacles


def _set_first_free_time(b: HealthcareTaskBuilder, doctor: str, day: str) -> str:
    """Make a first visit possible on a day. Return the first time for it."""
    time = b.rng.choice([time for time in SLOT_TIMES if set(half_hour_slots(time, 60)) <= set(SLOT_TIMES)])
    b.set_slots_free(doctor, f"{day} {time}", 60, True)
    return b.first_free_time(doctor, 60, (day,))


def _check_coverage(doctor: str, setting: VisitSetting) -> Message:
    return gold_call("check_coverage", doctor=doctor, **({"setting": setting} if setting == "telehealth" else {}))


def _grant_booking(
    goal: GoalSpec, doctor: str, time: str, setting: VisitSetting, price: str, reads: Sequence[Message]
) -> GoalSpec:
    arguments = {"doctor": doctor, "date": time[:10], "time": time[11:]}
    kind = "visit"
    if setting == "telehealth":
        kind, arguments["setting"] = "telehealth visit", setting
    cost = f", which costs {price} because Dr. {doctor} is out of network" if price else ""
    proposal = f"book a {kind} with Dr. {doctor} on {format_datetime(time)}{cost}"
    return grant(goal, proposal, gold_call("book_appointment", **arguments), "The visit has been booked.", reads)


def _refuse(
    b: HealthcareTaskBuilder, goal: GoalSpec, doctor: str, obstacle: Obstacle, time: str, easy: bool
) -> GoalSpec:
    """Refuse the request because of an obstacle. `time` is that of a visit which is booked already."""
    specialty, plan = b.find_doctor(doctor).specialty, b.patient.plan
    consequence = "so I cannot book it"
    if obstacle == "booked":
        reason = f"You already have an appointment with Dr. {doctor} on {format_datetime(time)}"
        output, consequence = date_variants(time[:10]), "so I cannot book another one"
    elif obstacle == "ends":
        referrals = [row for row in b.patient_rows("referrals") if row.specialty == specialty and row.until >= TODAY]
        reason = f"Your referral to {specialty} ends on {referrals[0].until}"
        output, consequence = date_variants(referrals[0].until), "so I cannot book a visit after that"
    elif obstacle == "network":
        reason, output = f"Dr. {doctor} is out of network and {plan} does not cover that", OUT_OF_NETWORK
    elif obstacle == "referral":
        reason, output = f"{plan} requires a valid referral to {specialty}", "valid referral|referral"
    else:
        reason, output = f"Dr. {doctor} has no telehealth visits", _NO_TELEHEALTH
    return refuse(b, goal, f"{reason}, {consequence}.", output, easy=easy)
