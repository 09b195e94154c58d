"""The caller's profile and the gold turns of healthcare tasks."""

from collections.abc import Iterator, Sequence

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.scenarios import UserProfile
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_text
from understudy.domains.healthcare.clinic_calendar import format_birthday
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder

_NAME = ("your name", "full name", "first name", "last name", "patient's name", "name of the patient")
_BORN = ("born", "birth")
_CALLER = ("your own name", "your name", "who you are", "who are you")
_READS = ("get_records", "get_patient")


def build_user_profile(builder: HealthcareTaskBuilder, easy: bool) -> UserProfile:
    """Return the caller's profile."""
    patient = builder.patient
    born = patient.born if easy or builder.draw_bool(0.5) else format_birthday(patient.born)
    words = {"name": patient.name, "born": born, "id": patient.member_id, "caller": builder.caller}
    if builder.identification == "proxy":
        return UserProfile(
            builder.caller, "calling on behalf of a patient of a group of clinics", _calling(builder, words, easy)
        )
    if builder.identification == "asked":
        facts: tuple[Fact, ...] = (
            Fact(text=builder.phrase("name", name=patient.name), keywords=_NAME),
            Fact(text=builder.phrase("born", **words), keywords=_BORN),
        )
    elif builder.identification == "member":
        identity = builder.phrase("member", **words)
        facts = (
            Fact(text=identity, keywords=("member id", "member number", *_BORN), in_opening=True),
            Fact(text=builder.phrase("name", name=patient.name), keywords=_NAME),
        )
    else:
        facts = (Fact(text=builder.phrase("opened", **words), keywords=(*_NAME, *_BORN), in_opening=True),)
    return UserProfile(patient.name, "a patient of a group of clinics", facts)


def _calling(builder: HealthcareTaskBuilder, words: dict[str, str], easy: bool) -> tuple[Fact, ...]:
    """Return the facts that a caller for the patient tells: all in the first message, or most of them when asked."""
    if easy or builder.draw_bool(0.5):
        return (Fact(text=builder.phrase("calls", **words), keywords=(*_NAME, *_BORN), in_opening=True),)
    return (
        Fact(text=builder.phrase("calls_for", **words), keywords=_NAME[1:], in_opening=True),
        Fact(text=builder.phrase("own_name", **words), keywords=_CALLER),
        Fact(
            text=builder.phrase("patient_born", first=words["name"].split()[0], born=words["born"]),
            keywords=_BORN,
        ),
    )


def generate_gold_turns(
    builder: HealthcareTaskBuilder, profile: UserProfile, goals: Sequence[GoalSpec]
) -> Iterator[Message]:
    """Yield the gold turns: ask for what is missing, find the patient, and settle each request in order."""
    if builder.identification != "urgent":
        yield from _finds(builder, profile)
    read: list[Message] = []
    for message in (turn for goal in goals for turn in goal.gold_turns):
        again = message in read and message.tool_calls[0].name in _READS
        if message.tool_calls and not again:
            read.append(message)
        if not again:
            yield message


def _finds(builder: HealthcareTaskBuilder, profile: UserProfile) -> Iterator[Message]:
    if builder.identification == "asked":
        yield gold_text("What are your full name and date of birth?")
    elif builder.identification == "proxy" and not all(fact.in_opening for fact in profile.facts):
        yield gold_text("What is your own name, and what is the patient's date of birth?")
    arguments = {"born": builder.patient.born, "name": builder.patient.name}
    if builder.identification == "member":
        arguments = {"born": builder.patient.born, "member_id": builder.patient.member_id}
    yield gold_call("find_patient", **arguments, **({"caller": builder.caller} if builder.caller else {}))
