"""Dependent specs: one compact sample of each task, and what is wrong by its place."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_kit import call
from understudy.data.items import Item
from understudy.data.specs import Call, Limits, Sample, samples


def step(number: int | None = 1, **changes: Any) -> dict[str, Any]:
    return {"step": number, "server": "finance", "tool": "get_price", "params": {"ticker": "SPY"}, **changes}


SEND = step(2, server="slack", tool="send", params={"to": ["@me"], "text": {"close": "it is ${step1.close} now"}})


def task(**changes: Any) -> dict[str, Any]:
    said = [{"role": "user", "message": "Get SPY."}, {"role": "assistant", "content": "Where to?"}]
    said.append({"role": "user", "content": "Me."})
    whole = {
        "task_id": "a",
        "complexity": "simple",
        "conversation": said,
        "solution": {"tool_sequence": [step(), SEND]},
    }
    return {**whole, **changes}


def spec(*tasks: Any, **changes: Any) -> dict[str, Any]:
    return {
        "scenario": "demo",
        "turns": 4,
        "limits": {"max_tools": 5, "max_servers": 2},
        "tasks": list(tasks),
        **changes,
    }


def sequence(*steps: Any) -> dict[str, Any]:
    return task(solution={"tool_sequence": list(steps)})


def write(path: Path, *specs: Any) -> Path:
    path.write_text(json.dumps({"dependent_dataset": specs}))
    return path


def test_a_task_becomes_a_compact_sample(tmp_path: Path) -> None:
    path = write(tmp_path / "s.json", spec(task(), task(task_id="b")), spec(task(task_id="c", complexity=2), limits={}))
    code, text, _ = call("synthesize", "--from-specs", path, "--out", tmp_path / "out.jsonl")
    assert (code, text) == (0, f"{tmp_path / 'out.jsonl'}: 3\n")
    first, second, third = map(Sample.model_validate_json, (tmp_path / "out.jsonl").read_text().splitlines())
    assert first == Sample(
        id="a",
        scenario="demo",
        complexity="simple",
        opening="Get SPY.",
        later=("Me.",),
        max_turns=4,
        limits=Limits(max_tools=5, max_servers=2),
        calls=(
            Call(tool="finance.get_price", arguments={"ticker": "SPY"}),
            Call(tool="slack.send", arguments=SEND["params"], needs=(1,)),
        ),
    )
    assert second == first.replace(id="b")
    assert (third.id, third.complexity, third.limits) == ("c", "2", Limits())


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (spec(task(), turns=0), "[0]: turns: Input should be greater than or equal to 1"),
        (spec(task(), extra=1), "[0]: extra: Extra inputs are not permitted"),
        ({"tasks": []}, "[0]: scenario: Field required"),
        (spec("x"), "[0]: tasks.0: Input should be a valid dictionary"),
        (spec(task(), task(task_id="")), "[0].tasks[1]: task_id: String should have at least 1"),
        (spec(task(solution={})), "[0].tasks[0]: solution.tool_sequence: Field required"),
        (spec(sequence()), "[0].tasks[0]: solution.tool_sequence: Tuple should have at least 1 item"),
        (spec(task(conversation=[])), "[0].tasks[0]: conversation: the user says nothing"),
        (spec(task(conversation=[{"role": "user"}])), "[0].tasks[0]: conversation.0.message: Field required"),
        (spec(sequence(step(2))), "[0].tasks[0]: solution.tool_sequence.0: step 2 stands in place 1"),
        (spec(sequence(SEND | {"step": 1})), "solution.tool_sequence.0: ${step1.close} names no earlier step"),
        (spec(sequence(step(params={"x": "${().__class__}"}))), "sequence.0: ${().__class__} names no earlier step"),
        (
            spec(sequence(*(step(n) for n in range(1, 7)))),
            "solution.tool_sequence: it uses 6, where limits.max_tools is 5",
        ),
        (spec(task(), limits={"max_servers": 1}), "solution.tool_sequence: it uses 2, where limits.max_servers is 1"),
        (spec(task(), task()), "[0].tasks[1]: task_id: 'a' is also the id of an earlier task"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, value: Any, problem: str) -> None:
    path = write(tmp_path / "s.json", value)
    code, out, err = call("synthesize", "--from-specs", path, "--out", tmp_path / "out.jsonl")
    assert (code, out) == (2, "")
    assert err.startswith(f"understudy: {path}: dependent_dataset[0]")
    assert problem in err
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]


def test_good_tasks_survive_beside_bad_ones() -> None:
    found = list(samples(iter([Item("here", spec(task(), task(task_id="b", solution=1), task(task_id="c")))])))
    assert [item.value.id if isinstance(item, Item) else str(item) for item in found] == [
        "a",
        "here.tasks[1]: solution: Input should be a valid dictionary or instance of Solution",
        "c",
    ]


def test_no_tasks(tmp_path: Path) -> None:
    path = write(tmp_path / "s.json")
    assert "holds no tasks" in call("synthesize", "--from-specs", path, "--out", tmp_path / "o.jsonl")[2]
