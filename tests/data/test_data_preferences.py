"""Test reading demonstrations, preference pairs and labeled examples, and the errors for invalid rows."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from understudy.core.errors import ConfigError
from understudy.core.items import Item, RowError
from understudy.core.messages import Message, ToolCall, ToolSpec, message_to_openai, tool_to_openai
from understudy.data.conversations.conversations import read_examples
from understudy.data.conversations.examples import Demonstration, LabeledExample, PreferencePair

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
PAIR = PreferencePair(task="t", chosen=EPISODE, rejected=WORSE, tools=(SWITCH,))


def write_rows(folder: Path, *values: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(v if isinstance(v, str) else json.dumps(v) + "\n" for v in values), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "row",
    [
        Demonstration(messages=EPISODE, tools=(SWITCH,)),
        PAIR,
        LabeledExample(task="t", messages=WORSE, tools=(SWITCH,), label=False),
    ],
)
def test_row_reads_back_equal(tmp_path: Path, row: Demonstration | PreferencePair | LabeledExample) -> None:
    path = write_rows(tmp_path, row.model_dump_json(exclude_defaults=True) + "\n")
    assert list(read_examples(path, type(row))) == [Item(f"{path}:1", row)]


def test_chat_completions_messages_and_tools_are_read(tmp_path: Path) -> None:
    row = {
        "messages": [message_to_openai(message) for message in EPISODE],
        "tools": [tool_to_openai(SWITCH)],
        "label": True,
    }
    row["messages"][2]["content"] = None
    (found,) = read_examples(write_rows(tmp_path, row), LabeledExample)
    assert found == Item(f"{tmp_path / 'rows.jsonl'}:1", LabeledExample(messages=EPISODE, tools=(SWITCH,), label=True))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rejected": EPISODE[1:]}, r"\bchosen\b.*\brejected\b"),
        ({"rejected": EPISODE}, r"\bchosen\b.*\brejected\b"),
        ({"rejected": EPISODE[:2]}, "^rejected: "),
        ({"chosen": EPISODE[2:]}, r"^chosen: .*\b0\b"),
        ({"chosen": (*EPISODE, EPISODE[4])}, r"^chosen: .*\b5\b"),
    ],
)
def test_invalid_pair_gives_an_error_and_reading_continues(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    row = json.loads(PAIR.model_dump_json()) | json.loads(
        json.dumps({k: [m.model_dump() for m in v] for k, v in changes.items()})
    )
    path = write_rows(tmp_path, row, PAIR.model_dump(mode="json"))
    bad, good = read_examples(path, PreferencePair)
    assert isinstance(bad, RowError)
    assert str(bad).startswith(f"{path}:1: ")
    assert re.search(why, str(bad).removeprefix(f"{path}:1: "))
    assert good == Item(f"{path}:2", PAIR), "and the rest is read"


def test_missing_file_and_invalid_json_are_errors(tmp_path: Path) -> None:
    (bad,) = read_examples(write_rows(tmp_path, '{"messages"\n'), Demonstration)
    assert isinstance(bad, RowError)
    assert ":1: " in str(bad)
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        list(read_examples(tmp_path / "none.jsonl", Demonstration))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"content": "x"}, "role"),
        ({"role": "assistant", "content": [{"type": "text"}]}, "content"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "tool_calls"),
        ({"role": "assistant", "mood": "y"}, "mood"),
        ("x", "object"),
    ],
)
def test_message_of_unknown_format_gives_an_error(tmp_path: Path, message: Any, why: str) -> None:
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, message]}
    (bad,) = read_examples(write_rows(tmp_path, row), Demonstration)
    assert isinstance(bad, RowError)
    assert "messages.2" in str(bad)
    assert why in str(bad)
