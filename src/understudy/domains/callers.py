"""Callers: how a desk finds out who speaks, and what they can tell of the thing that they call about."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from understudy.domains.drafts import Draft, Want, say
from understudy.domains.talks import Person
from understudy.messages import Message
from understudy.tasks import Difficulty, Fact

Identity = Literal["opened", "asked", "other"]
"""How a caller is identified: by an email or a number in the opening, by it when asked, or by something else."""
IDENTITIES: Mapping[Difficulty, Sequence[Identity]] = {
    "easy": ("opened", "opened", "opened", "asked", "asked"),
    "medium": ("opened", "asked", "other"),
    "hard": ("opened", "asked", "other"),
}

Knowledge = Literal["told", "asked", "described", "vague", "wrong"]
"""What a caller says of a thing with a number: its number at once, its number when asked, what it is like at once, what
it is like when asked, or the number of another one first."""
KNOWLEDGES: Mapping[Difficulty, Sequence[Knowledge]] = {
    "easy": ("told", "told", "told", "asked", "asked"),
    "medium": ("asked", "described", "vague", "wrong"),
    "hard": ("told", "asked", "described", "vague", "wrong"),
}
BY_NUMBER: Sequence[Knowledge] = ("told", "asked", "wrong")
"""The caller knows the number, sooner or later."""

EMAIL = (
    "My email is {email}.",
    "I am {email}.",
    "You find me under {email}.",
    "The email is {email}.",
    "Email: {email}.",
)
NO_EMAIL = (
    "I do not have my email at hand. My name is {name} and my zip is {zip}.",
    "I forgot which email I used. I am {name}, zip {zip}.",
    "Sorry, I do not know it any more. Name: {name}, zip: {zip}.",
)
_EMAIL = ("email", "e-mail")
_NAME, _ZIP = ("your name", "full name", "first name", "last name"), ("zip", "postal code", "postcode")


def caller(draft: Draft, identity: Identity, name: str, email: str, zip_code: str, role: str) -> Person:
    """A person, and what they know of themselves."""
    known = draft.pick(NO_EMAIL, name=name, zip=zip_code) if identity == "other" else draft.pick(EMAIL, email=email)
    facts = (
        Fact(says=known, cues=_EMAIL, opened=identity == "opened"),
        Fact(says=f"My name is {name}.", cues=_NAME),
        Fact(says=f"My zip is {zip_code}.", cues=_ZIP),
    )
    return Person(name, role, facts)


def asks(identity: Identity, what: str = "") -> Iterator[Message]:
    """A perfect agent's first question, if any: for the email, for `what` else is missing, or for both."""
    if identity != "opened" and what:
        yield say(f"What are your email and your {what}?")
    elif identity != "opened" or what:
        yield say(f"What is your {what or 'email'}?")


def search(
    read: Callable[[str], Message], own: Sequence[str], sought: str, knows: Knowledge, *doubt: Message
) -> tuple[Message, ...]:
    """Read the caller's own things until it is the right one; that one alone, after any doubt, by its number."""
    return (*doubt, *map(read, (sought,) if knows in BY_NUMBER else own[: own.index(sought) + 1]))


def settle(wants: Sequence[Want]) -> Iterator[Message]:
    """Deal with each request in turn: find what it is about, without what was read to find another, and settle it."""
    read: list[Message] = []
    for want in wants:
        for turn in want.about.reads if want.about else ():
            if turn not in read:
                yield turn
            read.append(turn)
        yield from want.turns
