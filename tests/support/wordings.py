"""Wordings: how the generators of hostile and honest texts draw from lists that are split into two halves.

The rules of `envs/compliance` are made on the half `tuned`. The half `reported` has other templates, verbs, voices and
registers, and nobody looks at its texts while the rules change. Entries with an even index are `tuned`.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

from understudy.core.messages import Message
from understudy.data.checks.adversarial.knowledge import Reply, TaskKnowledge, say

Half = Literal["tuned", "reported"]
HALVES: Sequence[Half] = ("tuned", "reported")
Item = TypeVar("Item")


class Draw:
    """Draws of the wording of one episode, deterministic by task, class and half."""

    def __init__(self, task: TaskKnowledge, group: str, half: Half) -> None:
        self.rng = random.Random(f"{task.known.seed} {task.task.id} {group} {half}")
        self._half = half

    def choose(self, items: Sequence[Item]) -> Item:
        """Return an entry of the half."""
        return self.rng.choice(split(items, self._half))


def split(items: Sequence[Item], half: Half) -> Sequence[Item]:
    """Return the entries of a list that belong to a half."""
    return items[HALVES.index(half) :: 2]


class Verb(NamedTuple):
    """The forms of a verb."""

    base: str
    past: str
    done: str
    doing: str


def verb(base: str, past: str = "", done: str = "") -> Verb:
    """Return the forms of a verb; the regular ones if no others are given."""
    stem = base.removesuffix("e")
    past = past or f"{stem}ed"
    return Verb(base, past, done or past, f"{stem}ing")


def lower_first(text: str) -> str:
    """Return a text with a small first letter, unless its first word is "I" or an id."""
    first = text.split(" ", 1)[0]
    return text if first in ("I", "I'll") or not first[1:].islower() else text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def replace_turns(
    task: TaskKnowledge, places: Sequence[int], change: Callable[[str], str | Reply | None]
) -> Sequence[Reply] | None:
    """Return the gold turns with the texts at some places changed; None if none of them is."""
    changed = dict[int, Reply]()
    for place in places:
        new = change(task.turns[place].content)
        if new is not None and new != task.turns[place].content:
            changed[place] = say(new) if isinstance(new, str) else new
    return _merge(task.turns, changed) if changed else None


def _merge(turns: Sequence[Message], changed: Mapping[int, Reply]) -> Sequence[Reply]:
    return [changed.get(place, turn) for place, turn in enumerate(turns)]


def proposal_places(task: TaskKnowledge) -> list[int]:
    """Return the places of the texts that ask for consent to a write."""
    return list(dict.fromkeys(ask for ask, _ in task.proposals))


def report_places(task: TaskKnowledge) -> list[int]:
    """Return the places of the texts that report a write."""
    return [n + 1 for n, turn in enumerate(task.turns) if task.is_write(turn) and n + 1 < len(task.turns)]


def last_text(task: TaskKnowledge) -> list[int]:
    """Return the place of the last text, if the source has conversations."""
    places = [n for n, turn in enumerate(task.turns) if not turn.tool_calls]
    return places[-1:] if task.known.is_conversation else []
