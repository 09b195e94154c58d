"""Requests for a new visit: with a doctor whom the patient knows, or with a specialist who is still to be found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from understudy.domains.days import any_day
from understudy.domains.drafts import Want, call, change
from understudy.domains.healthcare import phrases
from understudy.domains.healthcare.coverage import needs_referral
from understudy.domains.healthcare.dates import TIMES, any_time, halves, plus_days, spoken_day
from understudy.domains.healthcare.drafts import Draft
from understudy.domains.healthcare.state import TODAY, Setting
from understudy.domains.healthcare.times import wanted
from understudy.domains.healthcare.visits import at, booked, over
from understudy.domains.healthcare.world import SPECIALTIES
from understudy.messages import Message
from understudy.tasks import Fact

Obstacle = Literal["", "booked", "network", "referral", "ends", "telehealth"]
"""What stands in the way: a visit to the doctor that is booked already, a doctor out of network, no valid referral, one
that ends before the visit, or no telehealth."""

OUT_OF_NETWORK = "out of network|out-of-network|not in network|not in your network|not in the network|outside"
"""Ways to say that a doctor does not take the patient's plan."""
_PAYS = Fact(says=phrases.COSTLY, cues=("network", "costs", "price"))
_VIDEO = "telehealth|video"


def book(draft: Draft, ok: bool, easy: bool) -> Want:
    """Book a visit with a doctor whom the patient has seen or was to see."""
    row = draft.random.choice(draft.visits())
    name = row.doctor
    obstacle: Obstacle = "" if ok else draft.random.choice(_obstacles(draft, name))
    video = obstacle == "telehealth" or (obstacle != "booked" and draft.likely(0.2))
    setting: Setting = "telehealth" if video else "in person"
    costly = ok and not video and draft.plan.out_of_network is not None and draft.likely(0.4)
    if obstacle == "booked":
        row = booked(draft, row, False)
    elif row.status == "booked" or video:
        row = over(draft, row, "completed")
    allow(draft, name, obstacle, not costly)
    if video:
        draft.patch("doctors", name, telehealth=obstacle != "telehealth")
    to = wanted(draft, name, draft.minutes(name), easy)
    texts = phrases.BOOK_VAGUE if to.vague else phrases.BOOK
    text = draft.pick(texts, visit=draft.pick(phrases.VIDEO if video else phrases.MEET), doctor=name, when=to.said)
    price = str(draft.plan.out_of_network) if costly else ""
    names = (name, *to.names, *((_VIDEO,) if video else ()), *((price,) if costly else ()))
    want = Want(text, turns=(_coverage(name, setting),), names=names, facts=(*to.facts, _PAYS))
    if obstacle:
        looks = {"ends": to.asks, "booked": to.asks + to.looks[:1]}.get(obstacle, ())
        return _refused(draft, replace(want, turns=want.turns + looks), name, obstacle, row.time, easy)
    turns = (*want.turns, *to.turns, *_booked(name, to.time, setting, price))
    return replace(want, turns=turns, meant=text + to.fallback if to.fallback else "")


def specialist(draft: Draft, ok: bool, easy: bool) -> Want:
    """Find a specialist at a clinic, or the one in the network, and book the first free time of a day."""
    seen = {row.doctor for row in draft.visits()}
    specialty = draft.random.choice(SPECIALTIES[1:])
    names = [n for n, d in draft.world.doctors.items() if d.specialty == specialty and n not in seen]
    name, at_clinic = draft.random.choice(names), easy or draft.likely(0.5)
    if not ok and draft.plan.out_of_network is not None:
        draft.join_hmo()
    obstacles = [o for o in _obstacles(draft, name) if o == "referral" or (o == "network" and at_clinic)]
    obstacle: Obstacle = draft.random.choice(obstacles) if not ok and obstacles else ""
    allow(draft, name, obstacle, True)
    if not at_clinic:
        _alone_in_network(draft, name)
    day = draft.time(name, 60)[:10]
    time = _first(draft, name, day)
    clinic = draft.world.doctors[name].clinic
    where = f"at the {clinic} clinic" if at_clinic else "in my network"
    spoken = day if easy else spoken_day(draft.random, day)
    text = draft.pick(phrases.SPECIALIST, specialty=specialty, where=where, day=spoken)
    found = call("find_doctors", specialty=specialty, **({"clinic": clinic} if at_clinic else {}))
    want = Want(text, turns=(found, _coverage(name, "in person")), names=(name, any_day(day), any_time(time)))
    if obstacle:
        return _refused(draft, want, name, obstacle, "", easy)
    looks = call("get_slots", doctor=name, date=day)
    return replace(want, turns=(*want.turns, looks, *_booked(name, f"{day} {time}", "in person", "")))


