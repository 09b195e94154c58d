"""Rows of conversations: read as we write them and as the chat completions API does, and refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from understudy.data.items import Bad, Item
from understudy.data.preferences import Demonstration, Judged, Preference, rows
from understudy.errors import ConfigError
from understudy.messages import Message, ToolCall, ToolSpec, spec_to_wire, to_wire

SWITCH = ToolSpec(name="switch_lamp", description="Switch a lamp.", parameters={"type": "object", "properties": {}})
OPENING = Message(role="user", content="Switch lamp L7 on.")
CALL = ToolCall(name="switch_lamp", arguments={"lamp": "L7"}, id="c1")
EPISODE = (
    Message(role="system", content="Be brief."),
    OPENING,
    Message(role="assistant", tool_calls=(CALL,)),
    Message(role="tool", content="on", tool_call_id="c1"),
    Message(role="assistant", content="It is on."),
)
WORSE = (*EPISODE[:2], Message(role="assistant", content="No."))
PAIR = Preference(task="t", chosen=EPISODE, rejected=WORSE, tools=(SWITCH,))


def lines(folder: Path, *values: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(v if isinstance(v, str) else json.dumps(v) + "\n" for v in values), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "row",
    [
        Demonstration(messages=EPISODE, tools=(SWITCH,)),
        PAIR,
        Judged(task="t", messages=WORSE, tools=(SWITCH,), wanted=False),
    ],
)
def test_a_row_is_read_as_it_was_written(tmp_path: Path, row: Demonstration | Preference | Judged) -> None:
    path = lines(tmp_path, row.model_dump_json(exclude_defaults=True) + "\n")
    assert list(rows(path, type(row))) == [Item(f"{path}:1", row)]


def test_messages_and_tools_of_the_chat_completions_api_are_read(tmp_path: Path) -> None:
    row = {"messages": [to_wire(message) for message in EPISODE], "tools": [spec_to_wire(SWITCH)], "wanted": True}
    row["messages"][2]["content"] = None
    (found,) = rows(lines(tmp_path, row), Judged)
    assert found == Item(f"{tmp_path / 'rows.jsonl'}:1", Judged(messages=EPISODE, tools=(SWITCH,), wanted=True))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rejected": EPISODE[1:]}, "chosen and rejected begin otherwise"),
        ({"rejected": EPISODE}, "chosen and rejected are the same"),
        ({"rejected": EPISODE[:2]}, "rejected: Value error, no message is the assistant's"),
        ({"chosen": EPISODE[2:]}, "chosen: Value error, message 0 is the assistant's, and no message stands before it"),
        ({"chosen": (*EPISODE, EPISODE[4])}, "chosen: Value error, message 5 is the assistant's"),
        ({"better": EPISODE}, "better: Extra inputs are not permitted"),
    ],
)
def test_a_pair_that_compares_nothing_is_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    row = json.loads(PAIR.model_dump_json()) | json.loads(
        json.dumps({k: [m.model_dump() for m in v] for k, v in changes.items()})
    )
    path = lines(tmp_path, row, PAIR.model_dump(mode="json"))
    bad, good = rows(path, Preference)
    assert isinstance(bad, Bad)
    assert str(bad).startswith(f"{path}:1: ")
    assert why in str(bad)
    assert good == Item(f"{path}:2", PAIR), "and the rest is read"


def test_a_file_that_is_not_there_or_a_line_that_is_no_json(tmp_path: Path) -> None:
    (bad,) = rows(lines(tmp_path, '{"messages"\n'), Demonstration)
    assert isinstance(bad, Bad)
    assert "not JSON" in str(bad)
    with pytest.raises(ConfigError, match="there is no file"):
        list(rows(tmp_path / "none.jsonl", Demonstration))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"content": "x"}, "role"),
        ({"role": "assistant", "content": [{"type": "text"}]}, "content"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "tool_calls"),
        ({"role": "assistant", "content": "x", "reasoning": "y"}, "reasoning"),
        ("x", "Message"),
    ],
)
def test_a_message_of_neither_form_is_refused(tmp_path: Path, message: Any, why: str) -> None:
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, message]}
    (bad,) = rows(lines(tmp_path, row), Demonstration)
    assert isinstance(bad, Bad)
    assert "messages.2" in str(bad)
    assert why in str(bad)
