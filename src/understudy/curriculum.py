"""Curriculum: which tasks of a stream are trained on, by how hard they are and by how often they succeed.

A cell is the tasks of one domain, family and difficulty. What is chosen follows from the config, the place in the
stream and the results so far, which a checkpoint keeps: a resumed run chooses as an uninterrupted one.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pydantic import Field

from understudy.errors import ConfigError
from understudy.records import Record
from understudy.tasks import DIFFICULTIES, Task
from understudy.trajectory import Trajectory

PATIENCE = 10_000
"""Tasks in a row that may be left out before the curriculum is taken to fit none."""


class Curriculum(Record):
    """What is trained on first, and most."""

    difficulty: bool = False
    """Easy tasks first: medium and hard ones come in one after the other, at even distances."""
    ramp: float = Field(default=0.5, gt=0.0, le=1.0)
    """The share of the steps after which all difficulties are in."""
    success: bool = False
    """Tasks of families that sometimes succeed before those that always or never do: of a cell with success rate p the
    share 4p(1 - p) is taken, which is the variance that groups learn from."""
    least: float = Field(default=0.1, gt=0.0, le=1.0)
    """The share that is taken of any cell, so that none is given up."""
    memory: float = Field(default=0.8, ge=0.0, lt=1.0)
    """What a cell's success rate keeps of itself when a further group of it has been played."""


class Supply:
    """The tasks of a stream that are to be trained on; `used` counts those of the stream, taken or left out."""

    def __init__(self, tasks: Iterator[Task], wanted: Callable[[int, Task], bool], used: int = 0) -> None:
        self._tasks, self._wanted = tasks, wanted
        self.used = used

    def __iter__(self) -> "Supply":
        return self

    def __next__(self) -> Task:
        for _ in range(PATIENCE):
            task = next(self._tasks)
            self.used += 1
            if self._wanted(self.used, task):
                return task
        raise ConfigError(
            f"the curriculum left out {PATIENCE:,} tasks in a row; leave out curriculum.difficulty, "
            f"or let slice.difficulties have {DIFFICULTIES[0]!r} tasks that the domain really has"
        )


def supply(
    config: Curriculum, tasks: Iterator[Task], used: int, seed: int, done: float, rates: Mapping[str, float]
) -> Supply:
    """The tasks after the first `used` that are to be trained on when `done` of all steps, from 0 to 1, are done."""

    def wanted(place: int, task: Task) -> bool:
        if config.difficulty and task.difficulty not in allowed(done, config.ramp):
            return False
        return not config.success or random.Random(f"{seed}/{place}").random() < share(rates.get(cell(task)), config)

    return Supply(tasks, wanted, used)


def allowed(done: float, ramp: float) -> Sequence[str]:
    """The difficulties that are in when `done` of the steps are done, and all are after `ramp` of them."""
    return DIFFICULTIES[: 1 + int(min(1.0, done / ramp) * (len(DIFFICULTIES) - 1) + 1e-9)]


def share(rate: float | None, config: Curriculum) -> float:
    """The share of a cell's tasks that is taken; all of one that nothing is known of."""
    return 1.0 if rate is None else max(config.least, 4 * rate * (1 - rate))


def learned(rates: Mapping[str, float], groups: Iterable[Sequence[Trajectory]], memory: float) -> dict[str, float]:
    """The success rates of the cells after these groups were played."""
    after = dict(rates)
    for group in groups:
        scores = [episode.score.reward >= 1.0 for episode in group if episode.score]
        if scores:
            name, mean = cell(group[0]), sum(scores) / len(scores)
            after[name] = memory * after[name] + (1 - memory) * mean if name in after else mean
    return after


def cell(placed: Task | Trajectory) -> str:
    """The name of the cell that a task or an episode lies in."""
    return f"{placed.domain}/{placed.family}/{placed.difficulty}"
