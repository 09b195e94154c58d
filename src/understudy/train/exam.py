"""Exam: the tasks that a model is evaluated on while and after it is trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from understudy.config import TrainConfig
from understudy.domains.base import TaskSource, find
from understudy.domains.mixture import Mixture, parts_of
from understudy.errors import ConfigError
from understudy.evaluate import exam_tasks, held_out
from understudy.run import OF_TESTS
from understudy.tasks import Task


@dataclass(frozen=True)
class Exam:
    """Tasks that are played at each evaluation, and where in the run's folder their results go."""

    folder: Literal["evaluations", "tests"]
    source: TaskSource
    tasks: Sequence[Task]

    @property
    def ending(self) -> str:
        """What the names of its episodes' files end with."""
        return "" if self.folder == "evaluations" else OF_TESTS


def exams(config: TrainConfig, domain: TaskSource) -> list[Exam]:
    """The tasks held out of what is trained on, and those of the domains that are not trained on at all.

    Where there are none there is nothing to tell of a run, which is a `ConfigError`.
    """
    found = [Exam("evaluations", domain, exam_tasks(domain, config.eval))]
    if config.eval.tests:
        tests = untrained(config, domain)
        tasks = [task for part in tests.parts for task in _test_tasks(config, part)]
        found.append(Exam("tests", tests, tasks))
    return found


def _test_tasks(config: TrainConfig, part: TaskSource) -> list[Task]:
    tasks = held_out(part, "test", config.eval.test_tasks, config.eval.seed)
    if not tasks:
        raise ConfigError(f"eval.tests: {part.name} has no test tasks in test_slice; leave it out, or widen the slice")
    return tasks


def untrained(config: TrainConfig, domain: TaskSource) -> Mixture:
    """The domains of `eval.tests`; one that is trained on is a `ConfigError`."""
    parts = tuple(find(name) for name in config.eval.tests)
    trained = {part.name for part in parts_of(domain)}
    for part in parts:
        if part.name in trained:
            raise ConfigError(
                f"eval.tests: {part.name} is trained on; its own test tasks are played by eval.split=test, "
                "and a domain can be here only where it is not in `domain`"
            )
    return Mixture(parts, (1.0,) * len(parts)).slice(config.test_slice)
