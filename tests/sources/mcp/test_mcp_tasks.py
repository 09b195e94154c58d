"""Tests of reading MCP tasks from lines of JSON and from rows of SkyRL."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT
from understudy.core.errors import TaskError
from understudy.core.messages import ToolSpec
from understudy.core.tasks import split_from_id
from understudy.sources.mcp.catalog import ToolCatalog
from understudy.sources.mcp.checks import CallPattern
from understudy.sources.mcp.config import MCPServerConfig
from understudy.sources.mcp.source import resolve_task_aliases
from understudy.sources.mcp.tasks import MCPTask, read_mcp_tasks
from understudy.sources.mcp.tool_result import ToolResult

ROW: dict[str, Any] = {
    "data_source": "synthetic/llm",
    "env_class": "MCPToolEnv",
    "prompt": [
        {"role": "system", "content": "You are a research assistant."},
        {"role": "user", "content": "What is Apple worth, and is there news?"},
    ],
    "reward_spec": {
        "method": "rule",
        "ground_truth": {
            "task_id": "equities_1",
            "complexity": "simple",
            "max_turns": 3,
            "success": {"must_call_tool": "fmp.fmp_get_quote"},
            "tool_sequence": [
                {"step": 2, "server": "polygon", "tool": "polygon_get_news", "params": {"ticker": "AAPL", "limit": 5}},
                {"step": 1, "server": "fmp", "tool": "fmp_get_quote", "params": {"symbol": "AAPL"}},
            ],
            "limits": {"max_tools": 3, "max_servers": 2},
            "judge_rubric": {"weights": {"coverage": 0.4}},
        },
    },
    "extra_info": {"task_metadata": {"any": "thing"}},
}


def write_rows(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def test_skyrl_row_is_read_as_task(tmp_path: Path) -> None:
    (task,) = read_mcp_tasks(write_rows(tmp_path / "rows.jsonl", ROW))
    assert (task.id, task.difficulty, task.family) == ("equities_1", "easy", "synthetic/llm")
    assert task.domain_policy == "You are a research assistant."
    assert [call.tool for call in task.gold] == ["fmp.fmp_get_quote", "polygon.polygon_get_news"]
    assert task.check.calls is not None
    assert task.check.calls.ordered
    assert task.check.calls.required[1] == CallPattern(
        tool="polygon.polygon_get_news", arguments={"ticker": "AAPL", "limit": 5}
    )
    assert len(task.check.calls.required) == 2
    assert (task.max_turns, task.limits.max_tools, task.limits.max_servers) == (4, 3, 2)
    gold = task.to_task("market", "train", {"fmp.fmp_get_quote": "fmp_get_quote"}).gold
    assert gold[0].tool_calls[0].name == "fmp_get_quote"
    assert gold[-1].content == "Done."


def test_must_call_tool_is_added_to_required_calls(tmp_path: Path) -> None:
    row = json.loads(json.dumps(ROW))
    row["reward_spec"]["ground_truth"]["success"]["must_call_tool"] = "tavily_search"
    (task,) = read_mcp_tasks(write_rows(tmp_path / "rows.jsonl", row))
    assert task.check.calls is not None
    assert [must.tool for must in task.check.calls.required][-1] == "tavily_search"


def test_must_call_tool_may_be_a_server(tmp_path: Path) -> None:
    row = json.loads(json.dumps(ROW))
    row["reward_spec"]["ground_truth"]["success"]["must_call_tool"] = ["fmp", "tavily", "other"]
    (task,) = read_mcp_tasks(write_rows(tmp_path / "rows.jsonl", row), ("fmp", "tavily"))
    assert task.check.calls is not None
    assert [must.tool for must in task.check.calls.required][2:] == ["tavily.*", "other"]


def test_dependent_specs_and_columns_of_json_text_are_read(tmp_path: Path) -> None:
    text = {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in ROW.items()}
    assert read_mcp_tasks(write_rows(tmp_path / "a.jsonl", text)) == read_mcp_tasks(
        write_rows(tmp_path / "b.jsonl", ROW)
    )
    steps = [
        {"server": "fmp", "tool": "get_quote", "params": {"symbol": "AAPL"}},
        {"server": "slack", "tool": "send", "params": {"text": "${step1.price}"}},
    ]
    told = [{"role": "user", "message": "Tell me Apple's price."}]
    spec = {"task_id": "a", "complexity": "simple", "conversation": told, "solution": {"tool_sequence": steps}}
    path = tmp_path / "specs.json"
    path.write_text(json.dumps({"dependent_dataset": [{"scenario": "demo", "turns": 3, "tasks": [spec]}]}))
    (task,) = read_mcp_tasks(path)
    assert (task.id, task.prompt, task.family, task.max_turns) == ("a", "Tell me Apple's price.", "demo", 4)
    assert task.has_references
    made = task.gold[0], task.gold[1].replace(arguments={"text": 5})
    resolved = task.with_results([(call, ToolResult(text="5")) for call in made])
    assert not resolved.has_references
    assert resolved.check.calls is not None
    assert [must.arguments for must in resolved.check.calls.required] == [{"symbol": "AAPL"}, {"text": 5}]


QUOTE = {"price": 41.25, "symbol": "AAPL", "change": 0.34613, "names": ["a"], "volume": None}


def quote_task(*outputs: str, **changes: Any) -> MCPTask:
    gold = [{"tool": "get_quote", "arguments": {"symbol": "AAPL"}}]
    return MCPTask.model_validate({"id": "a", "prompt": "x", "gold": gold, "outputs": outputs, **changes})


def test_outputs_become_the_values_of_results() -> None:
    task = quote_task("${step1.price}", "${round(step1.change, 1)}", "${step1.change}", "${step1.symbol}", "fine")
    assert task.has_references
    told = task.with_results([(task.gold[0], ToolResult(text=json.dumps({**QUOTE, "note": "fine"})))])
    assert told.outputs == ("41.25", "0.34613|0.35", "fine")
    assert (told.final_answer, told.has_references) == ("41.25; 0.34613; fine", False)
    kept = quote_task("${step1.price}", final_answer="It costs 41.25.")
    assert kept.with_results([(kept.gold[0], ToolResult(text=json.dumps(QUOTE)))]).final_answer == "It costs 41.25."


@pytest.mark.parametrize("output", ["names", "volume", "nothing", "symbol"])
def test_output_without_a_fact_is_an_error(output: str) -> None:
    task = quote_task(f"${{step1.{output}}}")
    with pytest.raises(TaskError, match=rf"step1\.{output}"):
        task.with_results([(task.gold[0], ToolResult(text=json.dumps(QUOTE)))])


def test_facts_of_the_answer_are_outputs(tmp_path: Path) -> None:
    row = json.loads(json.dumps(ROW))
    truth = row["reward_spec"]["ground_truth"]
    truth["tool_sequence"][0]["analysis_requirements"] = {
        "extract": ["cost = data[][price]"],
        "compute": ["top = first(cost)"],
    }
    truth["analysis_rubric"] = {"final_answer_requirements": {"must_include": ["top"]}}
    (task,) = read_mcp_tasks(write_rows(tmp_path / "rows.jsonl", row))
    assert task.outputs == ("${first(step2.data[][price])}",)


def test_arguments_of_gold_and_patterns_are_renamed() -> None:
    script = {"script": "rm"}
    forbidden = [{"tool": "run", "argument_patterns": script}, {"tool": "*", "arguments": script}]
    calls = {"required": [{"tool": "run", "arguments": script}], "forbidden": forbidden}
    task = quote_task("41.25", gold=[{"tool": "run", "arguments": script}], check={"calls": calls})
    schema = {"type": "object", "properties": {"code": {}}}
    spec = ToolSpec(name="run", description="", parameters=schema, aliases={"script": "code"})
    renamed = resolve_task_aliases(task, ToolCatalog({"sh": [spec]}, {"sh": MCPServerConfig(command=("sh",))}))
    check = renamed.check.calls
    assert check is not None
    assert (renamed.gold[0].arguments, check.required[0].arguments) == ({"code": "rm"}, {"code": "rm"})
    assert [each.argument_patterns or each.arguments for each in check.forbidden] == [{"code": "rm"}, script]
    assert check.allowed is None


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"tool_sequence": [{"step": 1, "server": "s", "tool": "t", "params": {"x": ["${step1.close}"]}}]},
            "step1",
        ),
        ({"tool_sequence": [{"step": 1, "tool": "t", "params": {"x": "${x * 2}"}}]}, r"\$\{x \* 2\}"),
        ({"tool_sequence": [{"step": 2, "tool": "t"}]}, "tool_sequence"),
        ({"limits": {"max_tools": 0}}, "max_tools"),
        ({"tool_sequence": [], "success": {}}, r"rows\.jsonl:1: "),
    ],
)
def test_unplayable_row_is_rejected(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    row = json.loads(json.dumps(ROW))
    row["reward_spec"]["ground_truth"].update(change)
    with pytest.raises(TaskError, match=match):
        read_mcp_tasks(write_rows(tmp_path / "rows.jsonl", row))


def test_invalid_line_and_duplicate_id_are_named(tmp_path: Path) -> None:
    good = {"id": "a", "prompt": "x", "check": {"answer": {"number": 1}}}
    with pytest.raises(TaskError, match=r"tasks\.jsonl:2: prompt: .*missing"):
        read_mcp_tasks(write_rows(tmp_path / "tasks.jsonl", good, {"id": "b", "check": good["check"]}))
    with pytest.raises(TaskError, match="'a'"):
        read_mcp_tasks(write_rows(tmp_path / "tasks.jsonl", good, good))


def test_default_max_turns_depends_on_difficulty() -> None:
    def turns(**values: Any) -> int:
        return MCPTask.model_validate(
            {"id": "a", "prompt": "x", "check": {"answer": {"number": 1}}, **values}
        ).max_turns

    assert [turns(difficulty=d) for d in ("easy", "medium", "hard")] == [5, 8, 10]
    assert turns(limits={"max_turns": 2}) == 2


def test_split_shares_follow_from_ids() -> None:
    splits = [split_from_id(f"task/{n}") for n in range(2000)]
    assert splits.count("train") == pytest.approx(1400, abs=100)
    assert splits.count("validation") == pytest.approx(200, abs=60)


def test_rows_of_the_example_environments_are_those_of_their_generator() -> None:
    """`make test-mcp` plays some of them."""
    generator = runpy.run_path(str(ROOT / "examples" / "mcp" / "generate.py"))
    for name in generator["MAKERS"]:
        text = (ROOT / "examples" / "mcp" / f"{name}.jsonl").read_text(encoding="utf-8")
        assert [json.loads(line) for line in text.splitlines()] == generator["tasks"](name)
