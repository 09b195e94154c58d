"""Who speaks in a talk with the desk, and the whole of the gold episode."""

from collections.abc import Iterator, Sequence

from understudy.domains.drafts import Want, call, say
from understudy.domains.healthcare import phrases
from understudy.domains.healthcare.dates import birthday
from understudy.domains.healthcare.drafts import Draft
from understudy.domains.talks import Person
from understudy.messages import Message
from understudy.tasks import Fact

_NAME = ("your name", "full name", "first name", "last name", "patient's name", "name of the patient")
_BORN = ("born", "birth")
_CALLER = ("your own name", "your name", "who you are", "who are you")
_READS = ("get_records", "get_patient")


def person(draft: Draft, easy: bool) -> Person:
    """The caller, and what they know of the patient."""
    patient = draft.patient
    born = patient.born if easy or draft.likely(0.5) else birthday(patient.born)
    words = {"name": patient.name, "born": born, "id": patient.member_id, "caller": draft.caller}
    if draft.identity == "proxy":
        return Person(draft.caller, "somebody who calls for a patient of some clinics", _calling(draft, words, easy))
    if draft.identity == "asked":
        facts: tuple[Fact, ...] = (
            Fact(says=f"My name is {patient.name}.", cues=_NAME),
            Fact(says=draft.pick(phrases.BORN, **words), cues=_BORN),
        )
    elif draft.identity == "member":
        told = draft.pick(phrases.MEMBER, **words)
        facts = (
            Fact(says=told, cues=("member id", "member number", *_BORN), opened=True),
            Fact(says=f"My name is {patient.name}.", cues=_NAME),
        )
    else:
        facts = (Fact(says=draft.pick(phrases.OPENED, **words), cues=(*_NAME, *_BORN), opened=True),)
    return Person(patient.name, "a patient of some clinics", facts)


def _calling(draft: Draft, words: dict[str, str], easy: bool) -> tuple[Fact, ...]:
    """What somebody tells who calls for the patient: all at once, or most of it when asked."""
    if easy or draft.likely(0.5):
        return (Fact(says=draft.pick(phrases.CALLS, **words), cues=(*_NAME, *_BORN), opened=True),)
    return (
        Fact(says=draft.pick(phrases.CALLS_FOR, **words), cues=_NAME[1:], opened=True),
        Fact(says=f"My own name is {draft.caller}.", cues=_CALLER),
        Fact(says=f"{words['name'].split()[0]} was born on {words['born']}.", cues=_BORN),
    )


def gold(draft: Draft, who: Person, wants: Sequence[Want]) -> Iterator[Message]:
    """The agent's side: ask for what is missing, find the patient, and deal with each request in turn."""
    if draft.identity != "urgent":
        yield from _finds(draft, who)
    read: list[Message] = []
    for message in (turn for want in wants for turn in want.turns):
        again = message in read and message.tool_calls[0].name in _READS
        if message.tool_calls and not again:
            read.append(message)
        if not again:
            yield message


def _finds(draft: Draft, who: Person) -> Iterator[Message]:
    if draft.identity == "asked":
        yield say("What are your full name and date of birth?")
    elif draft.identity == "proxy" and not all(fact.opened for fact in who.facts):
        yield say("What is your own name, and what is the patient's date of birth?")
    arguments = {"born": draft.patient.born, "name": draft.patient.name}
    if draft.identity == "member":
        arguments = {"born": draft.patient.born, "member_id": draft.patient.member_id}
    yield call("find_patient", **arguments, **({"caller": draft.caller} if draft.caller else {}))
