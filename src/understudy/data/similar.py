"""Near-duplicates, exactly, without comparing all pairs.

Two tasks are near-duplicates when they have

    the same family and the same gold calls (name and arguments, in order; ids of calls, setup and outputs aside), or
    words of the user (opening, facts, wishes) that share at least OVERLAP of their shingles (Jaccard index).

A shingle is SHINGLE words in a row, case-folded. The words of the whole user count and not the opening alone: "I want
to return something" begins many different talks. Two sets with a Jaccard index of at least t share an element of their
first n - ceil(t n) + 1 ones in any fixed order, so an index of those finds every pair; the order puts shingles with
digits first, which are the rare ones (S. Chaudhuri et al., "A primitive operator for similarity joins in data
cleaning", ICDE 2006).
"""

import math
import re
from array import array
from collections.abc import Iterator
from fractions import Fraction

from understudy.tasks import Task

SHINGLE = 3
OVERLAP = Fraction(7, 10)

_WORD = re.compile(r"\w+")
_COMMON = 1 << 62


class Similar:
    """Tasks, numbered as they are added, and which of them are near-duplicates."""

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}
        self._shingles: list[array[int]] = []
        self._having: dict[int, list[int]] = {}

    def add(self, task: Task) -> list[int]:
        """Add a task, and give what `find` gives for it."""
        mine, calls, number = shingles(task), _calls(task), len(self._shingles)
        found = self._near(mine, calls)
        self._calls.setdefault(calls, number)
        self._shingles.append(mine)
        for shingle in _prefix(mine):
            self._having.setdefault(shingle, []).append(number)
        return found

    def find(self, task: Task) -> list[int]:
        """The tasks that it is a near-duplicate of.

        Of those with the same gold calls, which are near-duplicates of each other, the first is enough.
        """
        return self._near(shingles(task), _calls(task))

    def _near(self, mine: "array[int]", calls: int) -> list[int]:
        same = {self._calls[calls]} if calls in self._calls else set()
        return sorted(same | set(self._overlapping(mine)))

    def _overlapping(self, mine: "array[int]") -> Iterator[int]:
        own = set(mine)
        for number in {n for shingle in _prefix(mine) for n in self._having.get(shingle, ())}:
            other = self._shingles[number]
            if OVERLAP * max(len(own), len(other)) <= min(len(own), len(other)):
                shared = len(own.intersection(other))
                if shared >= OVERLAP * (len(own) + len(other) - shared):
                    yield number


def shingles(task: Task) -> "array[int]":
    """The shingles of the user's words as sorted 63-bit hashes, those with digits first; good within one process."""
    words = said_words(task)
    runs = (tuple(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1)))
    return array("q", sorted({hash(run) % _COMMON | (0 if _has_digit(run) else _COMMON) for run in runs}))


def said_words(task: Task) -> list[str]:
    """All that the user may say, in words: opening, facts and wishes."""
    user = task.scenario
    texts = [user.opening, *(fact.says for fact in user.facts)]
    for wish in user.wishes:
        texts += [wish.says, *(fact.says for fact in wish.facts)]
    return _WORD.findall(" ".join(texts).casefold())


def _has_digit(words: tuple[str, ...]) -> bool:
    return any(character.isdigit() for word in words for character in word)


def _prefix(mine: "array[int]") -> "array[int]":
    return mine[: len(mine) - math.ceil(OVERLAP * len(mine)) + 1]


def _calls(task: Task) -> int:
    return hash((task.family, *(call.model_dump_json(exclude={"id"}) for call in task.actions)))
