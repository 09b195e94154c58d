"""Families of healthcare tasks: the requests of a conversation, at three difficulties."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from understudy.core.tasks import Difficulty
from understudy.domains.authoring.request import refuse
from understudy.domains.authoring.scenarios import UserProfile
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.healthcare.dialogue import build_user_profile
from understudy.domains.healthcare.goals.account import change_insurance, change_phone, request_referral
from understudy.domains.healthcare.goals.appointment import (
    cancel_appointment,
    correct_time,
    reschedule_appointment,
    switch_cancel_to_reschedule,
)
from understudy.domains.healthcare.goals.billing import ask_amount_owed, pay_bill, pay_in_installments
from understudy.domains.healthcare.goals.booking import book_appointment, book_specialist
from understudy.domains.healthcare.goals.info import (
    ask_appointment_time,
    ask_copay,
    ask_lab_result,
    ask_next_free_time,
    ask_patient_data,
    ask_pharmacy_hours,
    ask_referral_left,
)
from understudy.domains.healthcare.goals.prescription import change_pharmacy, correct_pharmacy, request_refill
from understudy.domains.healthcare.goals.transfer import (
    ask_medical_advice,
    ask_out_of_scope,
    report_urgent_symptom,
)
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder, PatientIdentification
from understudy.domains.healthcare.world import proxy_names

HealthcareGoal = Callable[[HealthcareTaskBuilder, bool, bool], GoalSpec]
"""A function that draws one request: whether the policy allows it, and whether the first message states everything."""

_VISITS: tuple[HealthcareGoal, ...] = (
    cancel_appointment,
    reschedule_appointment,
    book_appointment,
    ask_copay,
    request_referral,
)
_MEDICINES: tuple[HealthcareGoal, ...] = (request_refill, change_pharmacy)
_BILLS: tuple[HealthcareGoal, ...] = (pay_bill, pay_in_installments, ask_amount_owed)
_FILE: tuple[HealthcareGoal, ...] = (change_phone, ask_lab_result, ask_pharmacy_hours)
_GROUPS: Mapping[Sequence[HealthcareGoal], Sequence[HealthcareGoal]] = {
    _VISITS: (
        book_specialist,
        correct_time,
        switch_cancel_to_reschedule,
        ask_appointment_time,
        ask_next_free_time,
        ask_referral_left,
        change_insurance,
    ),
    _MEDICINES: (correct_pharmacy,),
    _BILLS: (),
    _FILE: (ask_patient_data,),
}
"""Requests in groups: common requests, each with rarer ones that use the same rows. Requests of one conversation come
from different groups, so that they do not conflict."""
_QUESTIONS: tuple[HealthcareGoal, ...] = (ask_lab_result, ask_amount_owed, ask_pharmacy_hours, ask_patient_data)

FAMILIES: Mapping[str, Sequence[HealthcareGoal]] = {
    "book": (book_appointment,),
    "specialist": (book_specialist,),
    "move": (reschedule_appointment,),
    "cancel": (cancel_appointment,),
    "refill": (request_refill,),
    "pharmacy": (change_pharmacy,),
    "referral": (request_referral,),
    "account": (change_phone, change_insurance),
    "bill": (pay_bill, pay_in_installments),
    "balance": (ask_amount_owed,),
    "coverage": (ask_copay,),
    "labs": (ask_lab_result,),
    "question": (ask_appointment_time, ask_next_free_time, ask_referral_left, ask_patient_data, ask_pharmacy_hours),
    "several": (
        cancel_appointment,
        reschedule_appointment,
        book_appointment,
        request_refill,
        change_pharmacy,
        pay_bill,
        pay_in_installments,
        change_phone,
    ),
    "correction": (correct_time, switch_cancel_to_reschedule, correct_pharmacy),
    "proxy": (cancel_appointment, reschedule_appointment, request_refill, change_pharmacy),
    "handover": (report_urgent_symptom, ask_medical_advice, ask_out_of_scope, ask_out_of_scope),
}
"""The main requests of a family. `several` always has more than one request. In `correction` the caller changes their
mind when asked to confirm. In `proxy` another person calls for the patient; they may or may not be among the patient's
proxies."""

_IDENTITY: Mapping[Difficulty, Sequence[PatientIdentification]] = {
    "easy": ("opened", "opened", "opened", "asked", "asked"),
    "medium": ("opened", "asked", "member"),
    "hard": ("opened", "asked", "member"),
}


def draw_goals(b: HealthcareTaskBuilder, family: str, difficulty: Difficulty) -> tuple[UserProfile, Sequence[GoalSpec]]:
    """Draw how the patient is identified, the caller, and the requests of one conversation in order.

    Easy: one request that the first message states completely (`several`: a question, then a request). Medium: the
    agent has to ask more. Hard: two or three requests.
    """
    b.identification = b.rng.choice(_IDENTITY[difficulty])
    goals = _draw_proxy_goals(b, difficulty) if family == "proxy" else _draw_goals(b, family, difficulty)
    return build_user_profile(b, difficulty == "easy"), goals


def _draw_goals(b: HealthcareTaskBuilder, family: str, difficulty: Difficulty) -> Sequence[GoalSpec]:
    easy = difficulty == "easy"
    make = b.rng.choice(FAMILIES[family])
    if family == "several" and easy:
        group = next(group for group in _GROUPS if make in group)
        question = b.rng.choice([question for question in _QUESTIONS if question not in group])
        return _draw_goal(b, question, easy=True), _draw_goal(b, make, easy=True)
    goal = _draw_goal(b, make, easy=easy)
    if b.identification == "urgent" or (difficulty != "hard" and family != "several"):
        return (goal,)
    groups = [group for group, rarer in _GROUPS.items() if make not in (*group, *rarer)]
    chosen = b.rng.sample(groups, b.rng.randint(1, 2))
    more = [_draw_goal(b, b.rng.choice(group), easy=True) for group in chosen]
    return (*more, goal) if family == "handover" else (goal, *more)


def _draw_proxy_goals(b: HealthcareTaskBuilder, difficulty: Difficulty) -> Sequence[GoalSpec]:
    """Draw the requests of a caller for the patient. All are refused if the caller is none of the patient's proxies."""
    easy, make = difficulty == "easy", b.rng.choice(FAMILIES["proxy"])
    b.identification = "proxy"
    proxies, allowed = b.patient.proxies, b.draw_bool(b.grantable_share)
    strangers = [name for name in proxy_names() if name not in proxies]
    b.caller = b.rng.choice(proxies if allowed and proxies else strangers)
    if not allowed:
        goal = make(b, True, easy)
        assert goal.mention is not None
        goal = replace(goal, mention=replace(goal.mention, lookup_turns=()), gold_turns=(), final_text="")
        reason = f"{b.caller} is not on the patient's list, so I cannot help with this."
        return (refuse(b, goal, reason, "list|authorized", easy=easy),)
    b.patch("patients", b.key, proxies=sorted({*proxies, b.caller}))
    goal = _draw_goal(b, make, easy=easy)
    other = b.rng.choice([other for other in FAMILIES["proxy"] if (other in _VISITS) != (make in _VISITS)])
    return (goal, _draw_goal(b, other, easy=True)) if difficulty == "hard" else (goal,)


def _draw_goal(b: HealthcareTaskBuilder, make: HealthcareGoal, *, easy: bool) -> GoalSpec:
    return make(b, b.draw_bool(b.grantable_share), easy)
