"""Assign tasks to splits. Tasks are grouped first, and a group is never divided.

    ExactGroups          tasks with the same content, apart from wording (`semantic_key`)
    NearDuplicateGroups  tasks that are connected by near-duplicates (`near_duplicates`)

Each stratum is divided by the ratios as exactly as its groups allow. The remainder carries over to the next stratum, so
that the whole set has the ratios too. A group's split depends on the seed, not on the words.
"""

import hashlib
import random
from array import array
from collections.abc import Hashable, Sequence
from typing import Protocol

from understudy.core.errors import ConfigError
from understudy.core.tasks import Task
from understudy.sources.task_files.near_duplicates import (
    NearDuplicateIndex,
    duplicate_keys,
    semantic_key,
    without_template,
)

Stratum = tuple[str, str, str]


class TaskGroups(Protocol):
    """Groups of tasks, in the order in which tasks are added."""

    strata: list[Stratum]
    """What tasks are stratified by: domain, family, difficulty."""

    def add(self, task: Task) -> None:
        """Add a task."""

    def group_ids(self) -> Sequence[int]:
        """Return each task's group: the number of its first task."""


class ExactGroups:
    """Groups of tasks with the same content (`semantic_key`)."""

    def __init__(self) -> None:
        self.strata: list[Stratum] = []
        self._group_ids = array("q")
        self._first: dict[bytes, int] = {}

    def add(self, task: Task) -> None:
        """Add a task."""
        self._group_ids.append(self._first.setdefault(_digest(semantic_key(task)), len(self.strata)))
        self.strata.append(_stratum(task))

    def group_ids(self) -> Sequence[int]:
        """Return each task's group."""
        return self._group_ids


class NearDuplicateGroups:
    """Groups of near-duplicates. The words of a template that the tasks share do not count."""

    def __init__(self) -> None:
        self.strata: list[Stratum] = []
        self._shingles: list[array[int]] = []
        self._calls = array("q")

    def add(self, task: Task) -> None:
        """Add a task."""
        own_shingles, calls = duplicate_keys(task)
        self.strata.append(_stratum(task))
        self._shingles.append(own_shingles)
        self._calls.append(calls)

    def group_ids(self) -> Sequence[int]:
        """Return each task's group."""
        parents, similar = list(range(len(self.strata))), NearDuplicateIndex()
        for number, keys in enumerate(zip(without_template(self._shingles), self._calls, strict=True)):
            for other in similar.add_keys(*keys):
                first, second = sorted((_root(parents, number), _root(parents, other)))
                parents[second] = first
        return [_root(parents, number) for number in range(len(parents))]


def _root(parents: list[int], number: int) -> int:
    """Return the first task of a task's group (union-find)."""
    while parents[number] != number:
        parents[number] = number = parents[parents[number]]
    return number


def assign_splits(groups: TaskGroups, ratios: Sequence[float], seed: int) -> bytes:
    """Return the split of each task as an index into `ratios`, which sum to 1."""
    if len(ratios) < 2 or not (all(ratio > 0 for ratio in ratios) and abs(sum(ratios) - 1) <= 1e-6):  # nan is neither
        raise ConfigError(f"ratios {', '.join(f'{r:g}' for r in ratios)}: positive numbers that sum to 1 are needed")
    group_ids = groups.group_ids()
    sizes = _sizes(group_ids)
    strata: dict[Stratum, list[int]] = {}
    for group_id in sizes:
        strata.setdefault(groups.strata[group_id], []).append(group_id)
    part, missing = dict[int, int](), [0.0] * len(ratios)
    for stratum in sorted(strata):
        _assign_stratum(_shuffled(strata[stratum], sizes, f"{seed}/{stratum}"), sizes, ratios, missing, part)
    return bytes(part[group_id] for group_id in group_ids)


def _assign_stratum(
    order: Sequence[int], sizes: dict[int, int], ratios: Sequence[float], missing: list[float], part: dict[int, int]
) -> None:
    """Assign each group to the split that lacks the most tasks. `missing` carries over between strata."""
    total = sum(sizes[group_id] for group_id in order)
    for i, ratio in enumerate(ratios):
        missing[i] += ratio * total
    for group_id in order:
        part[group_id] = max(range(len(ratios)), key=missing.__getitem__)
        missing[part[group_id]] -= sizes[group_id]


def _shuffled(group_ids: Sequence[int], sizes: dict[int, int], seed: str) -> list[int]:
    """Return groups in random order, the largest first."""
    order = random.Random(seed).sample(group_ids, len(group_ids))
    return sorted(order, key=lambda group_id: -sizes[group_id])


def _sizes(group_ids: Sequence[int]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for group_id in group_ids:
        sizes[group_id] = sizes.get(group_id, 0) + 1
    return sizes


def _stratum(task: Task) -> Stratum:
    return task.domain, task.family, task.difficulty


def _digest(value: Hashable) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=16).digest()
