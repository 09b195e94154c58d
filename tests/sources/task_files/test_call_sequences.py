"""Test sequences of calls: rows for MCP environments and dependent specs, and references between their calls."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.shelves import FixedReplies
from understudy.core.items import Item, RowError
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import TaskLimits
from understudy.data.checks.check import check
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.loading import load_source
from understudy.sources.task_files.call_matching import CallMatching, match_calls
from understudy.sources.task_files.call_sequences import (
    CallSequence,
    is_sequence_row,
    is_spec_row,
    read_sequences,
    to_sequence_row,
)
from understudy.sources.task_files.skyrl_rows import to_skyrl_row
from understudy.sources.task_files.step_references import find_references, resolve_references

PRICE = {"step": 1, "server": "finance", "tool": "get_price", "params": {"ticker": "SPY"}}
SEND = {"step": 2, "server": "slack", "tool": "send", "params": {"to": ["@me"], "text": "it is ${step1.close} now"}}


def spec(*steps: dict[str, Any], task: Any = None, **changes: Any) -> dict[str, Any]:
    told = [{"role": "user", "message": "Get SPY."}, {"role": "assistant", "content": "Where to?"}]
    plain = {
        "task_id": "a",
        "complexity": "simple",
        "conversation": [*told, {"role": "user", "content": "Me."}],
        "solution": {"tool_sequence": list(steps or (PRICE, SEND))},
    }
    return {
        "scenario": "demo",
        "turns": 4,
        "limits": {"max_servers": 2},
        "tasks": [{**plain, **(task or {})}],
        **changes,
    }


def row(*steps: dict[str, Any], **truth: Any) -> dict[str, Any]:
    given = {
        "task_id": "a",
        "complexity": "simple",
        "max_turns": 4,
        "success": {"must_call_tool": "slack.send"},
        "tool_sequence": [{**step, "analysis_requirements": {"extract": ["x"]}} for step in steps or (PRICE, SEND)],
        "limits": {"max_tools": 5},
    }
    return {
        "data_source": "synthetic/llm",
        "env_class": "MCPToolEnv",
        "prompt": [{"role": "system", "content": "You research."}, {"role": "user", "content": "Send me the price."}],
        "reward_spec": {"method": "rule", "ground_truth": {**given, **truth}},
        "extra_info": {"split": "test"},
    }


def read_spec(value: dict[str, Any]) -> CallSequence:
    (item,) = read_sequences(Item("s:1", value), "s/1")
    assert isinstance(item, Item), item
    return item.value


def read_row(value: dict[str, Any]) -> CallSequence:
    (item,) = read_sequences(Item("s:1", value), "s/1")
    assert isinstance(item, Item), item
    return item.value


def play(made: CallMatching, *turns: Message | str) -> tuple[float | None, list[str]]:
    (found,) = made.rows.values()
    episode = asyncio.run(rollout(found.task, made.environment(found.task), FixedReplies(*turns), EpisodeLimits()))
    return episode.reward, [message.content for message in episode.messages if message.role == "tool"]


def call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


def test_specs_and_rows_are_read_as_sequences() -> None:
    assert (is_spec_row(spec()), is_sequence_row(spec())) == (True, False)
    assert (is_spec_row(row()), is_sequence_row(row())) == (False, True)
    of_spec, of_row = read_spec(spec()), read_row(row())
    assert (of_spec.prompt, of_spec.family, of_spec.limits.max_turns) == ("Get SPY.\nMe.", "demo", 4)
    assert (of_row.domain_policy, of_row.split, of_row.family) == ("You research.", "test", "synthetic/llm")
    assert of_row.limits.model_dump(exclude_none=True) == {"max_turns": 4, "max_tools": 5}
    assert (
        [step.name for step in of_spec.steps]
        == [step.name for step in of_row.steps]
        == [
            "finance.get_price",
            "slack.send",
        ]
    )


def test_columns_may_be_json_text_and_steps_in_any_order() -> None:
    value = row(SEND, PRICE)
    text = {name: json.dumps(each) if isinstance(each, dict | list) else each for name, each in value.items()}
    assert read_row(text) == read_row(value) == read_row(row())


def test_row_of_a_sequence_is_read_back() -> None:
    for sequence in (read_row(row()), read_spec(spec())):
        assert read_row(to_sequence_row(sequence).model_dump()) == sequence


@pytest.mark.parametrize(
    ("must", "servers", "missing"),
    [
        ("slack.send", (), ()),
        ("send", (), ()),
        ("slack", ("slack",), ()),
        ("tavily", ("tavily", "slack"), ("tavily.*",)),
        ("tavily_search", ("tavily",), ("tavily_search",)),
        (["send", "fmp"], (), ("fmp",)),
        (None, (), ()),
    ],
)
def test_must_call_is_a_tool_or_a_server(must: Any, servers: tuple[str, ...], missing: tuple[str, ...]) -> None:
    assert read_row(row(success={"must_call_tool": must})).missing_calls(servers) == missing


def test_made_up_results_must_be_read_to_be_used() -> None:
    made = match_calls("demo", [Item("s:1", read_spec(spec()).to_task_row("demo"))])
    assert (made.refused, check(made).problems, sorted(made.write_tools)) == ((), (), ["slack.send"])
    (found,) = made.rows.values()
    price, send = found.task.gold_calls
    _, (result, _) = play(made, call(price.name, **price.arguments), call(send.name, **send.arguments), "Sent.")
    close = json.loads(result)["close"]
    assert send.arguments == {"to": ["@me"], "text": f"it is {close} now"}
    assert close not in json.dumps(PRICE) + found.task.scenario.opening
    other = read_spec(spec(task={"task_id": "b"})).to_task_row().task
    assert close not in other.model_dump_json()
    guessed = {**send.arguments, "text": "it is ${step1.close} now"}
    assert play(made, call(send.name, **guessed), "Sent.")[0] == 0.0


def test_made_up_results_of_tasks_with_equal_ids_in_two_files_differ(tmp_path: Path) -> None:
    for name, prompt in (("first", "Get SPY."), ("second", "Get it again.")):
        value = spec(PRICE, SEND, task={"conversation": [{"role": "user", "content": prompt}]})
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(value) + "\n")
    source = load_source(str(tmp_path))
    first, second = source.tasks("train") + source.tasks("validation")
    assert {first.id, second.id} == {"a", "second/a"}
    assert first.gold_calls[1].arguments != second.gold_calls[1].arguments


def test_last_read_must_be_told() -> None:
    value = read_spec(spec(PRICE, {"step": 2, "server": "fmp", "tool": "fmp_get_news", "params": {"of": "${step1}"}}))
    made = match_calls("demo", [Item("s:1", value.to_task_row("demo"))])
    assert (made.refused, check(made).problems, made.write_tools) == ((), (), frozenset())
    (found,) = made.rows.values()
    (told,) = found.task.outputs
    turns = [call(each.name, **each.arguments) for each in found.task.gold_calls]
    assert play(made, *turns, f"It says {told}.")[0] == 1.0
    assert play(made, f"It says {told}.")[0] == 0.0
    assert play(made, *turns, "", "", "", "")[0] == 0.0


def test_recorded_results_replace_made_up_ones() -> None:
    value = read_spec(spec({**PRICE, "result": [{"close": 512.5}]}, SEND))
    task = value.to_task_row("demo").task
    assert task.gold_calls[1].arguments["text"] == "it is 512.5 now"
    told = read_spec(spec({**PRICE, "result": {"close": 512.5}})).to_task_row("demo").task
    assert told.outputs == ("512.5",)
    long = read_spec(spec({**PRICE, "result": {"close": 512.5, "open": 500}})).to_task_row("demo")
    assert [error.kind for error in match_calls("demo", [Item("s:1", long)]).refused] == ["only reads"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${step1}", {"data": [{"price": 5, "by": {"x-y": None}}], "0": "zero"}),
        ("${step1.data[0].price}", 5),
        ("${step1.data.0.price}", 5),
        ("${step1.data.price}", 5),
        ("a ${step1.data.0.price} b ${step2.x}", 'a 5 b ["€"]'),
        ("${step1.data[0].by.x-y}", None),
        ("${step1.0}", "zero"),
        ("no reference {step1} $step1", "no reference {step1} $step1"),
    ],
)
def test_references_are_looked_up(text: str, value: Any) -> None:
    results = [{"data": [{"price": 5, "by": {"x-y": None}}], "0": "zero"}, '{"x": ["€"]}']
    assert resolve_references({"a": [text]}, results) == {"a": [value]}


@pytest.mark.parametrize(
    "text",
    [
        "${step1.data.price * 2}",
        "${().__class__}",
        "${step1.__class__.__mro__}",
        "${step1.data[5]}",
        "${step1.data[-1]}",
        "${step1.nothing}",
        "${step2.x}",
        "${step0}",
        "${first(step1)}",
    ],
)
def test_reference_that_is_no_path_in_an_earlier_result_is_an_error(text: str) -> None:
    assert list(find_references([text])) == [text]
    with pytest.raises(ValueError, match=r"\$\{"):
        resolve_references(text, [{"data": [1, 2], "__doc__": "x"}])


@pytest.mark.parametrize(
    ("value", "field", "named"),
    [
        (spec(turns=0), "turns", ""),
        (spec(extra=1), "extra", ""),
        (spec(task={"task_id": ""}), "task_id", ""),
        (spec(task={"solution": {}}), "solution.tool_sequence", ""),
        (spec(task={"solution": {"tool_sequence": []}}), "solution.tool_sequence", ""),
        (spec(task={"conversation": []}), "conversation", "user"),
        (spec(task={"conversation": [{"role": "user"}]}), "conversation", "user"),
        (spec(SEND), "solution.tool_sequence", "2"),
        (spec({**SEND, "step": 1}), "", "${step1.close}"),
        (spec({**PRICE, "params": {"x": "${().__class__}"}}), "", "${().__class__}"),
        (spec({**PRICE, "tool": ""}), "steps.0.tool", ""),
    ],
)
def test_wrong_part_of_a_spec_is_named(value: dict[str, Any], field: str, named: str) -> None:
    (error,) = read_sequences(Item("s:1", value), "s/1")
    assert isinstance(error, RowError)
    assert (error.location.startswith("s:1"), error.field) == (True, field)
    assert named in error.problem


def test_valid_tasks_of_a_spec_are_read_beside_invalid_ones() -> None:
    one = spec()["tasks"][0]
    value = spec(tasks=[one, {**one, "solution": 1}, {**one, "task_id": "c"}])
    first, second, third = read_sequences(Item("s:1", value), "s/1")
    assert (isinstance(first, Item), isinstance(third, Item)) == (True, True)
    assert (isinstance(second, RowError) and second.location) == "s:1.tasks[1]"


def test_list_place_in_a_made_up_result_is_bounded() -> None:
    steps = [PRICE, {**SEND, "params": {"text": "${step1.rows[999].x} ${step1.ids.123456}"}}]
    task = read_spec(spec(*steps)).to_task_row("demo").task
    result = next(json.loads(message.content) for message in task.gold if message.role == "tool")
    assert (len(result["rows"]), list(result["ids"])) == (1000, ["123456"])


@pytest.mark.parametrize("form", ["task", "skyrl"])
def test_limits_survive_the_conversion_to_a_file_of_tasks(form: str, tmp_path: Path) -> None:
    """The converted task is played with the row's limits: 4 turns of calls and one for the answer, 5 tools."""
    found = read_row(row()).to_task_row("demo-calls")
    written: Record = found.task
    if form == "skyrl":
        written = to_skyrl_row(found.task, "You research.", "demo-calls")
    (tmp_path / "converted.jsonl").write_text(written.model_dump_json(exclude_defaults=True) + "\n")
    source = load_source(str(tmp_path / "converted.jsonl"))
    (task,) = source.tasks("test")
    assert task.limits == TaskLimits(max_turns=5, max_tools=5)
    replies = [
        Message(role="assistant", tool_calls=(ToolCall(name="finance.get_price", arguments={"ticker": "SPY"}),))
    ] * 9
    episode = asyncio.run(rollout(task, source.environment(task), FixedReplies(*replies), EpisodeLimits()))
    assert (episode.num_turns, episode.reward) == (5, 0.0)


def test_task_without_limits_keeps_its_fingerprint() -> None:
    task = read_row(row(max_turns=None, limits={})).to_task_row().task
    assert task.limits is None
    assert "limits" not in task.model_dump()
