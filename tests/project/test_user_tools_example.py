"""Test examples/user_tools: it is sound, and wrong success checks and user actions are named."""

import dataclasses
import random
import sys
from typing import Any

import pytest

from support.paths import ROOT
from understudy.core.messages import ToolCall
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


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"expected_output": "on teh shelf"}, "never passes"),
        ({"call": ToolCall(name="get_purchase", arguments={"account_id": "A1"})}, "of a tool of the agent"),
        ({"call": ToolCall(name="look_at_shelv", arguments={"account_id": "A1"})}, "did you mean 'look_at_shelf'"),
        ({"call": ToolCall(name="look_at_shelf", arguments={"account": "A1"})}, "it takes (account_id)"),
        ({"call": ToolCall(name="sync_reader", arguments={"account_id": "A1"})}, "changes readers"),
    ],
)
def test_wrong_success_check_is_named(wrong: dict[str, Any], expected: str) -> None:
    task = sync(random.Random(0))
    (goal,) = task.scenario.goals
    assert goal.success_check
    goals = (goal.replace(success_check=goal.success_check.replace(**wrong)),)
    (problem,) = DOMAIN.find_user_action_problems(task.replace(scenario=task.scenario.replace(goals=goals)))
    assert "success check" in problem
    assert expected in problem


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"read_only": True}, "is read_only, but changes readers"),
        ({"call": ToolCall(name="sync_readr", arguments={"account_id": "A1"})}, "did you mean 'sync_reader'"),
    ],
)
def test_wrong_user_action_is_named(wrong: dict[str, Any], expected: str) -> None:
    task = sync(random.Random(0))
    (action,) = task.scenario.user_actions
    scenario = task.scenario.replace(user_actions=(action.replace(**wrong),))
    (problem,) = DOMAIN.find_user_action_problems(task.replace(scenario=scenario))
    assert "user action" in problem
    assert expected in problem


def test_forgotten_user_actions_are_named() -> None:
    task = sync(random.Random(0))
    (problem,) = DOMAIN.find_user_action_problems(task.replace(scenario=task.scenario.replace(user_actions=())))
    assert "UserAction" in problem
    assert "sync_reader" in problem


def test_success_check_of_a_user_who_leaves_need_not_pass() -> None:
    task = sync(random.Random(0))
    (goal,) = task.scenario.goals
    assert goal.success_check
    never = goal.replace(success_check=goal.success_check.replace(expected_output="never"))
    task = task.replace(scenario=task.scenario.replace(goals=(never,)))
    assert len(list(DOMAIN.find_user_action_problems(task))) == 1
    assert list(DOMAIN.find_user_action_problems(task, user_leaves=True)) == []
