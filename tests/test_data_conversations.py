"""Conversations out of files of other trainers, and what is refused in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_kit import call, write_lines
from understudy.data.conversations import conversations, demonstrations
from understudy.data.items import Bad, Item
from understudy.data.preferences import Demonstration, Judged, Preference
from understudy.messages import Message, ToolCall

SPEC = {"name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {}}}
WIRED = {"type": "function", "function": SPEC}
CALL = {"type": "function", "function": {"name": "find", "arguments": '{"x": 1}'}}
ASKED = [{"role": "system", "content": "policy"}, {"role": "user", "content": "hello"}]
CALLED = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "L7"}]
DONE = {"role": "assistant", "content": "Done."}
TOLD = (
    Message(role="system", content="policy"),
    Message(role="user", content="hello"),
    Message(role="assistant", tool_calls=(ToolCall(name="find", arguments={"x": 1}, id="call_0_0"),)),
    Message(role="tool", content="L7", tool_call_id="call_0_0"),
    Message(role="assistant", content="Done."),
)
SHAREGPT = [
    {"from": "human", "value": "hello"},
    {"from": "function_call", "value": '{"name": "find", "arguments": {"x": 1}}'},
    {"from": "observation", "value": "L7"},
    {"from": "gpt", "value": "Done."},
]


def called(arguments: str) -> dict[str, Any]:
    call = CALL | {"function": {"name": "find", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def read(path: Path, *rows: Any) -> list[Any]:
    return [item.value if isinstance(item, Item) else item for item in conversations(write_lines(path, rows))]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [*CALLED, DONE], "tools": [WIRED]},
        {"messages": [*CALLED, DONE | {"weight": 1}], "tools": json.dumps([WIRED]), "parallel_tool_calls": False},
        {"messages": [*CALLED[:3], CALLED[3] | {"name": "find", "tool_calls": None}, DONE], "tools": [SPEC], "id": 7},
        {"prompt": CALLED, "completion": [DONE], "tools": [WIRED | {"function": SPEC | {"strict": True}}]},
        {"conversations": SHAREGPT, "system": "policy", "tools": json.dumps([SPEC])},
        {"conversations": [{"from": "system", "value": "policy"}, *SHAREGPT], "tools": [WIRED]},
        {"prompt": "hello", "messages": [*CALLED, DONE], "tools": [WIRED], "chosen": None, "rejected": "No."},
        {"prompt": CALLED, "messages": [*CALLED, DONE], "tools": [WIRED]},
    ],
)
def test_forms_of_one_demonstration(tmp_path: Path, row: dict[str, Any]) -> None:
    (found,) = read(tmp_path / "rows.jsonl", row)
    assert found == Demonstration.model_validate({"messages": TOLD, "tools": [SPEC]})


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": CALLED, "chosen": [DONE], "rejected": [DONE | {"content": "No."}]},
        {"chosen": [*CALLED, DONE], "rejected": [*CALLED, DONE | {"content": "No."}]},
        {
            "prompt": "hello",
            "chosen": [*CALLED, DONE],
            "rejected": [*CALLED, DONE | {"content": "No."}],
            "messages": [*CALLED, DONE],
        },
        {
            "input": {"messages": CALLED},
            "preferred_output": [DONE],
            "non_preferred_output": [DONE | {"content": "No."}],
        },
        {
            "conversations": SHAREGPT[:-1],
            "system": "policy",
            "chosen": SHAREGPT[-1],
            "rejected": {"from": "gpt", "value": "No."},
        },
    ],
)
def test_forms_of_one_preference(tmp_path: Path, row: dict[str, Any]) -> None:
    (found,) = read(tmp_path / "rows.jsonl", row)
    assert found == Preference(chosen=TOLD, rejected=(*TOLD[:-1], Message(role="assistant", content="No.")))


@pytest.mark.parametrize("wanted", [True, False])
def test_forms_of_one_judgement(tmp_path: Path, wanted: bool) -> None:
    rows = (
        {"prompt": CALLED, "completion": [DONE], "label": wanted},
        {"conversations": SHAREGPT, "system": "policy", "kto_tag": wanted},
        {"messages": [*CALLED, DONE], "wanted": wanted},
    )
    assert read(tmp_path / "rows.jsonl", *rows) == [Judged(messages=TOLD, wanted=wanted)] * 3


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ([], "it is not an object"),
        ({"messages": "hello"}, "messages: a list of messages is needed"),
        ({"messages": [7]}, "messages.0: it is not an object"),
        ({"messages": [*ASKED, DONE | {"weight": 0}]}, "messages.2.weight: a reply that is not to be learned from"),
        ({"messages": [*ASKED, DONE | {"content": [{"type": "text", "text": "a"}]}]}, "messages.2.content"),
        ({"messages": ASKED}, "no message is the assistant's"),
        ({"messages": [*ASKED, DONE], "tools": "{"}, "tools: not JSON"),
        ({"messages": [*ASKED, DONE], "tools": 7}, "tools: a list of tools is needed"),
        ({"messages": [*ASKED, DONE], "tools": [{"name": "f"}]}, "tools.0.description: Field required"),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "conversations.0.from: unknown tag 'narrator'"),
        ({"conversations": [*SHAREGPT[:1], {"from": "function_call", "value": "find()"}]}, "that is not JSON"),
        ({"conversations": [*SHAREGPT[:1], {"from": "function_call", "value": "[]"}]}, "without a name and arguments"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "a"},
                    SHAREGPT[1] | {"value": f"[{SHAREGPT[1]['value']}, {SHAREGPT[1]['value']}]"},
                    SHAREGPT[2],
                ]
            },
            "an observation of 1 results after 2 calls",
        ),
        ({"chosen": [*CALLED, DONE], "messages": [*ASKED, DONE]}, "chosen: it has chosen and messages; one is needed"),
        ({"rejected": [*CALLED, DONE]}, "rejected: it has rejected; one is needed, or chosen and rejected"),
        ({"conversations": SHAREGPT[:-1], "rejected": SHAREGPT[-1]}, "rejected: it has rejected; one is needed"),
        ({"prompt": "hello", "completion": [DONE]}, "prompt: a list of messages is needed"),
        (
            {"messages": [*ASKED, called(r'{"x": "\ud83d"}')]},
            "the call of find cannot be held: the call has half a character",
        ),
        ({"messages": [*ASKED, called('{"x": NaN}')]}, "the call of find cannot be held: the call is not JSON: NaN"),
        ({"messages": [*ASKED, called('{"x": 1')]}, "the arguments are not JSON: Expecting"),
        ({"conversations": [SHAREGPT[0], SHAREGPT[1] | {"value": '{"name": "f", "arguments": NaN}'}]}, "not JSON"),
        ({"messages": [*ASKED, DONE], "tools": r'[{"name": "\udfff"}]'}, "tools: not JSON"),
    ],
)
def test_what_cannot_be_held(tmp_path: Path, row: Any, problem: str) -> None:
    (found,) = read(tmp_path / "rows.jsonl", row)
    assert isinstance(found, Bad)
    assert problem in str(found)
    assert "rows.jsonl:1" in str(found)


def test_text_beside_calls_and_calls_with_marks_in_them(tmp_path: Path) -> None:
    inner = '{"name": "find", "arguments": {"x": "<tool_call>a</tool_call>"}}'
    turns = [f"I look.\n<tool_call>[{inner}]</tool_call>", inner]
    rows = [{"conversations": [SHAREGPT[0], {"from": "function_call", "value": text}]} for text in turns]
    for found, said in zip(read(tmp_path / "rows.jsonl", *rows), ("I look.", ""), strict=True):
        assert (found.messages[-1].content, found.messages[-1].tool_calls[0].arguments["x"]) == (
            said,
            "<tool_call>a</tool_call>",
        )


def test_what_is_to_be_imitated_is_no_pair(tmp_path: Path) -> None:
    row = {"prompt": CALLED, "chosen": [DONE], "rejected": [DONE | {"content": "No."}]}
    (found,) = demonstrations(write_lines(tmp_path / "rows.jsonl", [row]))
    assert isinstance(found, Bad)
    assert "it is a pair of conversations, where one to imitate is needed" in str(found)


def test_convert_makes_them_ours(tmp_path: Path) -> None:
    rows = write_lines(
        tmp_path / "rows.jsonl", [{"conversations": SHAREGPT, "system": "policy", "id": i} for i in "ab"]
    )
    out = tmp_path / "ours.jsonl"
    assert call("convert", rows, out) == (0, f"{out}: 2\n", "")
    assert [item.value.messages for item in demonstrations(out) if isinstance(item, Item)] == [TOLD] * 2
    assert call("convert", rows, out)[0] == 2
    code, _, err = call("convert", rows, tmp_path / "other.jsonl", "--split", "train")
    assert (code, "--split has no effect" in err) == (2, True)
    code, _, err = call("convert", rows, tmp_path / "other.parquet")
    assert (code, "conversations are written as .jsonl" in err) == (2, True)


def test_convert_refuses_and_leaves_out(tmp_path: Path) -> None:
    good = {"conversations": SHAREGPT}
    rows = write_lines(tmp_path / "rows.jsonl", [good, {"conversations": []}])
    code, _, err = call("convert", rows, tmp_path / "ours.jsonl")
    assert (code, "1 of 2 conversations are refused" in err, "rows.jsonl:2" in err) == (2, True, True)
    assert not (tmp_path / "ours.jsonl").exists()
    code, out, _ = call("convert", rows, tmp_path / "ours.jsonl", "--keep-going")
    assert (code, out.splitlines()) == (1, [f"{tmp_path / 'ours.jsonl'}: 1", "1 left out"])
    mixed = write_lines(tmp_path / "mixed.jsonl", [good, good | {"kto_tag": True}])
    code, _, err = call("convert", mixed, tmp_path / "other.jsonl")
    assert (code, "holds Demonstration and Judged, where one kind is needed" in err) == (2, True)


def test_what_could_not_be_written_again_is_left_out(tmp_path: Path) -> None:
    rows = [{"messages": [*ASKED, called(text)]} for text in ('{"x": 1}', r'{"x": "\ud83d"}', '{"x": NaN}', '{"x": 1')]
    out = tmp_path / "ours.jsonl"
    code, said, err = call("convert", write_lines(tmp_path / "rows.jsonl", rows), out, "--keep-going")
    assert (code, said.splitlines()) == (1, [f"{out}: 1", "3 left out"])
    assert [f"rows.jsonl:{line}: messages.2" in err for line in (1, 2, 3, 4)] == [False, True, True, True]
