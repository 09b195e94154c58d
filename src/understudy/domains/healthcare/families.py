"""Families of healthcare tasks: the requests of a conversation, at three difficulties."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from understudy.core.tasks import Difficulty
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
from understudy.domains.healthcare.goals.base import HealthcareGoalFactory
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

GRANTABLE_SHARE = 0.72
"""Share of requests that are allowed."""

_VISITS: tuple[HealthcareGoalFactory, ...] = (
    cancel_appointment,
    reschedule_appointment,
    book_appointment,
    ask_copay,
    request_referral,
)
_MEDICINES: tuple[HealthcareGoalFactory, ...] = (request_refill, change_pharmacy)
_BILLS: tuple[HealthcareGoalFactory, ...] = (pay_bill, pay_in_installments, ask_amount_owed)
_FILE: tuple[HealthcareGoalFactory, ...] = (change_phone, ask_lab_result, ask_pharmacy_hours)
_GROUPS: Mapping[Sequence[HealthcareGoalFactory], Sequence[HealthcareGoalFactory]] = {
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
_QUESTIONS: tuple[HealthcareGoalFactory, ...] = (ask_lab_result, ask_amount_owed, ask_pharmacy_hours, ask_patient_data)

FAMILIES: Mapping[str, Sequence[HealthcareGoalFactory]] = {
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


def draw_goals(
    builder: HealthcareTaskBuilder, family: str, difficulty: Difficulty
) -> tuple[UserProfile, Sequence[GoalSpec]]:
    """Draw how the patient is identified, the caller, and the requests of one conversation in order.

    Easy: one request that the first message states completely (`several`: a question, then a request). Medium: the
    agent has to ask more. Hard: two or three requests.
    """
    builder.identification = builder.rng.choice(_IDENTITY[difficulty])
    goals = _drawn(builder, family, difficulty)
    return build_user_profile(builder, difficulty == "easy"), goals


def _drawn(builder: HealthcareTaskBuilder, family: str, difficulty: Difficulty) -> Sequence[GoalSpec]:
    """Draw the requests."""
    easy = difficulty == "easy"
    if family == "proxy":
        return _for_another(builder, difficulty)
    make = builder.rng.choice(FAMILIES[family])
    if family == "several" and easy:
        return _one(builder, _question(builder, make), True), _one(builder, make, True)
    request = _one(builder, make, easy)
    if builder.identification == "urgent" or (difficulty != "hard" and family != "several"):
        return (request,)
    more = _more(builder, make)
    return (*more, request) if family == "handover" else (request, *more)


def _for_another(builder: HealthcareTaskBuilder, difficulty: Difficulty) -> Sequence[GoalSpec]:
    """Draw the requests of a caller for the patient. All are refused if the caller is none of the patient's proxies."""
    builder.identification, make = "proxy", builder.rng.choice(FAMILIES["proxy"])
    listed, allowed = builder.patient.proxies, builder.draw_bool(GRANTABLE_SHARE)
    others = [name for name in proxy_names() if name not in listed]
    builder.caller = builder.rng.choice(listed if allowed and listed else others)
    if allowed:
        builder.patch("patients", builder.key, proxies=sorted({*listed, builder.caller}))
        request = _one(builder, make, difficulty == "easy")
        other = builder.rng.choice([other for other in FAMILIES["proxy"] if (other in _VISITS) != (make in _VISITS)])
        return (request, _one(builder, other, True)) if difficulty == "hard" else (request,)
    goal = make(builder, True, difficulty == "easy")
    text = f"{builder.caller} is not on the patient's list, so I cannot help with this."
    return (
        builder.add_refusal(
            replace(goal, gold_turns=(), final_text=""), text, "list|authorized", easy=difficulty == "easy"
        ),
    )


def _more(builder: HealthcareTaskBuilder, factory: HealthcareGoalFactory) -> list[GoalSpec]:
    """Draw one or two further requests of other groups."""
    groups = [group for group, others in _GROUPS.items() if factory not in (*group, *others)]
    chosen = builder.rng.sample(groups, builder.rng.randint(1, 2))
    return [_one(builder, builder.rng.choice(group), True) for group in chosen]


def _question(builder: HealthcareTaskBuilder, factory: HealthcareGoalFactory) -> HealthcareGoalFactory:
    """Draw a question of another group than the request's."""
    own = next(group for group in _GROUPS if factory in group)
    return builder.rng.choice([question for question in _QUESTIONS if question not in own])


def _one(builder: HealthcareTaskBuilder, factory: HealthcareGoalFactory, easy: bool) -> GoalSpec:
    return factory(builder, builder.draw_bool(GRANTABLE_SHARE), easy)
