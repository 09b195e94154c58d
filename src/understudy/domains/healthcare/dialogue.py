"""The caller's profile and the gold turns of healthcare tasks."""

from collections.abc import Iterator, Sequence

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.dialogue import QUESTION_WORDS, gold_turns_of_goals
from understudy.domains.authoring.scenarios import UserProfile
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.healthcare.clinic_calendar import format_birthday
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.envs.gold import gold_call, gold_text

_NAME = (*QUESTION_WORDS["name"], "patient's name", "name of the patient")
_BORN, _MEMBER = ("born", "birth"), ("member id", "member number")
_CALLER = ("your own name", "your name", "who you are", "who are you")


def build_user_profile(b: HealthcareTaskBuilder, easy: bool) -> UserProfile:
    """Return the caller's profile."""
    patient = b.patient
    born = patient.born if easy or b.draw_bool(0.5) else format_birthday(patient.born)
    words = {"name": patient.name, "born": born, "id": patient.member_id, "caller": b.caller}

    def fact(phrase: str, keywords: tuple[str, ...], in_opening: bool = False) -> Fact:
        return Fact(text=b.phrase(phrase, **words), keywords=keywords, in_opening=in_opening)

    if b.identification == "proxy":
        words["first"] = patient.name.split()[0]
        if easy or b.draw_bool(0.5):
            facts = [fact("calls", (*_NAME, *_BORN), True)]
        else:
            facts = [fact("calls_for", _NAME[1:], True), fact("own_name", _CALLER), fact("patient_born", _BORN)]
        return UserProfile(b.caller, "calling on behalf of a patient of a group of clinics", tuple(facts))
    if b.identification == "asked":
        facts = [fact("name", _NAME), fact("born", _BORN)]
    elif b.identification == "member":
        facts = [fact("member", (*_MEMBER, *_BORN), True), fact("name", _NAME)]
    else:
        facts = [fact("opened", (*_NAME, *_BORN), True)]
    return UserProfile(patient.name, "a patient of a group of clinics", tuple(facts))


def generate_gold_turns(b: HealthcareTaskBuilder, profile: UserProfile, goals: Sequence[GoalSpec]) -> Iterator[Message]:
    """Yield the gold turns: ask for what is missing, find the patient, and settle each request in order."""
    if b.identification == "asked":
        yield gold_text("What are your full name and date of birth?")
    elif b.identification == "proxy" and not all(fact.in_opening for fact in profile.facts):
        yield gold_text("What is your own name, and what is the patient's date of birth?")
    if b.identification != "urgent":
        arguments = {"born": b.patient.born, "name": b.patient.name}
        if b.identification == "member":
            arguments = {"born": b.patient.born, "member_id": b.patient.member_id}
        yield gold_call("find_patient", **arguments, **({"caller": b.caller} if b.caller else {}))
    yield from gold_turns_of_goals(goals, ("get_records", "get_patient"))
