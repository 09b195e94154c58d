"""Fuzz the readers of files of tasks and conversations: an invalid value is a `RowError` with a location."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.call_rows import SHAPES
from support.data_kit import json_values, make_address_task, make_tau_task, retail_tasks, write_lines
from understudy.core.items import Item, RowError
from understudy.core.tasks import Task
from understudy.data.checks.verify import play_tasks
from understudy.data.conversations.conversations import read_conversations
from understudy.data.plots import render_plots
from understudy.data.stats import compute_stats, format_stats
from understudy.data.task_input import open_task_input
from understudy.data.tool_examples import read_tool_examples
from understudy.sources.task_files.call_matching import match_calls
from understudy.sources.task_files.call_sequences import CallSequence, read_sequences, to_sequence_row
from understudy.sources.task_files.rows import read_task_rows
from understudy.sources.task_files.skyrl_rows import to_skyrl_row

VALID_VALUES = [
    *(json.loads(t.model_dump_json(exclude_defaults=True)) for t in retail_tasks(28)),
    json.loads(to_skyrl_row(retail_tasks(1)[0], "policy", "retail").model_dump_json()),
    make_tau_task(),
    make_address_task(3),
]
_TURNS = [{"from": "human", "value": "a"}, {"from": "function_call", "value": '{"name": "f", "arguments": {}}'}]
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_MESSAGES = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "content": "b", "tool_call_id": "c"},
]
CONVERSATION_ROWS: list[Any] = [
    {"messages": _MESSAGES, "tools": [_TOOL], "label": True},
    {"conversations": [*_TURNS, {"from": "observation", "value": "b"}], "system": "s", "tools": "[]"},
    {"conversations": _TURNS[:1], "chosen": _TURNS[1], "rejected": {"from": "gpt", "value": "c"}},
    {"prompt": _MESSAGES[:1], "chosen": _MESSAGES[1:], "rejected": "c"},
    {"prompt": "a", "completion": _MESSAGES[1], "task": "t"},
    {"input": {"messages": _MESSAGES[:1], "tools": []}, "preferred_output": _MESSAGES[1:], "non_preferred_output": []},
    {"instruction": "a", "input": "b", "output": "c", "history": [["d", "e"]], "system": "s"},
    {"question": "a", "answer": 4},
    {"prompt": _MESSAGES[:1], "reward_model": {"ground_truth": "4"}},
    {"traj": [*_MESSAGES, {"role": "assistant", "content": '<think>a</think>{"function_call": {"name": "f"}}'}]},
    {"messages": _MESSAGES, "choices": [{"message": {"role": "assistant", "content": "b"}}]},
    {"steps": [{"messages": _MESSAGES, "action": '{"final_answer": "b"}'}]},
]
SPEC = {
    "scenario": "demo",
    "turns": 4,
    "limits": {"max_tools": 5},
    "tasks": [
        {
            "task_id": "a",
            "conversation": [{"role": "user", "message": "Go."}],
            "solution": {"tool_sequence": [{"step": 1, "tool": "t", "params": {"x": "y"}}]},
        }
    ],
}
SEQUENCE_ROW: dict[str, Any] = {
    "data_source": "synthetic",
    "env_class": "MCPToolEnv",
    "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "Go."}],
    "reward_spec": {
        "method": "rule",
        "ground_truth": {
            "task_id": "a",
            "complexity": "simple",
            "max_turns": 4,
            "success": {"must_call_tool": "s.t"},
            "tool_sequence": [
                {"step": 1, "server": "s", "tool": "get", "params": {"x": [1]}},
                {"step": 2, "server": "s", "tool": "set", "params": {"x": "${step1.y}"}, "result": {"ok": True}},
            ],
            "limits": {"max_tools": 5},
        },
    },
    "extra_info": {"split": "train"},
}
CALL_ROWS: list[Any] = [make(domain) for make in SHAPES.values() for domain in ("retail", "doordash")]
fuzz_settings = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


def json_paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every path into a JSON value."""
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from json_paths(inner, (*at, key))


@st.composite
def mutated_values(draw: st.DrawFn, valid_values: list[Any]) -> Any:
    """Draw a valid value in which one location is replaced by any value or removed."""
    value = deepcopy(draw(st.sampled_from(valid_values)))
    *path, last = draw(st.sampled_from([place for place in json_paths(value) if place]))
    holder = value
    for key in path:
        holder = holder[key]
    if draw(st.booleans()):
        holder[last] = draw(json_values)
    else:
        del holder[last]
    return value


@pytest.mark.slow
@given(st.lists(json_values | mutated_values(VALID_VALUES), min_size=1, max_size=3))
@fuzz_settings
def test_fuzzed_task_file_gives_tasks_or_located_errors(tmp_path: Path, lines: list[Any]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = list(play_tasks(open_task_input(str(path)).items(), {}))
    described = compute_stats(open_task_input(str(path)).items(), {})
    assert described.tasks + described.num_invalid == len(lines)
    assert format_stats(described)
    assert all(ElementTree.fromstring(picture) is not None for picture in render_plots(described).values())
    assert len(found) == len(lines)
    for number, item in enumerate(found, 1):
        assert item.location == f"{path}:{number}"
        assert isinstance(item.value, Task) if isinstance(item, Item) else item.problem


@given(json_values | mutated_values(CONVERSATION_ROWS))
@fuzz_settings
def test_fuzzed_conversation_gives_an_example_or_an_error(tmp_path: Path, row: Any) -> None:
    path = write_lines(tmp_path / "c.jsonl", [row])
    for found in (*read_conversations(path), *read_tool_examples(path)):
        assert found.location == f"{path}:1"


@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps({"tasks": [value]}).encode()))
@fuzz_settings
def test_fuzzed_bytes_give_items_or_errors(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    assert all(isinstance(item, Item | RowError) for item in open_task_input(str(path)).items())


@given(json_values | mutated_values([SPEC, SEQUENCE_ROW, *CALL_ROWS]))
@fuzz_settings
def test_fuzzed_row_of_calls_gives_tasks_or_located_errors(value: Any) -> None:
    for row in read_task_rows(iter([Item("here", value)]), "rows"):
        assert row.item.location.startswith("here")
        if isinstance(row.item, RowError):
            assert row.item.problem
            continue
        content = row.item.value.content
        if isinstance(content, CallSequence):
            assert [read.value for read in read_sequences(Item("", to_sequence_row(content).model_dump()), "")] == [
                content
            ]
            assert content.to_task_row() == row.item.value
        if row.kind.played_by == "calls":
            made = match_calls("calls", [Item("here", row.item.value)])
            assert len(made.rows) + len(made.refused) == 1
