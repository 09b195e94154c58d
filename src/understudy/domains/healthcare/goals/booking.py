"""Requests for a new visit: with a known doctor, or with a specialist that the agent must find."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change
from understudy.domains.healthcare.clinic_calendar import (
    SLOT_TIMES,
    add_days,
    draw_spoken_day,
    half_hour_slots,
    time_variants,
)
from understudy.domains.healthcare.coverage import needs_referral
from understudy.domains.healthcare.goals.base import format_datetime, set_visit_booked, set_visit_closed
from understudy.domains.healthcare.goals.time_preference import draw_time_preference
from understudy.domains.healthcare.state import TODAY, VisitSetting
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.domains.healthcare.world import SPECIALTIES
from understudy.envs.dates import date_variants

Obstacle = Literal["", "booked", "network", "referral", "ends", "telehealth"]
"""Why a visit cannot be booked: the patient already has a visit to the doctor (booked), the doctor is out of network
(network), there is no valid referral (referral), the referral expires before the visit (ends), or the doctor offers no
telehealth (telehealth)."""

OUT_OF_NETWORK = "out of network|out-of-network|not in network|not in your network|not in the network|outside"
"""Accepted ways to say that a doctor does not take the patient's plan."""
_VIDEO = "telehealth|video"


def book_appointment(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Book a visit with a doctor of the patient."""
    row = builder.rng.choice(builder.appointments())
    name = row.doctor
    obstacle: Obstacle = "" if grantable else builder.rng.choice(_obstacles(builder, name))
    video = obstacle == "telehealth" or (obstacle != "booked" and builder.draw_bool(0.2))
    setting: VisitSetting = "telehealth" if video else "in person"
    costly = grantable and not video and builder.plan.out_of_network is not None and builder.draw_bool(0.4)
    if obstacle == "booked":
        row = set_visit_booked(builder, row, False)
    elif row.status == "booked" or video:
        row = set_visit_closed(builder, row, "completed")
    set_obstacle(builder, name, obstacle, not costly)
    if video:
        builder.patch("doctors", name, telehealth=obstacle != "telehealth")
    to = draw_time_preference(builder, name, builder.visit_minutes(name), easy)
    text = builder.phrase(
        "book_vague" if to.vague else "book",
        visit=builder.phrase("video" if video else "meet"),
        doctor=name,
        when=to.opening_phrase,
    )
    price = str(builder.plan.out_of_network) if costly else ""
    names = (name, *to.required_terms, *((_VIDEO,) if video else ()), *((price,) if costly else ()))
    pays = Fact(text=builder.phrase("costly"), keywords=("network", "costs", "price"))
    goal = GoalSpec(text, gold_turns=(_coverage(name, setting),), required_terms=names, facts=(*to.facts, pays))
    if obstacle:
        looks = {"ends": to.question_turns, "booked": to.question_turns + to.lookup_turns[:1]}.get(obstacle, ())
        return _refused(builder, replace(goal, gold_turns=goal.gold_turns + looks), name, obstacle, row.time, easy)
    turns = (*goal.gold_turns, *to.gold_turns, *_booked(name, to.time, setting, price))
    return replace(goal, gold_turns=turns, final_text=text + to.fallback if to.fallback else "")


def book_specialist(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Find a specialist at a clinic or in the network, and book the first free time of a day."""
    seen = {row.doctor for row in builder.appointments()}
    specialty = builder.rng.choice(SPECIALTIES[1:])
    names = [n for n, d in builder.world.doctors.items() if d.specialty == specialty and n not in seen]
    name, at_clinic = builder.rng.choice(names), easy or builder.draw_bool(0.5)
    if not grantable and builder.plan.out_of_network is not None:
        builder.set_hmo_plan()
    obstacles = [o for o in _obstacles(builder, name) if o == "referral" or (o == "network" and at_clinic)]
    obstacle: Obstacle = builder.rng.choice(obstacles) if not grantable and obstacles else ""
    set_obstacle(builder, name, obstacle, True)
    if not at_clinic:
        _alone_in_network(builder, name)
    day = builder.draw_time(name, 60)[:10]
    time = _first(builder, name, day)
    clinic = builder.world.doctors[name].clinic
    where = f"at the {clinic} clinic" if at_clinic else "in my network"
    spoken = day if easy else draw_spoken_day(builder.phrases.rng, day)
    text = builder.phrase("specialist", specialty=specialty, where=where, day=spoken)
    found = gold_call("find_doctors", specialty=specialty, **({"clinic": clinic} if at_clinic else {}))
    goal = GoalSpec(
        text,
        gold_turns=(found, _coverage(name, "in person")),
        required_terms=(name, date_variants(day), time_variants(time)),
    )
    if obstacle:
        return _refused(builder, goal, name, obstacle, "", easy)
    looks = gold_call("get_slots", doctor=name, date=day)
    return replace(goal, gold_turns=(*goal.gold_turns, looks, *_booked(name, f"{day} {time}", "in person", "")))


def set_obstacle(builder: HealthcareTaskBuilder, name: str, obstacle: Obstacle, in_network: bool) -> None:
    """Set up the doctor and the referrals so that only this obstacle prevents a visit."""
    specialty = builder.find_doctor(name).specialty
    builder.set_in_network(name, in_network and obstacle != "network")
    if not needs_referral(builder.patient.plan, specialty):
        return
    if obstacle == "referral":
        builder.set_referrals(specialty)
        return
    ahead = builder.rng.randint(0, 1) if obstacle == "ends" else builder.rng.randint(20, 90)
    builder.set_referrals(specialty, until=add_days(TODAY, ahead), visits=builder.rng.randint(1, 4), status="signed")


def _alone_in_network(builder: HealthcareTaskBuilder, name: str) -> None:
    """Set that only this doctor of the specialty takes the patient's plan."""
    specialty = builder.world.doctors[name].specialty
    for other in [n for n, doctor in builder.world.doctors.items() if doctor.specialty == specialty]:
        builder.set_in_network(other, other == name)


def _obstacles(builder: HealthcareTaskBuilder, name: str) -> Sequence[Obstacle]:
    found: list[Obstacle] = ["booked", "telehealth"]
    if builder.plan.out_of_network is None:
        found.append("network")
    if needs_referral(builder.patient.plan, builder.find_doctor(name).specialty):
        found += ["referral", "ends"]
    return found


def _first(builder: HealthcareTaskBuilder, name: str, day: str) -> str:
    """Make a first visit possible on a day. Return the first time for it."""
    time = builder.rng.choice([t for t in SLOT_TIMES if set(half_hour_slots(t, 60)) <= set(SLOT_TIMES)])
    builder.set_slots_free(name, f"{day} {time}", 60, True)
    return builder.first_free_time(name, 60, (day,))[11:]


def _coverage(name: str, setting: VisitSetting) -> Message:
    return gold_call("check_coverage", doctor=name, **({"setting": setting} if setting == "telehealth" else {}))


def _booked(name: str, time: str, setting: VisitSetting, price: str) -> tuple[Message, ...]:
    kind, day = "telehealth visit" if setting == "telehealth" else "visit", time[:10]
    arguments = {"doctor": name, "date": day, "time": time[11:]}
    do = gold_call("book_appointment", **arguments, **({"setting": setting} if setting == "telehealth" else {}))
    cost = f", which costs {price} because Dr. {name} is out of network" if price else ""
    return gold_change(
        f"book a {kind} with Dr. {name} on {format_datetime(time)}{cost}", do, "The visit has been booked."
    )


def _refused(
    builder: HealthcareTaskBuilder, goal: GoalSpec, name: str, obstacle: Obstacle, time: str, easy: bool
) -> GoalSpec:
    """Refuse the request for a reason. Some callers contest it."""
    specialty, plan = builder.find_doctor(name).specialty, builder.patient.plan
    if obstacle == "booked":
        text = (
            f"You already have an appointment with Dr. {name} on {format_datetime(time)}, so I cannot book another one."
        )
        return builder.add_refusal(goal, text, date_variants(time[:10]), easy=easy)
    if obstacle == "ends":
        until = next(
            r.until for r in builder.patient_rows("referrals") if r.specialty == specialty and r.until >= TODAY
        )
        text = f"Your referral to {specialty} ends on {until}, so I cannot book a visit after that."
        return builder.add_refusal(goal, text, date_variants(until), easy=easy)
    reasons = {
        "network": (f"Dr. {name} is out of network and {plan} does not cover that", OUT_OF_NETWORK),
        "referral": (f"{plan} requires a valid referral to {specialty}", "valid referral|referral"),
        "telehealth": (
            f"Dr. {name} has no telehealth visits",
            "no telehealth|not offer telehealth|n't offer telehealth|not have telehealth",
        ),
    }
    text, output = reasons[obstacle]
    return builder.add_refusal(goal, f"{text}, so I cannot book it.", output, easy=easy)