def allow(draft: Draft, name: str, obstacle: Obstacle, in_network: bool) -> None:
    """Set up a doctor and the patient's referrals so that this obstacle, and no other, is in the way of a visit."""
    specialty = draft.doctor(name).specialty
    draft.in_network(name, in_network and obstacle != "network")
    if not needs_referral(draft.patient.plan, specialty):
        return
    if obstacle == "referral":
        draft.refer(specialty)
        return
    ahead = draft.random.randint(0, 1) if obstacle == "ends" else draft.random.randint(20, 90)
    draft.refer(specialty, until=plus_days(TODAY, ahead), visits=draft.random.randint(1, 4), status="signed")


def _alone_in_network(draft: Draft, name: str) -> None:
    """Have a doctor, and nobody else of the same specialty, take the patient's plan."""
    specialty = draft.world.doctors[name].specialty
    for other in [n for n, doctor in draft.world.doctors.items() if doctor.specialty == specialty]:
        draft.in_network(other, other == name)


def _obstacles(draft: Draft, name: str) -> Sequence[Obstacle]:
    found: list[Obstacle] = ["booked", "telehealth"]
    if draft.plan.out_of_network is None:
        found.append("network")
    if needs_referral(draft.patient.plan, draft.doctor(name).specialty):
        found += ["referral", "ends"]
    return found


def _first(draft: Draft, name: str, day: str) -> str:
    """Have a first visit fit on a day; the first time at which one does."""
    time = draft.random.choice([t for t in TIMES if set(halves(t, 60)) <= set(TIMES)])
    draft.set_free(name, f"{day} {time}", 60, True)
    return draft.first_free(name, 60, (day,))[11:]


def _coverage(name: str, setting: Setting) -> Message:
    return call("check_coverage", doctor=name, **({"setting": setting} if setting == "telehealth" else {}))


def _booked(name: str, time: str, setting: Setting, price: str) -> tuple[Message, ...]:
    kind, day = "telehealth visit" if setting == "telehealth" else "visit", time[:10]
    arguments = {"doctor": name, "date": day, "time": time[11:]}
    do = call("book_appointment", **arguments, **({"setting": setting} if setting == "telehealth" else {}))
    cost = f", which costs you {price} because Dr. {name} is out of network" if price else ""
    return change(f"book a {kind} with Dr. {name} on {at(time)}{cost}", do, "The visit is booked.")


def _refused(draft: Draft, want: Want, name: str, obstacle: Obstacle, time: str, easy: bool) -> Want:
    """The request with the reason why not. Some callers contest it."""
    specialty, plan = draft.doctor(name).specialty, draft.patient.plan
    if obstacle == "booked":
        text = f"You have an appointment with Dr. {name} on {at(time)} already, so I cannot book another one."
        return draft.refused(want, text, any_day(time[:10]), easy=easy)
    if obstacle == "ends":
        until = next(r.until for r in draft.own("referrals") if r.specialty == specialty and r.until >= TODAY)
        text = f"Your referral to {specialty} ends on {until}, so I cannot book a visit after that."
        return draft.refused(want, text, any_day(until), easy=easy)
    reasons = {
        "network": (f"Dr. {name} is out of network and {plan} does not cover that", OUT_OF_NETWORK),
        "referral": (f"{plan} needs a valid referral to {specialty}", "valid referral|referral"),
        "telehealth": (
            f"Dr. {name} has no telehealth visits",
            "no telehealth|not offer telehealth|n't offer telehealth|not have telehealth",
        ),
    }
    text, output = reasons[obstacle]
    return draft.refused(want, f"{text}, so I cannot book it.", output, easy=easy)
