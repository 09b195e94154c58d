"""Requests about the patient's file: a referral, a new phone number, new insurance."""

from dataclasses import replace

from understudy.core.tasks import Fact
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change, gold_text
from understudy.domains.healthcare.clinic_calendar import add_days
from understudy.domains.healthcare.coverage import needs_referral, plan_initials
from understudy.domains.healthcare.state import TODAY
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.domains.healthcare.world import PLANS, SPECIALTIES, draw_member_id, draw_phone
from understudy.envs.dates import date_variants

_WHICH_PHONE = ("new number", "new phone", "phone number", "what number", "which number")
_WHICH_MEMBER = ("member id", "member number", "id number", "id of")


def request_referral(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for a referral. Not every plan needs one, and there may be one already."""
    if grantable or builder.draw_bool(0.5):
        builder.set_hmo_plan()
    specialty, plan = builder.rng.choice(SPECIALTIES[1:]), builder.patient.plan
    read = (gold_call("get_patient"), gold_call("get_records", kind="referrals"))
    goal = GoalSpec(
        builder.phrase("referral", specialty=specialty),
        gold_turns=read,
        required_terms=(specialty, "referral"),
    )
    if not needs_referral(plan, specialty):
        text = f"Your plan, {plan}, does not require a referral to {specialty}, so I cannot request one."
        return builder.add_refusal(replace(goal, gold_turns=read[:1]), text, plan, easy=True)
    if grantable:
        builder.set_referrals(specialty)
        do = gold_call("request_referral", specialty=specialty)
        proposal = f"ask Dr. {builder.patient.doctor} for a referral to {specialty}"
        return replace(
            goal, gold_turns=read + gold_change(proposal, do, "It will be valid once the doctor has signed it.")
        )
    if builder.draw_bool(0.4):
        builder.set_referrals(specialty, status="requested", until="", visits=0)
        text = f"A referral to {specialty} has already been requested, so I cannot request another one."
        return builder.add_refusal(goal, text, "requested", easy=easy)
    until = add_days(TODAY, builder.rng.randint(3, 90))
    builder.set_referrals(specialty, status="signed", until=until, visits=builder.rng.randint(1, 4))
    text = f"Your referral to {specialty} is valid until {until}, so I cannot request another one."
    return builder.add_refusal(goal, text, date_variants(until), easy=easy)


def change_phone(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Change the phone number."""
    number, vague = draw_phone(builder.rng), not easy and builder.draw_bool(0.4)
    text = builder.phrase("phone_vague" if vague else "phone", number=number)
    facts = (Fact(text=builder.phrase("new_phone", number=number), keywords=_WHICH_PHONE, in_opening=not vague),)
    asks = (gold_text("What is the new number?"),) if vague else ()
    do = gold_call("update_phone", phone=number)
    turns = asks + gold_change(f"change your phone number to {number}", do, "Your phone number has been changed.")
    return GoalSpec(text, gold_turns=turns, required_terms=(number,), facts=facts)


def change_insurance(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Change the insurance. Some callers omit the member id or give a wrong one first."""
    plan = builder.rng.choice([plan for plan in PLANS if plan != builder.patient.plan])
    member_id = draw_member_id(builder.rng, plan)
    knowledge = "told" if easy else builder.rng.choice(("told", "vague", "wrong"))
    said = f"{plan_initials(builder.patient.plan)}-{member_id[-6:]}" if knowledge == "wrong" else member_id
    text = builder.phrase("insurance_vague" if knowledge == "vague" else "insurance", plan=plan, id=said)
    right = builder.phrase("misread" if knowledge == "wrong" else "member_id", id=member_id)
    asks = {
        "vague": (gold_text("What is your new member id?"),),
        "wrong": (
            gold_text(
                f"{said} is not a member id of {plan}, which begins with {plan_initials(plan)}. What is the member id?"
            ),
        ),
    }
    facts = (Fact(text=right, keywords=_WHICH_MEMBER, in_opening=knowledge == "told"),)
    do = gold_call("update_insurance", plan=plan, member_id=member_id)
    turns = gold_change(
        f"change your insurance to {plan}, member id {member_id}", do, "Your insurance has been changed."
    )
    meant = builder.phrase("insurance", plan=plan, id=member_id) if knowledge == "wrong" else ""
    return GoalSpec(
        text,
        gold_turns=asks.get(knowledge, ()) + turns,
        required_terms=(plan, member_id),
        facts=facts,
        final_text=meant,
    )
