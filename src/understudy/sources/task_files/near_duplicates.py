"""Search for near-duplicates without comparing all pairs. It is exact except for collisions of 64-bit hashes.

Two tasks are near-duplicates if one of these holds:

    gold     they have the same family and the same gold calls, and at least one call has arguments: names and
             arguments count, in order; ids of calls, setup and outputs do not
    wording  the Jaccard index of their shingles is at least MIN_OVERLAP

A shingle is SHINGLE_WORDS consecutive words of the user, case-folded. The words are those of the opening, the facts
and the goals, or those of the instructions if there is none of these. The opening alone would not do: "I want to return
something" begins many different conversations.

All shingles of a task are indexed. If a task has n shingles, and a Jaccard index of at least t with another task, then
the two share at least s = ceil(t n) shingles. So any n - s + k of its shingles include k that the other task has. A
search looks up the n - s + k rarest shingles and compares only tasks found at least k times. This is the prefix filter
of Chaudhuri et al., "A primitive operator for similarity joins in data cleaning", ICDE 2006. Because the index holds
all shingles, the order of the shingles may differ between searches.

Prompts that are made from one template share most of their words, so that all of them would be near-duplicates of each
other. `without_template` leaves out the shingles of the template.

MinHash LSH (datasketch, 128 permutations) misses pairs and takes five times as long. Of 3,000 pairs with a Jaccard
index of 0.70 to 0.80 it missed 780 at threshold 0.7 and 6 at threshold 0.5.
"""

import itertools
import math
import re
from array import array
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from fractions import Fraction

from understudy.core.tasks import Task

SHINGLE_WORDS = 3
MIN_TEMPLATED = 50
"""Fewest tasks of which more than half may share a template. Fewer tasks may be variants of a few."""
MIN_OVERLAP = Fraction(7, 10)

_WORD = re.compile(r"(?<!\w)-\d\w*|\w+")
"""A word. The sign of a number belongs to it, so that "-3 degrees" and "3 degrees" differ."""
_SHARE, _OF = MIN_OVERLAP.as_integer_ratio()
_HITS = 8
"""The k of the module's docstring is s divided by this. With a smaller k there are more tasks to compare, with a larger
k more shingles to look up."""


class NearDuplicateIndex:
    """Index of tasks for the search of near-duplicates. Tasks are numbered in the order of `add`."""

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}
        self._shingles: list[array[int]] = []
        self._having: dict[int, int | list[int]] = {}
        """The tasks of each shingle. Most shingles belong to one task, which needs no list."""

    def add(self, task: Task) -> list[int]:
        """Add a task. Return the earlier tasks that are its near-duplicates, as `find` does."""
        return self.add_keys(*duplicate_keys(task))

    def add_keys(self, own_shingles: "array[int]", calls: int) -> list[int]:
        """Add a task by its `duplicate_keys`, as `add` does."""
        number, found = len(self._shingles), self._near(own_shingles, calls)
        self._calls.setdefault(calls, number)
        self._shingles.append(own_shingles)
        for shingle in own_shingles:
            self._index(shingle, number)
        return found

    def find(self, task: Task) -> list[int]:
        """Return the numbers of a task's near-duplicates in the index.

        Tasks with the same gold calls are near-duplicates of each other; only the first of them is returned.
        """
        return self._near(*duplicate_keys(task))

    def _near(self, own_shingles: "array[int]", calls: int) -> list[int]:
        same = {self._calls[calls]} if calls in self._calls else set()
        return sorted(same | set(self._overlapping(own_shingles)))

    def _index(self, shingle: int, number: int) -> None:
        having = self._having.setdefault(shingle, number)
        if isinstance(having, list):
            having.append(number)
        elif having != number:
            self._having[shingle] = [having, number]

    def _overlapping(self, own_shingles: "array[int]") -> Iterator[int]:
        lists = sorted((self._tasks(shingle) for shingle in own_shingles), key=len)
        own, shared = set(own_shingles), math.ceil(MIN_OVERLAP * len(own_shingles))
        needed = max(1, shared // _HITS)
        found = Counter(itertools.chain.from_iterable(lists[: len(own_shingles) - shared + needed]))
        for number in (n for n, hits in found.items() if hits >= needed):
            other = self._shingles[number]
            if min(len(own), len(other)) * _OF >= _SHARE * max(len(own), len(other)):
                both = len(own.intersection(other))
                if both * _OF >= _SHARE * (len(own) + len(other) - both):
                    yield number

    def _tasks(self, shingle: int) -> Sequence[int]:
        having = self._having.get(shingle, ())
        return (having,) if isinstance(having, int) else having


def semantic_key(task: Task) -> Hashable:
    """Return what identifies a task apart from its wording. Gold calls without arguments do not identify it."""
    return gold_content_key(task) if _calls_with_arguments(task) else (gold_content_key(task), *user_words(task))


def gold_content_key(task: Task) -> Hashable:
    """Return the content of a task without the words of user and agent."""
    calls = tuple(call.model_dump_json(exclude={"id"}) for call in task.gold_calls)
    return task.family, calls, task.outputs, repr(task.setup)


def duplicate_keys(task: Task) -> tuple["array[int]", int]:
    """Return the shingles of a task and a hash of its gold calls, valid within one process."""
    return shingles(task), _calls(task)


def without_template(tasks: Sequence["array[int]"]) -> list["array[int]"]:
    """Return the shingles of each task without those that more than half of `MIN_TEMPLATED` tasks or more have.

    A task that has no others keeps its shingles.
    """
    if len(tasks) < MIN_TEMPLATED:
        return list(tasks)
    counts = Counter(itertools.chain.from_iterable(tasks))
    template = {shingle for shingle, count in counts.items() if count * 2 > len(tasks)}
    own = (array("q", (shingle for shingle in each if shingle not in template)) for each in tasks)
    return [rest or each for rest, each in zip(own, tasks, strict=True)]


def shingles(task: Task) -> "array[int]":
    """Return the shingles of the user's words as 64-bit hashes, valid within one process."""
    words = user_words(task)
    runs = (tuple(words[i : i + SHINGLE_WORDS]) for i in range(max(1, len(words) - SHINGLE_WORDS + 1)))
    return array("q", {hash(run) for run in runs})


def user_words(task: Task) -> list[str]:
    """Return all words of the user: opening, facts and goals; or the instructions, if there are none."""
    user = task.scenario
    texts = [user.opening, *(fact.text for fact in user.facts)]
    for goal in user.goals:
        texts += [goal.text, *(fact.text for fact in goal.facts)]
    return _WORD.findall((" ".join(texts).strip() or user.instructions).casefold())


def _calls(task: Task) -> int:
    if not _calls_with_arguments(task):
        return hash((task.family, *user_words(task)))
    return hash((task.family, *(call.model_dump_json(exclude={"id"}) for call in task.gold_calls)))


def _calls_with_arguments(task: Task) -> bool:
    """Return whether the gold calls tell tasks apart: many tasks may have the same call without arguments."""
    return any(call.arguments for call in task.gold_calls)
