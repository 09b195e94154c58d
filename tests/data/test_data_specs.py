"""Test `data synthesize --from-specs`: specs become rows that are proved, on MCP servers and without servers."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.data_kit import run_data_command
from support.mcp_environment import write_environment
from support.mcp_kit import running_servers
from understudy.core.items import Item
from understudy.data.checks.check import check
from understudy.envs.task_source import Slice
from understudy.sources.loading import load_source
from understudy.sources.task_files.call_matching import match_calls
from understudy.sources.task_files.call_sequences import CallSequence, read_sequences


def make_spec(*steps: dict[str, Any], task_id: str = "a", **changes: Any) -> dict[str, Any]:
    told = [{"role": "user", "message": f"I am {task_id}. Add three and say the count."}]
    numbered = [{"step": number, "server": "tally", **step} for number, step in enumerate(steps, 1)]
    task = {"task_id": task_id, "complexity": 1, "conversation": told, "solution": {"tool_sequence": numbered}}
    return {"scenario": "counting", "turns": 4, "tasks": [task], **changes}


ADD = {"tool": "add", "params": {"amount": 3}}
COUNT = {"tool": "count", "params": {}}
SAY = {"tool": "say", "params": {"text": "It is ${step2.count}."}}


def write_specs(path: Path, *specs: Any) -> Path:
    path.write_text(json.dumps({"dependent_dataset": specs}))
    return path


def read_rows_of(path: Path) -> list[CallSequence]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    items = [item for row in found for item in read_sequences(Item("r", row), "r/0")]
    return [item.value for item in items if isinstance(item, Item)]


def test_specs_without_servers_become_rows_that_are_proved(tmp_path: Path) -> None:
    only_reads = make_spec({"tool": "get_time", "params": {}, "result": "a very long time " * 9}, task_id="c")
    path = write_specs(
        tmp_path / "s.json", make_spec(ADD, COUNT, SAY), make_spec(ADD, ADD, SAY, task_id="b"), only_reads
    )
    out = tmp_path / "out.jsonl"
    code, text, err = run_data_command("synthesize", "--from-specs", path, "--out", out)
    assert (code, text) == (0, f"kept 2 of 3 tasks; refused: only reads 1\n{out}: 2\n")
    assert err.startswith(f"{path}: dependent_dataset[2].tasks[0]: gold: ")
    first, second = read_rows_of(out)
    assert (first.id, first.limits.max_turns, first.family, second.id) == ("a", 4, "counting", "b")
    made = match_calls("out", [Item(each.id, each.to_task_row("out")) for each in (first, second)])
    assert (made.refused, check(made).problems) == ((), ())


@pytest.mark.slow
def test_specs_on_servers_become_rows_with_the_values_of_the_servers(tmp_path: Path) -> None:
    environment = f"mcp:{write_environment(tmp_path)}"
    path = write_specs(
        tmp_path / "s.json",
        make_spec(ADD, COUNT, SAY),
        make_spec({"tool": "ad", "params": {}}, task_id="unknown"),
        make_spec({"tool": "fail", "params": {"reason": "closed"}}, task_id="fails"),
        make_spec(ADD, COUNT, {"tool": "say", "params": {"text": "${step2.total}"}}, task_id="no field"),
    )
    out = tmp_path / "out.jsonl"
    code, text, err = run_data_command("synthesize", environment, "--from-specs", path, "--out", out)
    assert (code, text) == (0, f"kept 1 of 4 tasks; refused: gold refused 3\n{out}: 1\n")
    assert ["'tally.ad'" in err, "closed" in err, "${step2.total}" in err] == [True, True, True]
    (row,) = read_rows_of(out)
    assert [step.params for step in row.steps] == [{"amount": 3}, {}, {"text": "It is 3."}]
    assert [step.result for step in row.steps] == ["the count is 3", '{\n  "count": 3\n}', "It is 3."]
    toml = Path(environment.removeprefix("mcp:"))
    toml.write_text(toml.read_text().replace("tasks.jsonl", "out.jsonl"))
    safe = Slice(tools=("add", "count", "say"))  # check kills the server with the tool "die"
    assert check(load_source(environment).slice(safe)).problems == ()
    assert not running_servers()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (make_spec(ADD, turns=0), "[0]: turns: "),
        (make_spec(ADD, extra=1), "[0]: extra: "),
        ({"tasks": []}, "[0]: scenario: "),
        (make_spec(ADD, task_id=""), "[0].tasks[0]: task_id: "),
        (make_spec({"tool": "say", "params": {"text": "${().__class__}"}}), "${().__class__}"),
        (make_spec(ADD, limits={"max_servers": 0}), "limits.max_servers"),
        (make_spec(*[ADD] * 5), "max_turns"),
        ([], "not an object"),
    ],
)
def test_invalid_spec_error_names_its_location(tmp_path: Path, value: Any, problem: str) -> None:
    path = write_specs(tmp_path / "s.json", value)
    code, out, err = run_data_command("synthesize", "--from-specs", path, "--out", tmp_path / "out.jsonl")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{path}: dependent_dataset[0]" in err
    assert problem in err
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]


def test_reference_that_a_recorded_result_lacks_is_refused(tmp_path: Path) -> None:
    wrong = make_spec(ADD, COUNT | {"result": {"total": 3}}, SAY, task_id="b")
    path = write_specs(tmp_path / "s.json", make_spec(ADD), wrong)
    code, out, err = run_data_command("synthesize", "--from-specs", path, "--out", tmp_path / "o.jsonl")
    assert (code, "${step2.count}" in err) == (0, True)
    assert out.startswith("kept 1 of 2 tasks; refused: malformed 1\n")


def test_repeated_id_is_refused(tmp_path: Path) -> None:
    path = write_specs(tmp_path / "s.json", make_spec(ADD), make_spec(ADD))
    _, out, _ = run_data_command("synthesize", "--from-specs", path, "--out", tmp_path / "o.jsonl")
    assert out.startswith("kept 1 of 2 tasks; refused: duplicate 1\n")


def test_spec_file_without_tasks_is_rejected(tmp_path: Path) -> None:
    path = write_specs(tmp_path / "s.json")
    code, _, err = run_data_command("synthesize", "--from-specs", path, "--out", tmp_path / "o.jsonl")
    assert (code, err.count("\n"), str(path) in err) == (2, 1, True)


@pytest.mark.parametrize("domains", [["retail"], ["mcp:a.toml", "mcp:b.toml"]])
def test_specs_are_played_by_one_mcp_environment(tmp_path: Path, domains: list[str]) -> None:
    path = write_specs(tmp_path / "s.json", make_spec(ADD))
    code, _, err = run_data_command("synthesize", *domains, "--from-specs", path, "--out", tmp_path / "o.jsonl")
    assert (code, err.count("\n"), "mcp:" in err) == (2, 1, True)
