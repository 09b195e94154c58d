"""Test `data synthesize --from-specs`: each task of a spec becomes one sample, and errors name their location."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.data_kit import run_data_command
from understudy.core.items import Item
from understudy.data.synthesis.specs import CallSequenceSample, SampleCall, SpecLimits, build_samples


def make_step(number: int | None = 1, **changes: Any) -> dict[str, Any]:
    return {"step": number, "server": "finance", "tool": "get_price", "params": {"ticker": "SPY"}, **changes}


SEND = make_step(2, server="slack", tool="send", params={"to": ["@me"], "text": {"close": "it is ${step1.close} now"}})


def make_task(**changes: Any) -> dict[str, Any]:
    dialogue = [{"role": "user", "message": "Get SPY."}, {"role": "assistant", "content": "Where to?"}]
    dialogue.append({"role": "user", "content": "Me."})
    defaults = {
        "task_id": "a",
        "complexity": "simple",
        "conversation": dialogue,
        "solution": {"tool_sequence": [make_step(), SEND]},
    }
    return {**defaults, **changes}


def make_spec(*tasks: Any, **changes: Any) -> dict[str, Any]:
    return {
        "scenario": "demo",
        "turns": 4,
        "limits": {"max_tools": 5, "max_servers": 2},
        "tasks": list(tasks),
        **changes,
    }


def task_with_steps(*steps: Any) -> dict[str, Any]:
    return make_task(solution={"tool_sequence": list(steps)})


def write_specs(path: Path, *specs: Any) -> Path:
    path.write_text(json.dumps({"dependent_dataset": specs}))
    return path


def test_spec_task_becomes_one_sample(tmp_path: Path) -> None:
    path = write_specs(
        tmp_path / "s.json",
        make_spec(make_task(), make_task(task_id="b")),
        make_spec(make_task(task_id="c", complexity=2), limits={}),
    )
    code, text, _ = run_data_command("synthesize", "--from-specs", path, "--out", tmp_path / "out.jsonl")
    assert (code, text) == (0, f"{tmp_path / 'out.jsonl'}: 3\n")
    first, second, third = map(
        CallSequenceSample.model_validate_json, (tmp_path / "out.jsonl").read_text().splitlines()
    )
    assert first == CallSequenceSample(
        id="a",
        scenario="demo",
        complexity="simple",
        first_message="Get SPY.",
        later_messages=("Me.",),
        max_turns=4,
        limits=SpecLimits(max_tools=5, max_servers=2),
        calls=(
            SampleCall(tool="finance.get_price", arguments={"ticker": "SPY"}),
            SampleCall(tool="slack.send", arguments=SEND["params"], depends_on=(1,)),
        ),
    )
    assert second == first.replace(id="b")
    assert (third.id, third.complexity, third.limits) == ("c", "2", SpecLimits())


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (make_spec(make_task(), turns=0), "[0]: turns: "),
        (make_spec(make_task(), extra=1), "[0]: extra: "),
        ({"tasks": []}, "[0]: scenario: "),
        (make_spec("x"), "[0]: tasks.0: "),
        (make_spec(make_task(), make_task(task_id="")), "[0].tasks[1]: task_id: "),
        (make_spec(make_task(solution={})), "[0].tasks[0]: solution.tool_sequence: "),
        (make_spec(task_with_steps()), "[0].tasks[0]: solution.tool_sequence: "),
        (make_spec(make_task(conversation=[])), "[0].tasks[0]: conversation: "),
        (make_spec(make_task(conversation=[{"role": "user"}])), "[0].tasks[0]: conversation.0.message: "),
        (make_spec(task_with_steps(make_step(2))), "[0].tasks[0]: solution.tool_sequence.0: "),
        (make_spec(task_with_steps(SEND | {"step": 1})), "solution.tool_sequence.0: ${step1.close} "),
        (make_spec(task_with_steps(make_step(params={"x": "${().__class__}"}))), "sequence.0: ${().__class__} "),
        (
            make_spec(task_with_steps(*(make_step(n) for n in range(1, 7)))),
            "limits.max_tools",
        ),
        (make_spec(make_task(), limits={"max_servers": 1}), "limits.max_servers"),
        (make_spec(make_task(), make_task()), "[0].tasks[1]: task_id: 'a' "),
    ],
)
def test_invalid_spec_error_names_its_location(tmp_path: Path, value: Any, problem: str) -> None:
    path = write_specs(tmp_path / "s.json", value)
    code, out, err = run_data_command("synthesize", "--from-specs", path, "--out", tmp_path / "out.jsonl")
    assert (code, out) == (2, "")
    assert err.startswith(f"understudy: {path}: dependent_dataset[0]")
    assert problem in err
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]


def test_valid_tasks_are_built_beside_invalid_ones() -> None:
    found = list(
        build_samples(
            iter([Item("here", make_spec(make_task(), make_task(task_id="b", solution=1), make_task(task_id="c")))])
        )
    )
    first, second, third = (item.value.id if isinstance(item, Item) else str(item) for item in found)
    assert (first, third) == ("a", "c")
    assert second.startswith("here.tasks[1]: solution: ")


def test_spec_file_without_tasks_is_rejected(tmp_path: Path) -> None:
    path = write_specs(tmp_path / "s.json")
    code, _, err = run_data_command("synthesize", "--from-specs", path, "--out", tmp_path / "o.jsonl")
    assert (code, err.count("\n"), str(path) in err) == (2, 1, True)
