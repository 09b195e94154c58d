"""Keys inside of rows that are spelled otherwise: each reader accepts or names them, and drops none silently."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.call_rows import tau_row
from understudy.core.errors import ConfigError
from understudy.core.items import Item, RowError
from understudy.core.messages import ToolCall
from understudy.envs.task_source import list_file_summaries
from understudy.sources.loading import load_source
from understudy.sources.row_messages import ARGUMENT_KEYS
from understudy.sources.task_files.config import DataConfig
from understudy.sources.task_files.opening import open_task_files
from understudy.sources.task_files.prompt_rows import to_tool_example
from understudy.sources.task_files.rows import find_kind, read_task_rows
from understudy.sources.task_files.task_row import TaskRow

Call = dict[str, Any]
GOLD = {"order_id": "W17"}


def tau(call: Call) -> dict[str, Any]:
    return {"instruction": "Cancel W17.", "actions": [{"name": "cancel", **call}]}


def recorded(call: Call) -> dict[str, Any]:
    return {"instruction": "Cancel W17.", "actions": [{"name": "cancel", "result": "done", **call}]}


def skyrl(call: Call) -> dict[str, Any]:
    truth = json.dumps({"actions": [{"name": "cancel", **call}]})
    return {"prompt": [{"role": "user", "content": "Cancel W17."}], "reward_spec": {"ground_truth": truth}}


def verl(call: Call) -> dict[str, Any]:
    actions = [{"type": "function", "function": {"name": "cancel", **call}}]
    return {"prompt": "Cancel W17.", "reward_model": {"ground_truth": {"actions": actions}}}


def tau2(call: Call) -> dict[str, Any]:
    action = {"action_id": "1_0", "name": "cancel", "requestor": "assistant", "info": None, **call}
    return {"id": "1", "user_scenario": "Cancel W17.", "evaluation_criteria": {"actions": [action]}}


def question(call: Call) -> dict[str, Any]:
    return {"question": "Cancel W17.", "answer": "Done.", "gold_calls": [{"name": "cancel", **call}]}


def conversation(call: Call) -> dict[str, Any]:
    asked = {"role": "user", "content": "Cancel W17."}
    calls = {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "cancel", **call}}],
    }
    result = {"role": "tool", "tool_call_id": "a", "content": "done"}
    return {"messages": [asked, calls, result, {"role": "assistant", "content": "Cancelled."}]}


def sequence(call: Call) -> dict[str, Any]:
    steps = [{"step": 1, "tool": "cancel", **call}]
    return {
        "prompt": "Cancel W17.",
        "env_class": "MCPToolEnv",
        "reward_spec": {"ground_truth": {"tool_sequence": steps}},
    }


SHAPES: list[Callable[[Call], dict[str, Any]]] = [*(tau, recorded, skyrl, verl, tau2, question, conversation, sequence)]


def read(row: dict[str, Any]) -> TaskRow | RowError:
    (found,) = read_task_rows(iter([Item("rows:1", row)]), "rows")
    return found.item if isinstance(found.item, RowError) else found.item.value


def gold_calls(row: TaskRow | RowError) -> list[ToolCall]:
    assert isinstance(row, TaskRow), row
    return [call.replace(id="") for call in row.task.gold_calls]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("key", ARGUMENT_KEYS)
def test_every_name_of_arguments_is_read(shape: Callable[[Call], dict[str, Any]], key: str) -> None:
    for value in (GOLD, json.dumps(GOLD)):
        assert gold_calls(read(shape({key: value}))) == [ToolCall(name="cancel", arguments=GOLD)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("key", ["argument", "kwarg", "Args", "tool_input", "payload"])
def test_an_unknown_key_in_place_of_arguments_is_named(shape: Callable[[Call], dict[str, Any]], key: str) -> None:
    error = read(shape({key: GOLD}))
    assert isinstance(error, RowError)
    assert key in f"{error.field} {error.problem}"
    assert "arguments" in error.problem


@pytest.mark.parametrize("shape", [tau, skyrl, verl, tau2, question, sequence])
def test_two_different_arguments_are_refused(shape: Callable[[Call], dict[str, Any]]) -> None:
    error = read(shape({"arguments": GOLD, "kwargs": {"order_id": "W18"}}))
    assert isinstance(error, RowError)
    assert all(key in f"{error.field} {error.problem}" for key in ("arguments", "kwargs", "keep one"))
    assert gold_calls(read(shape({"arguments": GOLD, "kwargs": GOLD}))) == [ToolCall(name="cancel", arguments=GOLD)]


@pytest.mark.parametrize("shape", [tau, recorded, skyrl, tau2])
def test_another_key_of_a_call_is_noted(shape: Callable[[Call], dict[str, Any]]) -> None:
    found = read(shape({"arguments": GOLD, "remark": "the only order"}))
    assert isinstance(found, TaskRow)
    (note,) = found.notes
    assert "remark" in note
    assert read(shape({"arguments": GOLD})).notes == ()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("key", "meant"),
    [("output", "outputs"), ("instructions", "instruction"), ("user_stategy", "user_strategy"), ("splits", "split")],
)
@pytest.mark.parametrize("place", ["row", "ground_truth", "extra_info"])
def test_a_near_name_of_a_field_is_named(key: str, meant: str, place: str) -> None:
    row = {"actions": [{"name": "cancel", "kwargs": GOLD}], "prompt": "Cancel W17."}
    truth, info = dict[str, Any](), dict[str, Any]()
    {"row": row, "ground_truth": truth, "extra_info": info}[place][key] = "test"
    error = read({**row, "reward_spec": {"ground_truth": truth}, "extra_info": info})
    assert isinstance(error, RowError)
    assert (error.field, meant in error.problem) == (key, True)


def test_a_near_name_of_a_criterion_of_tau2_is_named() -> None:
    row = {"user_scenario": "Cancel W17.", "evaluation_criteria": {"action": [{"name": "cancel", "arguments": GOLD}]}}
    error = read(row)
    assert isinstance(error, RowError)
    assert (error.field, "'actions'" in error.problem) == ("action", True)


@pytest.mark.parametrize("shape", [tau, recorded, skyrl, verl, question, conversation, sequence])
@pytest.mark.parametrize("place", ["row", "extra_info"])
def test_an_unknown_split_is_refused(shape: Callable[[Call], dict[str, Any]], place: str) -> None:
    row = shape({"arguments": GOLD})

    def with_split(split: str) -> TaskRow | RowError:
        return read({**row, "split": split} if place == "row" else {**row, "extra_info": {"split": split}})

    error = with_split("private")
    assert isinstance(error, RowError)
    assert (error.location, error.field) == ("rows:1", "split")
    assert all(word in error.problem for word in ("'private'", "train", "validation", "test"))
    for known, split in (("training", "train"), ("Dev", "validation"), ("testing", "test"), ("", None)):
        found = with_split(known)
        assert isinstance(found, TaskRow)
        assert found.split == split


def test_a_split_of_a_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("question,answer,split\nHow much is 1 + 1?,2,private\n")
    with pytest.raises(ConfigError, match=r"row 1: split: 'private'; allowed: .*validation"):
        open_task_files({"rows": [(None, str(path))]})


def test_an_output_that_contradicts_the_recorded_results_is_named(tmp_path: Path) -> None:
    rows = [
        tau_row("retail", id=name, outputs=[told], instruction=f"Cancel order #W17; you are mia@mail.com. {name}")
        for name, told in (("right", "19.95"), ("wrong", "777.00"), ("sum", "24.95"))
    ]
    for row in rows:
        actions = [dict(action) for action in row["actions"]]
        actions[1]["result"] = '{"user": "mia_1", "total": 19.95, "fee": 5.0, "status": "pending"}'
        row["actions"] = actions
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (note,) = (note for note in load_source(str(path)).file_summaries()[0].notes if "nothing shows" in note)  # type: ignore[attr-defined]
    assert note.startswith("1 of 3 tasks")
    assert "output 777.00 of wrong" in note


def notes_of(tmp_path: Path, *rows: dict[str, Any], reward: str = "") -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = load_source(str(path), DataConfig(reward=reward))
    return "\n".join(note for summary in list_file_summaries(source) for note in summary.notes)


def test_values_that_are_not_understood_are_noted(tmp_path: Path) -> None:
    assert "complexity 'extreme'" in notes_of(tmp_path, tau_row("healthcare", complexity="extreme", domain="shop"))
    assert "complexity" not in notes_of(tmp_path, tau_row("healthcare", complexity="Hard", domain="shop"))
    assert "did you mean the domain 'retail'" in notes_of(tmp_path, tau_row("airline", domain="retial"))
    reward = "support.task_rows:reward_answer"
    question = {"question": "2 + 2?"}
    for answer in ({"answer": {"value": 4}}, {"reward_model": {"ground_truth": {"value": 4}}}, {"answer": True}):
        (column,) = answer
        assert f"{column}" in notes_of(tmp_path, {**question, **answer}, reward=reward).partition("holds no text")[0]
    assert "rename completion to answer" in notes_of(tmp_path, {"prompt": "2 + 2?", "completion": "4"}, reward=reward)
    error = read({**question, "reward_model": {"groundtruth": "4"}})
    assert isinstance(error, RowError)
    assert (error.field, "'ground_truth'" in error.problem) == ("groundtruth", True)


def test_prompt_counts_before_the_question_that_it_was_made_of() -> None:
    prompt = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "2 + 2? Be exact."}]
    row = {"question": "2 + 2?", "prompt": prompt, "answer": "4"}
    for each in (row, {**row, "prompt": json.dumps(prompt)}):
        example = to_tool_example(each)
        assert (example.domain_policy, example.prompt, example.info) == ("Be brief.", "2 + 2? Be exact.", each)
    assert to_tool_example({**row, "prompt": None}).prompt == "2 + 2?"


@pytest.mark.parametrize("column", ["reward_model", "reward_spec"])
@pytest.mark.parametrize("write", [dict, json.dumps])
def test_columns_of_trainers_may_be_json_text(column: str, write: Callable[[Any], Any]) -> None:
    graded = write({"method": "rule", "ground_truth": "[1, 2]"})
    row = {"prompt": "1 and 2?", column: graded, "extra_info": write({"split": "test"})}
    example = to_tool_example(row)
    assert (example.answer, example.split, example.info) == ("[1, 2]", "test", row)


@pytest.mark.parametrize(
    ("truth", "kind"),
    [
        ([{"name": "Alice", "age": 3}], "prompts"),
        ([{"name": "cancel"}], "call rows"),
        ([{"name": "cancel", "kwargs": {}}], "call rows"),
    ],
)
def test_ground_truth_of_calls_is_told_from_other_objects_with_names(truth: list[Any], kind: str) -> None:
    assert find_kind({"prompt": "Who?", "reward_model": {"ground_truth": json.dumps(truth)}}).name == kind


def test_questions_keep_their_null_columns(tmp_path: Path) -> None:
    row = {"question": "2 + 2?", "answer": "4", "hint": None}
    (found,) = read_task_rows(iter([Item("rows:1", row)]), "rows")
    assert isinstance(found.item, Item)
    assert found.item.value.content.info == row


def test_parts_of_tau2_that_no_comparison_of_calls_reads_are_noted(tmp_path: Path) -> None:
    action = {"name": "cancel_order", "arguments": GOLD}
    row = {"id": "1", "user_scenario": "Cancel W17.", "evaluation_criteria": {"actions": [action]}}
    assert "tau2-bench" not in notes_of(tmp_path, row)
    actions = [{**action, "compare_args": ["order_id"]}, {**action, "requestor": "user"}]
    criteria = {"actions": actions, "nl_assertions": ["It is polite."], "env_assertions": None}
    notes = notes_of(tmp_path, {**row, "initial_state": {"a": 1}, "evaluation_criteria": criteria})
    assert "initial_state, actions of the user, compare_args, nl_assertions" in notes


def test_roles_of_messages_are_read_or_named() -> None:
    row = conversation({"arguments": GOLD})
    renamed = {"user": "human", "assistant": "gpt"}
    messages = [{**each, "role": renamed.get(each["role"], each["role"])} for each in row["messages"]]
    assert gold_calls(read({"messages": messages})) == gold_calls(read(row))
    messages[0]["role"] = "customer"
    error = read({"messages": messages})
    assert isinstance(error, RowError)
    assert (error.field, "'customer'" in error.problem, "assistant" in error.problem) == ("messages.0.role", True, True)


def test_an_empty_instruction_is_named() -> None:
    error = read({**tau({"arguments": GOLD}), "instruction": ""})
    assert str(error) == "rows:1: instruction: it is empty; give it a text"
