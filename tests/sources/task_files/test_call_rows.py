"""Test reading rows with actions and outputs: every shape gives the same task."""

import json
from typing import Any

import pytest

from support.call_rows import ACTIONS, SHAPES, skyrl_row, tau_row
from understudy.core.items import RowError
from understudy.sources.task_files.call_rows import is_call_row, read_call_row
from understudy.sources.task_files.skyrl_rows import is_skyrl_row
from understudy.sources.task_files.task_row import TaskRow, read_one
from understudy.sources.task_files.tau_rows import is_tau_row, read_tau_row


def read(row: dict[str, Any]) -> TaskRow:
    return read_call_row(row, "rows/1")


def refusal(row: dict[str, Any]) -> RowError:
    error = read_one("rows:1", lambda: read_call_row(row, "rows/1"))
    assert isinstance(error, RowError)
    return error


@pytest.mark.parametrize("domain", ACTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_a_row_gives_the_same_task(shape: str, domain: str) -> None:
    row = SHAPES[shape](domain)
    assert is_call_row(row)
    found, plain = read(row).task, read(tau_row(domain)).task
    assert [(call.name, call.arguments) for call in found.gold_calls] == [
        (action["name"], action["kwargs"]) for action in ACTIONS[domain]
    ]
    same = ("id", "domain", "difficulty", "gold", "outputs")
    assert {name: getattr(found, name) for name in same} == {name: getattr(plain, name) for name in same}
    assert found.scenario.opening == found.scenario.instructions == row.get("instruction", plain.scenario.opening)
    assert (found.id, found.domain, found.difficulty) == (f"{domain}/rows/1", domain, "medium")


@pytest.mark.parametrize("key", ["kwargs", "arguments", "params", "parameters"])
def test_tau_task_has_arguments_of_any_name(key: str) -> None:
    row = tau_row("retail", actions=[{"name": "cancel", key: {"id": "1"}}])
    assert is_tau_row(row)
    assert [call.arguments for call in read_tau_row(row, "rows/1").task.gold_calls] == [{"id": "1"}]


@pytest.mark.parametrize("ground_truth", [{"actions": []}, json.dumps({"actions": []}), json.dumps([]), "4"])
def test_row_of_another_trainer_is_no_row_of_ours(ground_truth: Any) -> None:
    assert not is_skyrl_row({"prompt": [], "reward_spec": {"ground_truth": ground_truth}})


def test_columns_name_policy_split_and_user() -> None:
    row = read(skyrl_row("retail", user_strategy="react"))
    assert (row.domain_policy, row.split, row.task.split) == ("You serve retail.", "train", "train")
    assert row.task.scenario.user_kind == "react"
    plain = read(tau_row("retail"))
    assert (plain.domain_policy, plain.split, plain.task.scenario.user_kind) == ("", None, None)
    assert read(tau_row("retail", split="val")).task.split == "validation"


def test_domain_falls_back_to_data_source() -> None:
    row = skyrl_row("retail", extra_info={})
    assert read(row).task.domain == "retail"
    assert read(tau_row("retail", domain=None)).task.domain == ""


def test_recorded_results_follow_their_calls() -> None:
    find, cancel = (
        {"name": "get_order", "kwargs": {"id": "1"}, "result": {"total": 5}},
        {"name": "cancel", "kwargs": {}},
    )
    gold = read(tau_row("retail", actions=[find, cancel], outputs=["5"])).task.gold
    assert [(m.role, m.content, m.tool_call_id) for m in gold] == [
        ("assistant", "", ""),
        ("tool", '{"total": 5}', "gold_0"),
        ("assistant", "", ""),
        ("assistant", "5", ""),
    ]
    row = tau_row("retail", actions=[{**find, "result": None}, cancel], results=["total 5", "done"])
    assert [m.content for m in read(row).task.gold if m.role == "tool"] == ["total 5", "done"]


def test_texts_to_the_user_are_no_calls() -> None:
    respond = {"name": "respond", "kwargs": {"content": "Hello"}}
    assert len(read(tau_row("retail", actions=[respond, *ACTIONS["retail"]])).task.gold_calls) == 3


@pytest.mark.parametrize(
    ("changes", "field", "named"),
    [
        ({"instruction": None}, "instruction", "prompt"),
        ({"actions": "cancel"}, "actions.0", "cancel"),
        ({"actions": [{"kwargs": {}}]}, "actions.0", "no name"),
        ({"actions": [{"name": "a", "kwargs": [1]}]}, "actions.0.arguments", "[1]"),
        ({"actions": [{"name": "a", "kwargs": {"x": float("nan")}}]}, "actions.0.arguments", "JSON"),
        ({"actions": [{"name": "a"}], "results": ["x", "y"]}, "results", "2"),
        ({"user_strategy": "lmm"}, "user_strategy", "'llm'"),
        ({"tools": [{"name": "a", "parameters": {"type": "text"}}]}, "tools", "'text'"),
        ({"domain": {"a": 1}}, "domain", "{'a': 1}"),
    ],
)
def test_field_that_is_wrong_is_named(changes: dict[str, Any], field: str, named: str) -> None:
    error = refusal(tau_row("retail", **changes))
    assert (error.field, error.location) == (field, "rows:1")
    assert named in error.problem


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2 + 2?", "reward_model": {"style": "rule", "ground_truth": "4"}},
        {"instruction": "Translate.", "output": "Hello."},
    ],
)
def test_other_rows_are_not_rows_of_calls(row: dict[str, Any]) -> None:
    assert not is_call_row(row)
