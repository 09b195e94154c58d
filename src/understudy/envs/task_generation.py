"""Generation of a domain's tasks: from one function for each family, or from one generator of all tasks."""

import inspect
import itertools
import random
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from understudy.core.errors import TaskError
from understudy.core.event_loop import BACKGROUND_LOOP
from understudy.core.tasks import Difficulty, Split, Task
from understudy.core.user_code import task_code

MAX_REJECTED_DRAWS = 2000
"""Number of tasks in a row that a family may draw for other splits or difficulties. Then its stream ends."""


class FamilyFunction(Protocol):
    """Protocol of a function that makes the tasks of one family."""

    def __call__(self, rng: random.Random) -> Task | Coroutine[Any, Any, Task]:
        """Return a task drawn with `rng`, which is the only source of randomness.

        The task needs `scenario`, `gold` and, where facts must be told, `outputs`. The domain sets its id, domain,
        family and split. The function may be a coroutine.
        """


class GenerateTasks(Protocol):
    """Protocol of one generator of all tasks of a domain, which chooses ids and rows of the splits itself."""

    def __call__(
        self, split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]
    ) -> Iterator[Task]:
        """Yield tasks without end, deterministic by seed, round-robin over the families.

        Tasks use only the users and entities of the split.
        """


class RecreateTask(Protocol):
    """Protocol of a function that makes one generated task from the parts of its id."""

    def __call__(self, split: Split, seed: int, family: str, difficulty: Difficulty, number: int) -> Task:
        """Return the task that `GenerateTasks` yields for these parts."""


class MakeLongTask(Protocol):
    """Protocol of a function that makes a task with more requests of one customer."""

    def __call__(self, split: Split, seed: int, family: str, number: int, additions: Sequence[tuple[int, str]]) -> Task:
        """Return a hard task with the requests that `additions` draw, as (number, family)."""


@dataclass(frozen=True)
class FamilyTasks:
    """Generator of tasks from one function for each family. The id of a task determines it."""

    domain: str
    """Name of the domain, which begins each id."""
    functions: Mapping[str, FamilyFunction]
    find_split: Callable[[Task], Split | None]
    """Returns the split of a task, or None if its rows belong to several splits. Such a task is drawn again."""

    def generate(
        self, split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]
    ) -> Iterator[Task]:
        """Yield tasks without end, round-robin over the families that have tasks of the split and difficulties."""
        streams = {family: self._family(split, seed, family, difficulties) for family in families}
        while streams:
            for family in tuple(streams):
                task = next(streams[family], None)
                if task is None:
                    del streams[family]
                else:
                    yield task

    def regenerate(self, task_id: str) -> Task | None:
        """Make the task with an id DOMAIN/FAMILY/SEED-NUMBER. Return None for another id."""
        match = re.fullmatch(r"(.+?)/(.+)/(\d+)-(\d+)", task_id)
        if not match or match[1] != self.domain or match[2] not in self.functions:
            return None
        return self._make_task(match[2], int(match[3]), int(match[4]))

    def _family(self, split: Split, seed: int, family: str, difficulties: Sequence[Difficulty]) -> Iterator[Task]:
        rejected = 0
        for number in itertools.count():
            task = self._make_task(family, seed, number)
            if task and task.split == split and task.difficulty in difficulties:
                rejected = 0
                yield task
            else:
                rejected += 1
            if rejected == MAX_REJECTED_DRAWS:
                return

    def _make_task(self, family: str, seed: int, number: int) -> Task | None:
        """Return a task with its id, domain, family and split; None if its rows belong to several splits."""
        identity = f"{self.domain}/{family}/{seed}-{number}"
        what, function = f"the function of family {family!r}", self.functions[family]
        with task_code(what, function):
            drawn: object = function(random.Random(identity))
        if inspect.iscoroutine(drawn):
            drawn = BACKGROUND_LOOP.run(_await_in_task_code(what, drawn))
        if not isinstance(drawn, Task):
            raise TaskError(f"{self.domain}: the function of family {family!r} returned {drawn!r:.100}; return a Task")
        task = drawn.replace(id=identity, domain=self.domain, family=family)
        split = self.find_split(task)
        return task.replace(split=split) if split else None


async def _await_in_task_code(what: str, drawn: Coroutine[Any, Any, object]) -> object:
    """Return the result. SystemExit is reported before it reaches the event loop, which it would end."""
    with task_code(what):
        return await drawn


def interleave_families(
    families: Sequence[str], difficulties: Sequence[Difficulty]
) -> Iterator[tuple[str, Difficulty, int]]:
    """Yield unique `(family, difficulty, number)` without end. Every prefix is balanced over the families."""
    for index in itertools.count():
        for turn in range(len(difficulties)):
            for place, family in enumerate(families):
                yield family, difficulties[(turn + place) % len(difficulties)], index


def max_repeats(num_distinct: int) -> int:
    """Return how often in a row a generator of `num_distinct` different tasks may repeat itself before it is given up.

    Where two families take turns, and one of them has one more task that is as likely as each of its others, that task
    is missed in less than one case in a hundred.
    """
    return 100 + 10 * num_distinct


def distinct_tasks(tasks: Iterator[Task], count: int) -> list[Task]:
    """Return the first `count` tasks that differ in what the user says or in the gold calls.

    Return fewer if the tasks end, or if `max_repeats` tasks in a row repeat earlier ones.
    """
    found: dict[str, Task] = {}
    repeated = 0
    for task in tasks:
        if len(found) == count or repeated > max_repeats(len(found)):
            break
        calls = [(call.name, call.arguments) for call in task.gold_calls]
        content = repr((task.family, calls) if any(arguments for _, arguments in calls) else task.scenario)
        repeated = repeated + 1 if content in found else 0
        found.setdefault(content, task)
    return list(found.values())
