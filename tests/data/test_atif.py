"""Test trajectories in ATIF: written for Harbor's own records, and read back."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.data_kit import run_data_command
from support.software import harbor_packages
from understudy.core.items import Item, RowError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.data.conversations.atif import ATIF_FILE, ATIFTarget
from understudy.data.conversations.conversations import read_conversations
from understudy.data.conversations.examples import Demonstration, LabeledExample

TOOLS = (ToolSpec(name="find", description="Find.", parameters={"type": "object", "properties": {}}),)
CALLS = tuple(ToolCall(id=f"c{number}", name="find", arguments={"n": number}) for number in (1, 2))
MESSAGES = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="Find both."),
    Message(role="assistant", reasoning_content="Two calls.", tool_calls=CALLS),
    Message(role="tool", content="one", tool_call_id="c1"),
    Message(role="tool", content="two", tool_call_id="c2"),
    Message(role="assistant", content="Found."),
)


def to_row(example: Demonstration | LabeledExample) -> dict[str, Any]:
    ((name, row),) = ATIFTarget().rows(example)
    assert name == ATIF_FILE
    return row.model_dump(mode="json")


def read(path: Path, *rows: Any) -> list[Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [item.value if isinstance(item, Item) else item for item in read_conversations(path)]


def test_results_are_in_the_step_of_their_calls(tmp_path: Path) -> None:
    row = to_row(Demonstration(task="t", messages=MESSAGES, tools=TOOLS))
    assert (row["schema_version"], [step["source"] for step in row["steps"]]) == (
        "ATIF-v1.7",
        ["system", "user", "agent", "agent"],
    )
    assert [step["step_id"] for step in row["steps"]] == [1, 2, 3, 4]
    assert row["steps"][2]["observation"]["results"] == [
        {"source_call_id": "c1", "content": "one"},
        {"source_call_id": "c2", "content": "two"},
    ]
    assert row["agent"]["tool_definitions"][0]["function"]["name"] == "find"


@pytest.mark.parametrize("label", [True, False])
def test_labels_survive(label: bool, tmp_path: Path) -> None:
    example = LabeledExample(task="t", messages=MESSAGES, tools=TOOLS, label=label)
    assert read(tmp_path / "rows.jsonl", to_row(example)) == [example]


@pytest.mark.parametrize(
    ("step", "named"),
    [
        ({"source": "robot"}, "source"),
        ({"message": [{"type": "image", "source": {"path": "x.png"}}]}, "images"),
        ({"observation": {"results": [{"subagent_trajectory_ref": [{}]}]}}, "other agents"),
        ({"observation": [{"content": "x"}]}, "observation"),
        ({"source": "agent", "tool_calls": [{"function_name": "f", "arguments": {}}]}, "tool_call_id"),
        ({"source": "agent", "tool_calls": ["f"]}, "tool_calls"),
    ],
)
def test_what_a_conversation_cannot_hold_is_refused(step: dict[str, Any], named: str, tmp_path: Path) -> None:
    row = to_row(Demonstration(messages=MESSAGES, tools=TOOLS))
    row["steps"][3] |= step
    (error,) = read(tmp_path / "rows.jsonl", row)
    assert isinstance(error, RowError)
    assert named in str(error)


@pytest.mark.environments
def test_harbor_reads_what_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(harbor_packages())
    from harbor.models.trajectories import Trajectory  # type: ignore[import-not-found]

    demos, out = tmp_path / "demos.jsonl", tmp_path / "out"
    code, _, _ = run_data_command("collect", "toy:DOMAIN", "--agent", "gold", "--tasks", 3, "--sft", demos)
    assert code == 0
    code, _, _ = run_data_command("export", "atif", demos, "--out", out)
    assert code == 0
    rows = [json.loads(line) for line in (out / ATIF_FILE).read_text().splitlines()]
    assert len(rows) == 3
    again = [Trajectory.model_validate(row).to_json_dict() for row in rows]
    original = [item.value for item in read_conversations(demos) if isinstance(item, Item)]
    assert [each.messages for each in read(tmp_path / "again.jsonl", *again)] == [each.messages for each in original]
