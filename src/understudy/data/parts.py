"""Which part of a split a task goes to. Tasks are grouped first, and a group is never torn apart.

    Distinct    a group is one task by substance: what it is about, without the words (`without_wording`)
    Near        a group is joined by near-duplicates (`similar`), also through others

Every stratum is dealt out in the wanted ratios as nearly as its groups allow, and what one stratum had to leave over is
made good in the next: the whole keeps the ratios, too. A group's place depends on the seed and not on the words.
"""

import hashlib
import random
from array import array
from collections.abc import Hashable, Sequence
from typing import Protocol

from understudy.errors import ConfigError
from understudy.similar import Similar, without_wording
from understudy.tasks import Task

Stratum = tuple[str, str, str]


class Groups(Protocol):
    """Tasks in groups, in the order in which they are added."""

    strata: list[Stratum]
    """What each task is stratified by: domain, family, difficulty."""

    def add(self, task: Task) -> None:
        """The next task."""

    def labels(self) -> Sequence[int]:
        """Each task's group: the number of its first task."""


class Distinct:
    """Tasks with the same substance belong together."""

    def __init__(self) -> None:
        self.strata: list[Stratum] = []
        self._labels = array("q")
        self._first: dict[bytes, int] = {}

    def add(self, task: Task) -> None:
        """The next task."""
        self._labels.append(self._first.setdefault(_digest(without_wording(task)), len(self.strata)))
        self.strata.append(_stratum(task))

    def labels(self) -> Sequence[int]:
        """Each task's group."""
        return self._labels


class Near:
    """Near-duplicates belong together (union-find)."""

    def __init__(self) -> None:
        self.strata: list[Stratum] = []
        self._parents: list[int] = []
        self._similar = Similar()

    def add(self, task: Task) -> None:
        """The next task."""
        number = len(self.strata)
        self.strata.append(_stratum(task))
        self._parents.append(number)
        for other in self._similar.add(task):
            first, second = sorted((self._root(number), self._root(other)))
            self._parents[second] = first

    def labels(self) -> Sequence[int]:
        """Each task's group."""
        return [self._root(number) for number in range(len(self._parents))]

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            self._parents[number] = number = self._parents[self._parents[number]]
        return number


def deal(groups: Groups, ratios: Sequence[float], seed: int) -> bytes:
    """The part of each task, as an index into `ratios`, which sum to 1."""
    if len(ratios) < 2 or min(ratios) <= 0 or abs(sum(ratios) - 1) > 1e-6:
        raise ConfigError(f"ratios {', '.join(f'{r:g}' for r in ratios)}: positive numbers that sum to 1 are needed")
    labels = groups.labels()
    sizes = _sizes(labels)
    strata: dict[Stratum, list[int]] = {}
    for label in sizes:
        strata.setdefault(groups.strata[label], []).append(label)
    part, missing = dict[int, int](), [0.0] * len(ratios)
    for stratum in sorted(strata):
        _deal_stratum(_shuffled(strata[stratum], sizes, f"{seed}/{stratum}"), sizes, ratios, missing, part)
    return bytes(part[label] for label in labels)


def _deal_stratum(
    order: Sequence[int], sizes: dict[int, int], ratios: Sequence[float], missing: list[float], part: dict[int, int]
) -> None:
    """Each group to the part that misses most tasks; `missing` goes on from stratum to stratum."""
    total = sum(sizes[label] for label in order)
    for i, ratio in enumerate(ratios):
        missing[i] += ratio * total
    for label in order:
        part[label] = max(range(len(ratios)), key=missing.__getitem__)
        missing[part[label]] -= sizes[label]


def _shuffled(labels: Sequence[int], sizes: dict[int, int], seed: str) -> list[int]:
    """Groups in random order, the largest first, while there is still room for them."""
    order = random.Random(seed).sample(labels, len(labels))
    return sorted(order, key=lambda label: -sizes[label])


def _sizes(labels: Sequence[int]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for label in labels:
        sizes[label] = sizes.get(label, 0) + 1
    return sizes


def _stratum(task: Task) -> Stratum:
    return task.domain, task.family, task.difficulty


def _digest(value: Hashable) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=16).digest()
