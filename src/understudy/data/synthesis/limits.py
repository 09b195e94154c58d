"""Settings of a synthesis, and the limits that its tasks keep."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import Field

from understudy.core.records import Record
from understudy.core.tasks import DIFFICULTIES, Difficulty, Split, Task
from understudy.data.checks.evidence import play_evidence
from understudy.data.checks.issue import TaskIssue
from understudy.data.synthesis.call_plan import call_range
from understudy.envs.task_source import TaskSource

K = TypeVar("K")

SPLIT_SHARES: Mapping[Split, float] = {"train": 7, "validation": 1, "test": 2}
"""The shares of the splits if no split is chosen."""


class SynthesisConfig(Record):
    """Settings of a synthesis."""

    split: Split | None = "train"
    """The split whose users, rows and records the tasks use. None gives each split its share (`SPLIT_SHARES`)."""
    count: int = Field(default=10, ge=1)
    """Number of tasks to keep."""
    seed: int = 0
    families: tuple[str, ...] = ()
    """Only these families; () means all."""
    difficulties: dict[Difficulty, float] = {}
    """The share of each difficulty; {} means equal shares."""
    max_calls: int | None = Field(default=None, ge=1)
    """Largest number of gold calls of a task."""
    max_tools: int | None = Field(default=None, ge=1)
    """Largest number of different tools that gold calls."""
    max_turns: int | None = Field(default=None, ge=1)
    """Largest number of gold messages of a task."""
    min_reads: int = Field(default=0, ge=0)
    """Smallest number of needed reads of a task; see `data.checks.evidence`."""
    max_attempts: int = Field(default=10, ge=1)
    """Stop after `max_attempts` times `count` proposals, even if fewer than `count` tasks were accepted."""
    concurrency: int = Field(default=8, ge=1)
    """Number of concurrent proposals."""

    @property
    def filters(self) -> bool:
        """Whether a task may break a limit."""
        return bool(self.max_calls or self.max_tools or self.max_turns or self.min_reads)

    @property
    def split_shares(self) -> Mapping[Split, float]:
        """The share of each split that tasks are made of."""
        return {self.split: 1.0} if self.split else SPLIT_SHARES

    @property
    def call_difficulties(self) -> dict[Difficulty, float]:
        """The shares of the difficulties that `max_calls`, `max_turns` and `min_reads` leave possible."""
        most = min(self.max_calls or 10_000, (self.max_turns or 10_000) - 1)
        wanted = self.difficulties or dict.fromkeys(DIFFICULTIES, 1.0)
        ranges = {level: call_range(level) for level in wanted}
        return {
            level: share
            for level, share in wanted.items()
            if ranges[level][0] <= most and ranges[level][1] >= self.min_reads
        }


def find_limit_issue(task: Task, config: SynthesisConfig) -> TaskIssue | None:
    """Return why a task is too long, or None."""
    tools = {call.name for call in task.gold_calls}
    for what, found, most in (
        ("calls", len(task.gold_calls), config.max_calls),
        ("different tools", len(tools), config.max_tools),
        ("messages", len(task.gold), config.max_turns),
    ):
        if most is not None and found > most:
            return TaskIssue("too long", "gold", f"it has {found} {what}; at most {most} are allowed")
    return None


async def find_evidence_issue(source: TaskSource, task: Task, min_reads: int) -> TaskIssue | None:
    """Return a TaskIssue if a sound task needs fewer reads than `min_reads`, else None."""
    if not min_reads:
        return None
    needed = (await play_evidence(source, task)).needed_reads
    if needed >= min_reads:
        return None
    return TaskIssue("too few reads", "gold", f"{needed} of its reads are needed; at least {min_reads} must be")


def cycle_by_share(shares: Mapping[K, float]) -> Iterator[K]:
    """Yield keys endlessly in proportion to their shares, spread evenly. Yield nothing if there are none."""
    taken: dict[Any, int] = dict.fromkeys(shares, 0)
    for _ in itertools.count() if shares else ():
        key = min(shares, key=lambda each: (taken[each] + 1) / shares[each])
        taken[key] += 1
        yield key
