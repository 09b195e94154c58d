"""Requests about the patient's file: a referral, a new phone number, new insurance."""

from dataclasses import replace

from understudy.domains.authoring.request import Detail, add_detail, grant, plain_request, refuse, request
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.healthcare.coverage import needs_referral, plan_initials
from understudy.domains.healthcare.state import TODAY
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.domains.healthcare.world import PLANS, SPECIALTIES, draw_member_id, draw_phone
from understudy.envs.dates import add_days, date_variants
from understudy.envs.gold import gold_call

PHONE = Detail(
    "phone",
    "phone_vague",
    "new_phone",
    "What is the new number?",
    ("new number", "new phone", "phone number", "what number", "which number"),
)
_WHICH_MEMBER = ("member id", "member number", "id number", "id of")


def request_referral(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for a referral. Not every plan needs one, and there may be one already."""
    if grantable or b.draw_bool(0.5):
        b.set_hmo_plan()
    specialty, plan = b.rng.choice(SPECIALTIES[1:]), b.patient.plan
    goal = plain_request(b.phrase("referral", specialty=specialty), None, specialty, "referral")
    goal = replace(goal, gold_turns=(gold_call("get_patient"),))
    if not needs_referral(plan, specialty):
        reason = f"Your plan, {plan}, does not require a referral to {specialty}, so I cannot request one."
        return refuse(b, goal, reason, plan, easy=True)
    reads = [gold_call("get_records", kind="referrals")]
    if grantable:
        b.set_referrals(specialty)
        call = gold_call("request_referral", specialty=specialty)
        proposal = f"ask Dr. {b.patient.doctor} for a referral to {specialty}"
        return grant(goal, proposal, call, "It will be valid once the doctor has signed it.", reads)
    if b.draw_bool(0.4):
        b.set_referrals(specialty, status="requested", until="", visits=0)
        reason, output = f"A referral to {specialty} has already been requested", "requested"
    else:
        until = add_days(TODAY, b.rng.randint(3, 90))
        b.set_referrals(specialty, status="signed", until=until, visits=b.rng.randint(1, 4))
        reason, output = f"Your referral to {specialty} is valid until {until}", date_variants(until)
    return refuse(b, goal, f"{reason}, so I cannot request another one.", output, easy=easy, reads=reads)


def change_phone(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Change the phone number."""
    number, vague = draw_phone(b.rng), not easy and b.draw_bool(0.4)
    goal = request(b, PHONE, None, vague, number, number=number)
    call = gold_call("update_phone", phone=number)
    return grant(goal, f"change your phone number to {number}", call, "Your phone number has been changed.")


def change_insurance(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Change the insurance. Some callers omit the member id or give a wrong one first."""
    plan = b.rng.choice([plan for plan in PLANS if plan != b.patient.plan])
    member_id = draw_member_id(b.rng, plan)
    knowledge = "told" if easy else b.rng.choice(("told", "vague", "wrong"))
    wrong = knowledge == "wrong"
    said = f"{plan_initials(b.patient.plan)}-{member_id[-6:]}" if wrong else member_id
    text = b.phrase("insurance_vague" if knowledge == "vague" else "insurance", plan=plan, id=said)
    correction = b.phrase("misread" if wrong else "member_id", id=member_id)
    question = "What is your new member id?"
    if wrong:
        format_rule = f"{said} is not a member id of {plan}, which begins with {plan_initials(plan)}."
        question = f"{format_rule} What is the member id?"
    goal = plain_request(text, None, plan, member_id)
    goal = add_detail(goal, correction, question, _WHICH_MEMBER, vague=knowledge != "told")
    goal = replace(goal, final_text=b.phrase("insurance", plan=plan, id=member_id) if wrong else "")
    call = gold_call("update_insurance", plan=plan, member_id=member_id)
    proposal = f"change your insurance to {plan}, member id {member_id}"
    return grant(goal, proposal, call, "Your insurance has been changed.")
