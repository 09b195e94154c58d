"""Identification of customers, and what they know about the entity that they ask about."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from understudy.core.messages import Message
from understudy.core.tasks import Difficulty

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


def entity_lookup(
    read: Callable[[str], Message], keys: Sequence[str], target: str, knowledge: Knowledge, *doubt: Message
) -> tuple[Message, ...]:
    """Return `doubt`, and then the gold agent's lookups of the entity `target`.

    If the customer knows its number, only `target` is read. Otherwise the customer's entities, `keys`, are read in
    order until `target` is found.
    """
    return (*doubt, *map(read, (target,) if knowledge in NUMBER_KNOWN_LEVELS else keys[: keys.index(target) + 1]))
