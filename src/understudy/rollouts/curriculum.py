"""Curriculum: selection of training tasks from a stream by difficulty and by success rate.

A bucket is the set of tasks with the same domain, family and difficulty. The selection depends only on the config, the
position in the stream and the success rates so far. Checkpoints store them, so a resumed run selects the same tasks as
an uninterrupted one.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pydantic import Field

from understudy.core.errors import ConfigError
from understudy.core.records import Record
from understudy.core.tasks import DIFFICULTIES, Task
from understudy.rollouts.group import Group

MAX_SKIPPED_TASKS = 10_000
"""Maximum number of consecutive tasks that a `TaskSampler` skips before it raises ConfigError."""


class CurriculumConfig(Record):
    """The order and frequency of training tasks."""

    easy_first: bool = False
    """Whether to start with easy tasks, then add medium and hard ones at even intervals."""
    ramp_fraction: float = Field(default=0.5, gt=0.0, le=1.0)
    """Fraction of the training steps after which all difficulties are allowed."""
    by_success_rate: bool = False
    """Whether to prefer tasks that succeed sometimes. A task of a bucket with success rate p is kept with probability
    4p(1 - p), which is proportional to the reward variance of its groups."""
    min_keep_probability: float = Field(default=0.1, gt=0.0, le=1.0)
    """Minimum probability to keep a task with `by_success_rate`, so that every bucket is still sampled."""
    ema_decay: float = Field(default=0.8, ge=0.0, lt=1.0)
    """Decay of a bucket's success rate, an exponential moving average that each group updates."""


class TaskSampler:
    """An iterator over the tasks of a stream that the curriculum selects.

    `num_drawn` counts the tasks drawn from the stream, selected or skipped. `__next__` raises ConfigError after
    `MAX_SKIPPED_TASKS` skipped tasks in a row.
    """

    def __init__(self, tasks: Iterator[Task], is_selected: Callable[[int, Task], bool], num_drawn: int = 0) -> None:
        self._tasks = tasks
        self._is_selected = is_selected
        self.num_drawn = num_drawn

    def __iter__(self) -> "TaskSampler":
        return self

    def __next__(self) -> Task:
        for _ in range(MAX_SKIPPED_TASKS):
            task = next(self._tasks)
            self.num_drawn += 1
            if self._is_selected(self.num_drawn, task):
                return task
        raise ConfigError(
            f"the curriculum skipped {MAX_SKIPPED_TASKS:,} tasks in a row; set curriculum.easy_first=false, or add "
            f"{DIFFICULTIES[0]!r} to slice.difficulties in a domain that has such tasks"
        )


def make_task_sampler(
    config: CurriculumConfig,
    tasks: Iterator[Task],
    num_drawn: int,
    seed: int,
    progress: float,
    success_rates: Mapping[str, float],
) -> TaskSampler:
    """Return a sampler of the tasks selected at `progress`, the fraction of training steps done (0 to 1).

    `tasks` continues the stream after its first `num_drawn` tasks. `success_rates` holds the rate of each bucket.
    """

    def is_selected(index: int, task: Task) -> bool:
        if config.easy_first and task.difficulty not in allowed_difficulties(progress, config.ramp_fraction):
            return False
        if not config.by_success_rate:
            return True
        probability = keep_probability(success_rates.get(task_bucket(task)), config)
        return random.Random(f"{seed}/{index}").random() < probability

    return TaskSampler(tasks, is_selected, num_drawn)


def allowed_difficulties(progress: float, ramp_fraction: float) -> Sequence[str]:
    """Return the difficulties allowed at `progress`; all of them from `ramp_fraction` on."""
    ramp = min(1.0, progress / ramp_fraction)
    num_added = int(ramp * (len(DIFFICULTIES) - 1) + 1e-9)
    return DIFFICULTIES[: 1 + num_added]


def keep_probability(success_rate: float | None, config: CurriculumConfig) -> float:
    """Return the probability to keep a task of a bucket with this success rate; 1 if the rate is unknown (None)."""
    if success_rate is None:
        return 1.0
    return max(config.min_keep_probability, 4 * success_rate * (1 - success_rate))


def update_success_rates(
    success_rates: Mapping[str, float], groups: Iterable[Group], ema_decay: float
) -> dict[str, float]:
    """Return the success rates by bucket, updated with the scored episodes of `groups`.

    An episode succeeds if its score is at least 1.0. The first group of a bucket sets its rate.
    """
    updated = dict(success_rates)
    for group in groups:
        successes = [episode.score.reward >= 1.0 for episode in group.episodes if episode.score]
        if not successes:
            continue
        name = task_bucket(group.task)
        rate = sum(successes) / len(successes)
        if name in updated:
            rate = ema_decay * updated[name] + (1 - ema_decay) * rate
        updated[name] = rate
    return updated


def task_bucket(task: Task) -> str:
    """Return the name of a task's bucket: domain/family/difficulty."""
    return f"{task.domain}/{task.family}/{task.difficulty}"
