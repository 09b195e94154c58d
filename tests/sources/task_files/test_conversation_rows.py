"""Test reading recorded conversations, stored episodes and wrapped rows as tasks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.task_rows import write_jsonl
from understudy.core.items import Item, RowError
from understudy.core.tasks import SPLITS, Task
from understudy.data.checks.check import check
from understudy.envs.task_source import list_file_summaries
from understudy.sources.task_files.config import DataConfig
from understudy.sources.task_files.conversation_rows import (
    EARLIER_REPLIES_NOTE,
    FAILED_CALLS_NOTE,
    OTHER_TOOLS_NOTE,
    SHORTER_ANSWER_NOTE,
    UNCOMPARED_ANSWER_NOTE,
)
from understudy.sources.task_files.opening import open_task_files
from understudy.sources.task_files.rows import read_task_rows
from understudy.sources.task_files.source import TaskFile
from understudy.sources.task_files.task_row import LATER_MESSAGES_NOTE, TaskRow

Row = dict[str, Any]
USER = {"role": "user", "content": "How much is a crate of pears? Order one."}


def call(name: str, **arguments: Any) -> Row:
    return {
        "role": "assistant",
        "content": f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>",
    }


def result(text: str) -> Row:
    return {"role": "tool", "content": f"<tool_response>{text}</tool_response>"}


def says(text: str) -> Row:
    return {"role": "assistant", "content": text}


PRICE = [call("get_price", item="pears"), result("a crate: 18.40, 30 left, lot K77")]
ORDER = [call("place_order", item="pears", crates=1), result("ordered")]


def read(row: Any) -> TaskRow:
    (found,) = read_task_rows(iter([Item("rows:1", row)]), "rows")
    assert isinstance(found.item, Item), found.item
    row = found.item.value
    assert isinstance(row, TaskRow)
    return row


def refusal(row: Any) -> RowError:
    (found,) = read_task_rows(iter([Item("rows:1", row)]), "rows")
    assert isinstance(found.item, RowError)
    return found.item


def open_rows(folder: Path, rows: Sequence[Any], **data: Any) -> TaskFile:
    path = write_jsonl(folder, list(rows))
    (source,) = open_task_files({path.stem: [(None, str(path))]}, DataConfig(**data))
    return source


def gold_calls(task: Task) -> list[tuple[str, Row]]:
    return [(made.name, made.arguments) for made in task.gold_calls]


@pytest.mark.parametrize(
    "place",
    [
        lambda turns: {"prompt": turns},
        lambda turns: {"prompt": json.dumps(turns)},
        lambda turns: {"messages": turns},
        lambda turns: {"prompt": {"messages": turns}},
        lambda turns: {"traj": turns, "reward": 1.0},
        lambda turns: {"prompt": turns[:2], "extra_info": {"original_conversation": turns}},
        lambda turns: {"conversations": [{"from": turn["role"], "value": turn["content"]} for turn in turns]},
        lambda turns: turns,
    ],
)
def test_recorded_conversation_is_one_task(place: Any) -> None:
    policy = {"role": "system", "content": "You sell fruit."}
    turns = [policy, USER, says("<think>First the price.</think>"), *PRICE, *ORDER, says("Ordered.")]
    row = read(place(turns))
    assert gold_calls(row.task) == [("get_price", {"item": "pears"}), ("place_order", {"item": "pears", "crates": 1})]
    assert [m.content for m in row.task.gold if m.role == "tool"] == ["a crate: 18.40, 30 left, lot K77", "ordered"]
    assert (row.task.gold[-1].content, row.domain_policy) == ("Ordered.", "You sell fruit.")
    assert row.task.scenario.opening == USER["content"]
    assert (row.task.outputs, row.notes) == ((), ())


def test_all_that_the_user_says_is_the_request() -> None:
    more = {"role": "user", "content": "Lot K77, please."}
    row = read({"messages": [USER, says("Which lot?"), more, *ORDER, says("Ordered.")]})
    assert row.task.scenario.opening == f"{USER['content']}\nLot K77, please."


@pytest.mark.parametrize(
    ("turns", "outputs", "answer"),
    [
        ([*PRICE, says("It is 18.40.")], ("18.40",), "It is 18.40."),
        ([*PRICE, says("Lot K77 is $18.40 today.")], ("K77", "18.40"), "Lot K77 is $18.40 today."),
        ([*PRICE, says("We have 30.")], ("30",), "We have 30."),
        ([call("list_codes"), result("AXQ: 1\nBYR: 2"), says("AXQ and BYR.")], ("AXQ", "BYR"), "AXQ and BYR."),
        ([call("list_codes"), result("ID: 1"), says("The ID is 1.")], (), "The ID is 1."),
        ([call("get_day"), result("July 27, 2026"), says("On July 27, 2026.")], (), "On July 27, 2026."),
        ([*PRICE, says("It is 18.40. Do you want one?")], ("18.40",), "It is 18.40."),
        ([*PRICE, says("It is 18.40.\nTwo are 36.80, 3 are 55.20, 4 are 73.60.")], ("18.40",), "It is 18.40."),
        ([*PRICE, says("18.40 or 19.40 or 20.40 or 21.40")], ("18.40",), "18.40"),
        ([*PRICE, says("Pears cost much since 2026: 12 a crate.")], (), "Pears cost much since 2026: 12 a crate."),
        ([call("get_price", lot="K77"), result("lot K77"), says("It is K77.")], (), "It is K77."),
        ([call("execute_python", code="9.2*2"), result("18.40"), says("It is 18.40.")], (), "It is 18.40."),
        (PRICE, (), "Done."),
    ],
)
def test_reading_conversation_requires_the_facts_that_a_lookup_shows(
    turns: list[Row], outputs: tuple[str, ...], answer: str
) -> None:
    row = read({"messages": [{"role": "user", "content": "How much is it?"}, *turns]})
    assert (row.task.outputs, row.task.gold[-1].content) == (outputs, answer)


def test_ids_of_calls_may_repeat() -> None:
    """Some endpoints number the calls of each reply anew."""
    function = {"type": "function", "id": "call_0"}
    messages: list[Row] = [{"role": "user", "content": "What do W1 and W2 cost?"}]
    for order, price in (("W1", "111.25"), ("W2", "222.75")):
        called = function | {"function": {"name": "get_order", "arguments": json.dumps({"order_id": order})}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [called]})
        messages.append({"role": "tool", "tool_call_id": "call_0", "content": price})
    row = read({"messages": [*messages, says("W1 is 111.25, and W2 is 222.75.")]})
    assert row.task.outputs == ("111.25", "222.75")


def test_gold_earns_the_reward_and_doing_nothing_none(tmp_path: Path) -> None:
    ask = {"role": "user", "content": "How much is it?"}
    rows = [
        {"task_id": "buys", "messages": [USER, *PRICE, *ORDER, says("Ordered. Anything you want to know?")]},
        {"task_id": "tells", "messages": [ask, *PRICE, says("It costs 18.40.")]},
        {"task_id": "silent", "messages": [ask, *PRICE]},
        {"task_id": "vague", "messages": [ask, *PRICE, says("Not much.")]},
    ]
    rows.append({"task_id": "computes", "messages": [ask, call("execute_python", code="9.2*2"), result("18.40")]})
    source = open_rows(tmp_path, rows)
    (summary,) = list_file_summaries(source)
    assert (summary.rows, summary.refused) == ({"conversations": 5}, {"no answer": 1})
    assert f"in 2 rows {UNCOMPARED_ANSWER_NOTE}" in summary.notes
    report = check(source)
    assert (report.unsound, sum(split.tasks for split in report.splits)) == ({}, 4)
    assert {task.id: task.family for split in SPLITS for task in source.tasks(split)} == {
        "buys": "change",
        "tells": "tell",
        "silent": "read",
        "vague": "read",
    }


@pytest.mark.parametrize(
    ("turns", "extra", "note"),
    [
        ([call("get_price", item="x"), result("Error: no x"), *ORDER, says("Ordered.")], {}, FAILED_CALLS_NOTE),
        ([call("get_price"), result('{"error": "no item"}'), *ORDER, says("Ordered.")], {}, FAILED_CALLS_NOTE),
        ([*ORDER, says("Ordered.")], {"expected_tools": ["get_price"]}, OTHER_TOOLS_NOTE),
        ([says("I order."), *ORDER, says("Ordered.")], {}, EARLIER_REPLIES_NOTE),
        ([*PRICE, says("It is 18.40. Do you want one?")], {}, SHORTER_ANSWER_NOTE),
    ],
)
def test_what_is_left_out_is_named(turns: list[Row], extra: Row, note: str, tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "Order."}, *turns], "reward_spec": {"ground_truth": extra}}
    assert read(row).notes == (note,)
    assert f"in 1 rows {note}" in list_file_summaries(open_rows(tmp_path, [row]))[0].notes


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ('{"content": "18.40"}', "18.40"),
        ('{"tool_call_id": "c1", "name": "get_price", "content": {"content": {"price": 18.4}}}', '{"price": 18.4}'),
        ('{"price": "18.40"}', '{"price": "18.40"}'),
        ("18.40", "18.40"),
    ],
)
def test_result_is_shown_without_its_wrappers(recorded: str, shown: str) -> None:
    gold = read({"messages": [USER, call("get_price"), result(recorded)]}).task.gold
    assert [message.content for message in gold if message.role == "tool"] == [shown]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages.1.tool_calls.0"),
        ({"role": "assistant", "tool_calls": ["get_price"]}, "messages.1.tool_calls"),
        ({"role": "assistant", "tool_calls": "get_price"}, "messages.1.tool_calls"),
        (
            {"role": "assistant", "tool_calls": [{"name": "a", "arguments": "pears"}]},
            "messages.1.tool_calls.0.arguments",
        ),
        ({"role": "clerk", "content": "Hello."}, "messages.1.role"),
        ({"role": 5, "content": 7}, "messages.1.role"),
    ],
)
def test_message_of_another_form_is_named(message: Row, field: str) -> None:
    assert refusal({"messages": [USER, message]}).field == field


def test_a_row_with_a_mask_is_refused() -> None:
    said = {"role": "assistant", "content": "Hello."}
    assert refusal({"messages": [USER, said], "loss_mask": [0, 1]}).field == "loss_mask"


def test_calls_in_our_form_and_results_that_are_objects_are_read() -> None:
    made = {"role": "assistant", "tool_calls": [{"id": "c", "name": "get_price", "arguments": {"item": "pears"}}]}
    task = read({"messages": [USER, made, {"role": "tool", "tool_call_id": "c", "content": {"price": 18.4}}]}).task
    assert (gold_calls(task), task.gold[1].content) == ([("get_price", {"item": "pears"})], '{"price": 18.4}')


def test_outputs_of_the_row_take_the_place_of_facts() -> None:
    row = read({"messages": [USER, *PRICE, says("It is 18.40, and 30 are left.")], "outputs": "30"})
    assert (row.task.outputs, row.notes) == (("30",), ())


def test_names_of_tools_are_no_calls() -> None:
    row = {"prompt": [USER], "reward_spec": {"ground_truth": {"tool_sequence": ["get_price", "place_order"]}}}
    error = refusal(row)
    assert (error.field, error.kind) == ("tool_sequence", "only names")
    named = read({**row, "extra_info": {"original_conversation": [USER, *PRICE, *ORDER, says("Ordered.")]}})
    assert len(named.task.gold_calls) == 2


@pytest.mark.parametrize("column", ["reward", "success", "label"])
def test_failed_conversation_is_refused(column: str) -> None:
    row = {"messages": [USER, *ORDER, says("Ordered.")]}
    assert read({**row, column: True}).task.gold_calls
    assert (refusal({**row, column: False}).field, refusal({**row, column: False}).kind) == (column, "failed episode")


@pytest.mark.parametrize(
    ("column", "failed", "done"),
    [
        ("passed", False, True),
        ("is_success", False, True),
        ("task_completed", False, True),
        ("success", "false", "true"),
        ("reward", "0.0", "1.0"),
        ("score", 0.0, 1),
        ("total_reward", 0.0, 2.0),
    ],
)
def test_outcome_is_that_of_demonstrations(column: str, failed: object, done: object, tmp_path: Path) -> None:
    row = {"messages": [USER, *ORDER, says("Ordered.")], "label": "fruit"}
    assert read({**row, column: done}).task.gold_calls
    assert (refusal({**row, column: failed}).field, refusal({**row, column: failed}).kind) == (column, "failed episode")


@pytest.mark.parametrize(
    ("text", "is_failure"),
    [
        ('{"success": false, "message": "no such item"}', True),
        ('{"status": "error", "message": "no such item"}', True),
        ('{"isError": true, "content": []}', True),
        ('[{"error": "no such item"}]', True),
        ("Exception: no such item", True),
        ("requests.exceptions.HTTPError: 404", True),
        ("Failed: no such item", True),
        ("Failed to find the item", True),
        ('{"success": true, "status": "ok"}', False),
        ('{"order": "W1", "status": "failed", "total": 4}', False),
        ("Failed: 0, passed: 12", False),
        ("[]", False),
    ],
)
def test_failed_calls_are_told_by_their_results(text: str, is_failure: bool) -> None:
    row = {"messages": [USER, call("place_order", item="pear"), result(text), *ORDER, says("Ordered.")]}
    assert [made.arguments["item"] for made in read(row).task.gold_calls] == ["pear"] * (not is_failure) + ["pears"]


def test_empty_text_as_arguments_is_a_call_without_arguments() -> None:
    function = {"name": "place_order", "arguments": ""}
    made = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    row = {"messages": [USER, made, {"role": "tool", "tool_call_id": "1", "content": "ordered"}, says("Ordered.")]}
    assert [each.arguments for each in read(row).task.gold_calls] == [{}]


def test_episodes_of_one_task_are_one_task(tmp_path: Path) -> None:
    task = {"instruction": "Order pears.", "actions": [{"name": "place_order", "kwargs": {"item": "pears"}}]}
    policy, failed = {"role": "system", "content": "You sell fruit."}, [USER, says("No.")]
    rows = [
        {"task_id": 5, "trial": 0, "reward": 0.0, "info": {"task": task}, "traj": [policy, *failed]},
        {"task_id": 5, "trial": 1, "reward": 1.0, "info": {"task": task}, "traj": [policy, USER, *ORDER]},
        {"task_id": 6, "reward": 0.0, "info": {"task": {**task, "instruction": "Buy pears."}}, "messages": failed},
    ]
    source = open_rows(tmp_path, rows)
    tasks = [task for split in SPLITS for task in source.tasks(split)]
    assert sorted((task.id, task.scenario.instructions) for task in tasks) == [
        ("mine/5", "Order pears."),
        ("mine/6", "Buy pears."),
    ]
    (summary,) = list_file_summaries(source)
    assert (summary.rows, summary.refused) == ({"episodes": 3}, {})
    assert any("1 rows are further episodes" in note for note in summary.notes)
    assert read(rows[0]).domain_policy == "You sell fruit."
    for number, row in enumerate(rows):
        (tmp_path / f"task_{number}.json").write_text(json.dumps(row))
    (tmp_path / "mine.jsonl").unlink()
    (source,) = open_task_files({"all": [(None, str(tmp_path))]})
    assert len([task for split in SPLITS for task in source.tasks(split)]) == 2


def test_text_of_a_completion_is_read_as_its_row() -> None:
    step = {"step": 1, "server": "shop", "tool": "place_order", "params": {"item": "pears"}}
    inner = {"task_id": "t1", "user_prompt": "Order pears.", "tool_sequence": [step]}
    task = read({"id": "x", "choices": [{"message": {"role": "assistant", "content": json.dumps(inner)}}]}).task
    assert (task.id, task.scenario.opening) == ("t1", "Order pears.")
    assert gold_calls(task) == [("shop.place_order", {"item": "pears"})]
    assert "unknown shape" in refusal({"choices": [{"message": {"content": "Sure, here it is."}}]}).problem


def test_prompt_beside_gold_calls_is_its_first_request() -> None:
    turns = [
        {"role": "system", "content": "You sell fruit."},
        USER,
        says("Which lot?"),
        {"role": "user", "content": "K77."},
    ]
    step = {"step": 1, "server": "shop", "tool": "place_order", "params": {"item": "pears"}}
    for truth in ({"actions": [{"name": "place_order", "params": {"item": "pears"}}]}, {"tool_sequence": [step]}):
        row = read({"prompt": turns, "reward_spec": {"ground_truth": truth}})
        assert (row.task.scenario.opening, row.domain_policy) == (USER["content"], "You sell fruit.")
        assert row.notes == (LATER_MESSAGES_NOTE,)
