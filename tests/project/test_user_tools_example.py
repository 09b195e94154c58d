"""Test examples/user_tools: it is sound, and a success check that passes at the start is a warning."""

import dataclasses
import random
import sys

from support.paths import ROOT
from understudy.core.tasks import Task
from understudy.data.checks.check import check

sys.path.insert(0, str(ROOT / "examples" / "user_tools"))

from reader_desk import DOMAIN, sync


def passes_at_start(rng: random.Random) -> Task:
    """Return a task whose user looks for a text that both results contain."""
    task = sync(rng)
    (goal,) = task.scenario.goals
    assert goal.success_check
    always = goal.replace(success_check=goal.success_check.replace(expected_output="shelf"))
    return task.replace(scenario=task.scenario.replace(goals=(always,)))


def test_example_is_sound() -> None:
    report = check(DOMAIN)
    assert (report.problems, report.warnings, report.train_refusal) == ((), (), "")


def test_success_check_that_passes_at_the_start_is_a_warning() -> None:
    report = check(dataclasses.replace(DOMAIN, generate={"sync": passes_at_start}))
    (warning,) = (text for text in report.warnings if "passes at the start" in text)
    assert f"{sum(split.tasks for split in report.splits)} tasks" in warning
