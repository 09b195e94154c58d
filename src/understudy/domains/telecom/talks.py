"""Who speaks in a telecom talk, and the whole of the gold episode."""

from collections.abc import Iterator, Sequence

from understudy.domains.callers import Identity, settle
from understudy.domains.drafts import Want, call, say
from understudy.domains.talks import Person
from understudy.domains.telecom import phrases
from understudy.domains.telecom.drafts import Caller, Draft, LineRef, Trouble
from understudy.messages import Message
from understudy.tasks import Fact

_NUMBER = ("your number", "phone number", "your phone", "telephone number")
_NAME, _BIRTH = ("your name", "full name", "first name", "last name"), ("birth", "born")


def person(draft: Draft, caller: Caller) -> Person:
    """The customer, and what they know of themselves."""
    name, born = draft.customer.name, f"{draft.customer.birth_date}"
    known = (
        draft.pick(phrases.NO_OWN_NUMBER, name=name, born=born)
        if caller.identity == "other"
        else draft.pick(phrases.OWN_NUMBER, number=caller.number)
    )
    facts = (
        Fact(says=known, cues=_NUMBER, opened=caller.identity == "opened"),
        Fact(says=f"My name is {name}.", cues=_NAME),
        Fact(says=f"I was born on {born}.", cues=_BIRTH),
    )
    return Person(name, "a customer of a mobile operator", facts)


def gold(draft: Draft, caller: Caller, wants: Sequence[Want]) -> Iterator[Message]:
    """The agent's side: ask for what is missing, find the customer, and deal with each request in turn."""
    told = _told(wants[0].about)
    yield from _asks("opened" if told else caller.identity, wants[0].about)
    if caller.identity == "other" and not told:
        yield call("find_customer_by_name", name=draft.customer.name, birth_date=f"{draft.customer.birth_date}")
    else:
        yield call("find_customer", number=told or caller.number)
    yield from settle(wants)
    if isinstance(wants[-1].about, Trouble) and wants[-1].about.mended:
        yield say("I am glad that it works.")


_PLACE = "where are you now, in which city or country"


def _told(about: object) -> str:
    """The number of the line as the opening tells it, if it does: it finds the customer as well as any other."""
    if isinstance(about, LineRef):
        return about.wrong or (about.number if about.knows == "told" else "")
    return ""


def _asks(identity: Identity, about: object) -> Iterator[Message]:
    """One question for all that is missing."""
    questions = ["what is your phone number"] if identity != "opened" else []
    line = about.ref if isinstance(about, Trouble) else about
    if isinstance(line, LineRef) and line.knows in ("asked", "vague"):
        questions.append("which line is it")
    if isinstance(about, Trouble) and about.asks_place:
        questions.append(_PLACE)
    if questions:
        *others, last = questions
        text = f"{', '.join(others)}, and {last}?" if others else f"{last}?"
        yield say(text[0].upper() + text[1:])
