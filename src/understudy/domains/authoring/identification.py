"""Identification of customers, and what they know about the entity that they ask about."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from understudy.core.messages import Message
from understudy.core.tasks import Difficulty, Fact
from understudy.domains.authoring.scenarios import UserProfile
from understudy.domains.authoring.task_builder import GoalSpec, TaskBuilder, gold_text

IdentificationMode = Literal["opened", "asked", "other"]
"""How a customer is identified: by an email or number, given in the first message (opened) or when asked (asked), or by
other data, such as name and zip (other)."""
IDENTIFICATION_MODES: Mapping[Difficulty, Sequence[IdentificationMode]] = {
    "easy": ("opened", "opened", "opened", "asked", "asked"),
    "medium": ("opened", "asked", "other"),
    "hard": ("opened", "asked", "other"),
}

Knowledge = Literal["told", "asked", "described", "vague", "wrong"]
"""How a customer refers to an entity with a number, such as an order: by its number at once (told) or when asked
(asked), by a description at once (described) or when asked (vague), or first by a wrong number (wrong)."""
KNOWLEDGE_LEVELS: Mapping[Difficulty, Sequence[Knowledge]] = {
    "easy": ("told", "told", "told", "asked", "asked"),
    "medium": ("asked", "described", "vague", "wrong"),
    "hard": ("told", "asked", "described", "vague", "wrong"),
}
NUMBER_KNOWN_LEVELS: Sequence[Knowledge] = ("told", "asked", "wrong")
"""The levels at which the customer gives the number."""

_EMAIL = ("email", "e-mail")
_NAME, _ZIP = ("your name", "full name", "first name", "last name"), ("zip", "postal code", "postcode")


def build_customer_profile(
    builder: TaskBuilder, identification: IdentificationMode, name: str, email: str, zip_code: str, role: str
) -> UserProfile:
    """Return the profile of a customer: name, role and what identifies them."""
    known = (
        builder.phrase("no_email", name=name, zip=zip_code)
        if identification == "other"
        else builder.phrase("email", email=email)
    )
    facts = (
        Fact(text=known, keywords=_EMAIL, in_opening=identification == "opened"),
        Fact(text=builder.phrase("name", name=name), keywords=_NAME),
        Fact(text=builder.phrase("zip", zip=zip_code), keywords=_ZIP),
    )
    return UserProfile(name, role, facts)


def identification_questions(identification: IdentificationMode, what: str = "") -> Iterator[Message]:
    """Yield the gold agent's first question, if any: for the email, for `what`, or for both."""
    if identification != "opened" and what:
        yield gold_text(f"What are your email and your {what}?")
    elif identification != "opened" or what:
        yield gold_text(f"What is your {what or 'email'}?")


def entity_lookup(
    read: Callable[[str], Message], keys: Sequence[str], target: str, knowledge: Knowledge, *doubt: Message
) -> tuple[Message, ...]:
    """Return `doubt`, and then the gold agent's lookups of the entity `target`.

    If the customer knows its number, only `target` is read. Otherwise the customer's entities, `keys`, are read in
    order until `target` is found.
    """
    return (*doubt, *map(read, (target,) if knowledge in NUMBER_KNOWN_LEVELS else keys[: keys.index(target) + 1]))


def gold_turns_of_goals(goals: Sequence[GoalSpec]) -> Iterator[Message]:
    """Yield the gold turns of each request in order: its lookups, unless already made, and its own turns."""
    read: list[Message] = []
    for goal in goals:
        for turn in goal.mention.lookup_turns if goal.mention else ():
            if turn not in read:
                yield turn
            read.append(turn)
        yield from goal.gold_turns
