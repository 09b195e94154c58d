"""Near-duplicates, exactly (but for collisions of 64-bit hashes), without comparing all pairs.

Two tasks are near-duplicates when they have

    the same family and the same gold calls, if any (names and arguments in order; not ids of calls, setup, outputs), or
    words of the user (opening, facts, wishes; instructions, where there are none of these) that share at least OVERLAP
    of their shingles (Jaccard index).

A shingle is SHINGLE words in a row, case-folded. The words of the whole user count and not the opening alone: "I want
to return something" begins many different talks.

Every shingle is indexed. A set of n shingles with a Jaccard index of at least t to another shares s = ceil(t n) or more
of them with it, so k of any n - s + k of them: those that the fewest tasks have are looked up, and only tasks found k
times are compared (the prefix filter of Chaudhuri et al., "A primitive operator for similarity joins in data cleaning",
ICDE 2006, with an order that may change with every task, because what is indexed is not cut short).
"""

import itertools
import math
import re
from array import array
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from fractions import Fraction

from understudy.tasks import Task

SHINGLE = 3
OVERLAP = Fraction(7, 10)

_WORD = re.compile(r"\w+")
_SHARE, _OF = OVERLAP.as_integer_ratio()
_HITS = 8
"""k is this part of s: fewer hits make more comparisons, more hits longer lists to look through."""


class Similar:
    """Tasks, numbered as they are added, and which of them are near-duplicates."""

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}
        self._shingles: list[array[int]] = []
        self._having: dict[int, int | list[int]] = {}
        """The tasks that have a shingle; most shingles are one task's alone, which needs no list."""

    def add(self, task: Task) -> list[int]:
        """Add a task, and give what `find` gives for it."""
        mine, calls, number = shingles(task), _calls(task), len(self._shingles)
        found = self._near(mine, calls)
        self._calls.setdefault(calls, number)
        self._shingles.append(mine)
        for shingle in mine:
            self._index(shingle, number)
        return found

    def find(self, task: Task) -> list[int]:
        """The tasks that it is a near-duplicate of.

        Of those with the same gold calls, which are near-duplicates of each other, the first is enough.
        """
        return self._near(shingles(task), _calls(task))

    def _near(self, mine: "array[int]", calls: int) -> list[int]:
        same = {self._calls[calls]} if calls in self._calls else set()
        return sorted(same | set(self._overlapping(mine)))

    def _index(self, shingle: int, number: int) -> None:
        having = self._having.setdefault(shingle, number)
        if isinstance(having, list):
            having.append(number)
        elif having != number:
            self._having[shingle] = [having, number]

    def _overlapping(self, mine: "array[int]") -> Iterator[int]:
        lists = sorted((self._tasks(shingle) for shingle in mine), key=len)
        own, shared = set(mine), math.ceil(OVERLAP * len(mine))
        needed = max(1, shared // _HITS)
        found = Counter(itertools.chain.from_iterable(lists[: len(mine) - shared + needed]))
        for number in (n for n, hits in found.items() if hits >= needed):
            other = self._shingles[number]
            if min(len(own), len(other)) * _OF >= _SHARE * max(len(own), len(other)):
                both = len(own.intersection(other))
                if both * _OF >= _SHARE * (len(own) + len(other) - both):
                    yield number

    def _tasks(self, shingle: int) -> Sequence[int]:
        having = self._having.get(shingle, ())
        return (having,) if isinstance(having, int) else having


def without_wording(task: Task) -> Hashable:
    """What makes a task the same as another one, wording aside; one without gold calls is nothing but its wording."""
    return substance(task) if task.actions else (substance(task), *said_words(task))


def substance(task: Task) -> Hashable:
    """What a task is about, without the words of the user and of the agent."""
    calls = tuple(call.model_dump_json(exclude={"id"}) for call in task.actions)
    return task.family, calls, task.outputs, repr(task.setup)


def shingles(task: Task) -> "array[int]":
    """The shingles of the user's words as 64-bit hashes, good within one process."""
    words = said_words(task)
    runs = (tuple(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1)))
    return array("q", {hash(run) for run in runs})


def said_words(task: Task) -> list[str]:
    """All that the user may say, in words: opening, facts and wishes; or what it is told, where there are none."""
    user = task.scenario
    texts = [user.opening, *(fact.says for fact in user.facts)]
    for wish in user.wishes:
        texts += [wish.says, *(fact.says for fact in wish.facts)]
    return _WORD.findall((" ".join(texts).strip() or user.instructions).casefold())


def _calls(task: Task) -> int:
    if not task.actions:
        return hash((task.family, *said_words(task)))
    return hash((task.family, *(call.model_dump_json(exclude={"id"}) for call in task.actions)))
