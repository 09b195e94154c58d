"""Requests about the patient's file: a referral, another phone number, another insurance."""

from dataclasses import replace

from understudy.domains.days import any_day
from understudy.domains.drafts import Want, call, change, say
from understudy.domains.healthcare import phrases
from understudy.domains.healthcare.coverage import letters, needs_referral
from understudy.domains.healthcare.dates import plus_days
from understudy.domains.healthcare.drafts import Draft
from understudy.domains.healthcare.state import TODAY
from understudy.domains.healthcare.world import PLANS, SPECIALTIES, draw_member_id, draw_phone
from understudy.tasks import Fact

_WHICH_PHONE = ("new number", "new phone", "phone number", "what number", "which number")
_WHICH_MEMBER = ("member id", "member number", "id number", "id of")


def referral(draft: Draft, ok: bool, easy: bool) -> Want:
    """Ask for a referral, which not every plan needs, and which may be there already."""
    if ok or draft.likely(0.5):
        draft.join_hmo()
    specialty, plan = draft.random.choice(SPECIALTIES[1:]), draft.patient.plan
    read = (call("get_patient"), call("get_records", kind="referrals"))
    want = Want(draft.pick(phrases.REFERRAL, specialty=specialty), turns=read, names=(specialty, "referral"))
    if not needs_referral(plan, specialty):
        text = f"Your plan, {plan}, needs no referral to {specialty}, so I cannot request one."
        return draft.refused(replace(want, turns=read[:1]), text, plan, easy=True)
    if ok:
        draft.refer(specialty)
        do = call("request_referral", specialty=specialty)
        proposal = f"ask Dr. {draft.patient.doctor} for a referral to {specialty}"
        return replace(want, turns=read + change(proposal, do, "It is valid once the doctor has signed it."))
    if draft.likely(0.4):
        draft.refer(specialty, status="requested", until="", visits=0)
        text = f"A referral to {specialty} is requested already, so I cannot request another one."
        return draft.refused(want, text, "requested", easy=easy)
    until = plus_days(TODAY, draft.random.randint(3, 90))
    draft.refer(specialty, status="signed", until=until, visits=draft.random.randint(1, 4))
    text = f"Your referral to {specialty} is valid until {until}, so I cannot request another one."
    return draft.refused(want, text, any_day(until), easy=easy)


def phone(draft: Draft, ok: bool, easy: bool) -> Want:
    """Change the phone number."""
    number, vague = draw_phone(draft.random), not easy and draft.likely(0.4)
    text = draft.pick(phrases.PHONE_VAGUE if vague else phrases.PHONE, number=number)
    facts = (Fact(says=f"The new number is {number}.", cues=_WHICH_PHONE, opened=not vague),)
    asks = (say("What is the new number?"),) if vague else ()
    do = call("update_phone", phone=number)
    turns = asks + change(f"change your phone number to {number}", do, "Your number is changed.")
    return Want(text, turns=turns, names=(number,), facts=facts)


def insurance(draft: Draft, ok: bool, easy: bool) -> Want:
    """Change the insurance; some callers do not say the member id, or say a wrong one first."""
    plan = draft.random.choice([plan for plan in PLANS if plan != draft.patient.plan])
    member_id = draw_member_id(draft.random, plan)
    knows = "told" if easy else draft.random.choice(("told", "vague", "wrong"))
    said = f"{letters(draft.patient.plan)}-{member_id[-6:]}" if knows == "wrong" else member_id
    text = draft.pick(phrases.INSURANCE_VAGUE if knows == "vague" else phrases.INSURANCE, plan=plan, id=said)
    right = draft.pick(phrases.MISREAD if knows == "wrong" else phrases.MEMBER_ID, id=member_id)
    asks = {
        "vague": (say("What is your new member id?"),),
        "wrong": (say(f"{said} is no member id of {plan}: it begins with {letters(plan)}. What is the member id?"),),
    }
    facts = (Fact(says=right, cues=_WHICH_MEMBER, opened=knows == "told"),)
    do = call("update_insurance", plan=plan, member_id=member_id)
    turns = change(f"change your insurance to {plan}, member id {member_id}", do, "Your insurance is changed.")
    meant = draft.pick(phrases.INSURANCE, plan=plan, id=member_id) if knows == "wrong" else ""
    return Want(text, turns=asks.get(knows, ()) + turns, names=(plan, member_id), facts=facts, meant=meant)
