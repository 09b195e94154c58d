"""Test reading conversations in the formats of other trainers, and the errors for invalid rows."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.data_kit import run_data_command, write_lines
from understudy.core.errors import ConfigError
from understudy.core.items import Item, RowError
from understudy.core.messages import Message, ToolCall
from understudy.data.conversations.conversations import read_conversations, read_examples
from understudy.data.conversations.examples import Demonstration, LabeledExample, PreferencePair
from understudy.data.conversations.outcomes import ReadingNotes
from understudy.sources.loading import load_source

SPEC = {"name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {}}}
OPENAI_TOOL = {"type": "function", "function": SPEC}
CALL = {"type": "function", "function": {"name": "find", "arguments": '{"x": 1}'}}
PROMPT = [{"role": "system", "content": "policy"}, {"role": "user", "content": "hello"}]
AFTER_CALL = [*PROMPT, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "L7"}]
DONE = {"role": "assistant", "content": "Done."}
HELLO, NO = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "No."}
EPISODE = (
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
HERMES = [
    SHAREGPT[0],
    {"from": "gpt", "value": '<tool_call>\n{"name": "find", "arguments": {"x": 1}}\n</tool_call>'},
    {"from": "tool", "value": "<tool_response>\nL7\n</tool_response>"},
    SHAREGPT[3],
]


def calling_message(arguments: str) -> dict[str, Any]:
    call = CALL | {"function": {"name": "find", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def read_values(path: Path, *rows: Any) -> list[Any]:
    return [item.value if isinstance(item, Item) else item for item in read_conversations(write_lines(path, rows))]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [*AFTER_CALL, DONE], "tools": [OPENAI_TOOL]},
        {
            "messages": [*AFTER_CALL, DONE | {"weight": 1}],
            "tools": json.dumps([OPENAI_TOOL]),
            "parallel_tool_calls": False,
        },
        {
            "messages": [*AFTER_CALL[:3], AFTER_CALL[3] | {"name": "find", "tool_calls": None}, DONE],
            "tools": [SPEC],
            "id": 7,
        },
        {"prompt": AFTER_CALL, "completion": [DONE], "tools": [OPENAI_TOOL | {"function": SPEC | {"strict": True}}]},
        {"conversations": SHAREGPT, "system": "policy", "tools": json.dumps([SPEC])},
        {"conversations": [{"from": "system", "value": "policy"}, *SHAREGPT], "tools": [OPENAI_TOOL]},
        {"prompt": "hello", "messages": [*AFTER_CALL, DONE], "tools": [OPENAI_TOOL], "chosen": None, "rejected": "No."},
        {"prompt": AFTER_CALL, "messages": [*AFTER_CALL, DONE], "tools": [OPENAI_TOOL]},
        {"messages": [*AFTER_CALL, DONE | {"content": [{"type": "text", "text": DONE["content"]}]}], "tools": [SPEC]},
        {"conversations": HERMES, "system": "policy", "tools": [SPEC]},
        {"messages": [*AFTER_CALL[1:], DONE], "system": "policy", "tool_defs": json.dumps([SPEC]), "tools": None},
        {"messages": [*AFTER_CALL[1:], DONE], "system_prompt": [{"type": "text", "text": "policy"}], "tools": [SPEC]},
        {"messages": json.dumps([*AFTER_CALL, DONE]), "tools": json.dumps([OPENAI_TOOL])},
        {"messages": [json.dumps(message) for message in [*AFTER_CALL, DONE]], "tools": [json.dumps(SPEC)]},
        {"prompt": json.dumps(AFTER_CALL), "completion": json.dumps([DONE]), "tools": [SPEC]},
        {"prompt": AFTER_CALL[1:], "completion": DONE["content"], "system": "policy", "functions": [SPEC]},
        {"messages": AFTER_CALL[1:], "choices": [{"message": DONE}], "system": "policy", "tools": [SPEC]},
        {"conversations": SHAREGPT, "system_message": "policy", "tools": [SPEC]},
    ],
)
def test_every_demonstration_format_reads_the_same(tmp_path: Path, row: dict[str, Any]) -> None:
    (found,) = read_values(tmp_path / "rows.jsonl", row)
    assert found == Demonstration.model_validate({"messages": EPISODE, "tools": [SPEC]})


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": AFTER_CALL, "chosen": [DONE], "rejected": [DONE | {"content": "No."}]},
        {"chosen": [*AFTER_CALL, DONE], "rejected": [*AFTER_CALL, DONE | {"content": "No."}]},
        {
            "prompt": "hello",
            "chosen": [*AFTER_CALL, DONE],
            "rejected": [*AFTER_CALL, DONE | {"content": "No."}],
            "messages": [*AFTER_CALL, DONE],
        },
        {
            "input": {"messages": AFTER_CALL},
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
def test_every_preference_format_reads_the_same(tmp_path: Path, row: dict[str, Any]) -> None:
    (found,) = read_values(tmp_path / "rows.jsonl", row)
    assert found == PreferencePair(chosen=EPISODE, rejected=(*EPISODE[:-1], Message(role="assistant", content="No.")))


@pytest.mark.parametrize("label", [True, False])
def test_every_labeled_example_format_reads_the_same(tmp_path: Path, label: bool) -> None:
    rows = (
        {"prompt": AFTER_CALL, "completion": [DONE], "label": label},
        {"conversations": SHAREGPT, "system": "policy", "kto_tag": label},
        {"messages": [*AFTER_CALL, DONE], "label": label},
    )
    assert read_values(tmp_path / "rows.jsonl", *rows) == [LabeledExample(messages=EPISODE, label=label)] * 3


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ([], ""),
        ({"messages": "hello"}, "messages: "),
        ({"messages": [7]}, "messages.0: "),
        ({"messages": [*PROMPT, DONE | {"weight": 0.5}]}, "messages.2.weight: "),
        ({"messages": [*PROMPT, DONE | {"weight": 0}]}, "messages: "),
        ({"messages": [*PROMPT, DONE | {"weight": 0}], "label": True}, "messages.2.weight: "),
        ({"prompt": PROMPT, "chosen": [DONE | {"weight": 0}], "rejected": [NO]}, "messages.2.weight: "),
        ({"messages": [*PROMPT, DONE], "weight": 0}, "weight: "),
        ({"messages": [*PROMPT, DONE | {"content": [{"type": "image_url", "image_url": {}}]}]}, "messages.2.content"),
        ({"conversations": [*SHAREGPT[:1], {"from": "gpt", "value": "a", "loss": 0.5}]}, "conversations.1.loss: "),
        ({"messages": [*PROMPT, DONE | {"content": "<tool_call>find()</tool_call>"}]}, "messages.2: .*not JSON"),
        (
            {"messages": [*PROMPT, DONE | {"content": '<tool_call>{"name": "f"}</tool_call>'}]},
            "messages.2: .*arguments",
        ),
        ({"messages": PROMPT}, "messages: "),
        ({"messages": [*PROMPT, {"role": "assistant"}]}, "messages.2: neither content nor tool_calls"),
        ({"messages": [*PROMPT, DONE | {"content": "", "tool_calls": []}]}, "messages.2: neither content"),
        ({"messages": [*PROMPT, DONE | {"content": None}, PROMPT[1], DONE]}, "messages.2: neither content"),
        ({"prompt": "Hi", "completion": ""}, "messages.1: neither content"),
        ({"messages": [*PROMPT, DONE | {"content": ""}], "label": True}, "messages.2: neither content"),
        ({"prompt": "Hi", "chosen": "", "rejected": "No."}, "messages.1: neither content"),
        ({"messages": [*PROMPT, DONE], "tools": "{"}, "tools: "),
        ({"messages": [*PROMPT, DONE], "tools": 7}, "tools: "),
        ({"messages": [*PROMPT, DONE], "tools": [{"description": "f"}]}, "tools.0.name: "),
        ({"messages": [*PROMPT, DONE], "label": "good"}, "label: "),
        ({"question": "2 + 2?", "answer": ["4"]}, "answer: "),
        ({"instruction": "Hi.", "output": "Hello.", "history": [["a"]]}, "history.0: "),
        ({"instruction": 7, "output": "Hello."}, "instruction: "),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "conversations.0.from: .*'narrator'"),
        ({"conversations": [*SHAREGPT[:1], {"from": "function_call", "value": "find()"}]}, "conversations.1"),
        ({"conversations": [*SHAREGPT[:1], {"from": "function_call", "value": "[]"}]}, "conversations.1"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "a"},
                    SHAREGPT[1] | {"value": f"[{SHAREGPT[1]['value']}, {SHAREGPT[1]['value']}]"},
                    SHAREGPT[2],
                ]
            },
            r"\b1 results\b.*\b2 calls\b",
        ),
        ({"chosen": [*AFTER_CALL, DONE], "messages": [*PROMPT, DONE]}, "chosen: .*messages"),
        ({"rejected": [*AFTER_CALL, DONE]}, "rejected: .*chosen and rejected"),
        ({"conversations": SHAREGPT[:-1], "rejected": SHAREGPT[-1]}, "rejected: "),
        ({"prompt": 7, "completion": [DONE]}, "prompt: "),
        ({"chosen": "Hello.", "rejected": "No."}, "chosen: .*prompt"),
        (
            {"messages": [*PROMPT, calling_message(r'{"x": "\ud83d"}')]},
            "\\bfind\\b",
        ),
        ({"messages": [*PROMPT, calling_message('{"x": NaN}')]}, "\\bfind\\b.*NaN"),
        ({"messages": [*PROMPT, calling_message('{"x": 1')]}, "messages.2"),
        ({"conversations": [SHAREGPT[0], SHAREGPT[1] | {"value": '{"name": "f", "arguments": NaN}'}]}, "NaN|not JSON"),
        ({"messages": [*PROMPT, DONE], "tools": r'[{"name": "\udfff"}]'}, "tools: "),
    ],
)
def test_invalid_row_gives_an_error_with_its_field(tmp_path: Path, row: Any, problem: str) -> None:
    (found,) = read_values(tmp_path / "rows.jsonl", row)
    assert isinstance(found, RowError)
    assert re.search(rf"rows\.jsonl:1: .*{problem}", str(found))


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [*PROMPT, calling_message("{}") | {"weight": 0}, AFTER_CALL[3], DONE, PROMPT[1], DONE]},
        {
            "conversations": [SHAREGPT[0], SHAREGPT[1] | {"loss": False}, *SHAREGPT[2:], SHAREGPT[0], SHAREGPT[3]],
            "system": PROMPT[0]["content"],
        },
    ],
)
def test_replies_of_a_demonstration_may_be_left_out(tmp_path: Path, row: dict[str, Any]) -> None:
    (found,) = read_values(tmp_path / "rows.jsonl", row)
    assert [m.weight for m in found.messages] == [1, 1, 0, 1, 1, 1, 1]
    assert found.messages[2].tool_calls
    again = json.loads(found.model_dump_json(exclude_defaults=True))
    assert [m.get("weight") for m in again["messages"]] == [None, None, 0, *[None] * 4]
    assert read_values(tmp_path / "again.jsonl", again) == [found]


@pytest.mark.parametrize(
    "row", [{"prompt": "Hi", "chosen": "Yes.", "rejected": ""}, {"prompt": "Hi", "completion": "", "label": False}]
)
def test_an_empty_reply_may_be_rejected_or_undesirable(tmp_path: Path, row: dict[str, Any]) -> None:
    (found,) = read_values(tmp_path / "rows.jsonl", row)
    assert not isinstance(found, RowError)


def test_results_stand_in_the_order_of_their_calls(tmp_path: Path) -> None:
    calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in "ab"]
    results = [{"role": "tool", "content": name.upper(), "tool_call_id": name} for name in "ba"]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    (found,) = read_values(tmp_path / "rows.jsonl", {"messages": [*PROMPT, asked, *results, DONE]})
    assert [message.content for message in found.messages[-3:-1]] == ["A", "B"]
    tagged = "".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>\n' for name in "ab")
    answers = "".join(f"<tool_response>\n{name}\n</tool_response>\n" for name in "AB")
    row = {"messages": [*PROMPT, DONE | {"content": tagged}, {"role": "tool", "content": answers}, DONE]}
    (hermes,) = read_values(tmp_path / "rows.jsonl", row)
    assert [(m.content, m.tool_call_id) for m in hermes.messages[-3:-1]] == [("A", "call_0_0"), ("B", "call_0_1")]
    result = {"role": "tool", "content": "<tool_response>\nA\n</tool_response>", "tool_call_id": "a"}
    asked = {"role": "assistant", "content": None, "tool_calls": calls[:1]}
    (own,) = read_values(tmp_path / "rows.jsonl", {"messages": [*PROMPT, asked, result, DONE]})
    assert own.messages[-2].content == result["content"]


def test_function_call_with_text_and_nested_tool_call_tags(tmp_path: Path) -> None:
    inner = '{"name": "find", "arguments": {"x": "<tool_call>a</tool_call>"}}'
    turns = [f"I look.\n<tool_call>[{inner}]</tool_call>", inner]
    rows = [{"conversations": [SHAREGPT[0], {"from": "function_call", "value": text}]} for text in turns]
    for found, said in zip(read_values(tmp_path / "rows.jsonl", *rows), ("I look.", ""), strict=True):
        assert (found.messages[-1].content, found.messages[-1].tool_calls[0].arguments["x"]) == (
            said,
            "<tool_call>a</tool_call>",
        )


def test_convert_writes_conversations_in_the_native_format(tmp_path: Path) -> None:
    rows = write_lines(
        tmp_path / "rows.jsonl",
        [{"conversations": SHAREGPT, "system": "policy", "tools": [SPEC], "id": i} for i in "ab"],
    )
    out = tmp_path / "ours.jsonl"
    assert run_data_command("convert", rows, out) == (0, f"{out}: 2\n", "")
    assert [item.value.messages for item in read_examples(out, Demonstration) if isinstance(item, Item)] == [
        EPISODE
    ] * 2
    assert run_data_command("convert", rows, out)[0] == 2
    code, _, err = run_data_command("convert", rows, tmp_path / "other.jsonl", "--split", "train")
    assert (code, "--split" in err) == (2, True)
    code, _, err = run_data_command("convert", rows, tmp_path / "other.parquet")
    assert (code, ".jsonl" in err) == (2, True)


def test_convert_rejects_bad_rows_or_skips_them_on_request(tmp_path: Path) -> None:
    good = {"conversations": SHAREGPT, "tools": [SPEC]}
    rows = write_lines(tmp_path / "rows.jsonl", [good, {"conversations": []}])
    code, _, err = run_data_command("convert", rows, tmp_path / "ours.jsonl")
    assert (code, "1 of 2 " in err, "rows.jsonl:2" in err) == (2, True, True)
    assert not (tmp_path / "ours.jsonl").exists()
    code, out, _ = run_data_command("convert", rows, tmp_path / "ours.jsonl", "--skip-invalid")
    assert (code, out.splitlines()) == (1, [f"{tmp_path / 'ours.jsonl'}: 1", "1 left out"])
    mixed = write_lines(tmp_path / "mixed.jsonl", [good, good | {"kto_tag": True}])
    code, _, err = run_data_command("convert", mixed, tmp_path / "other.jsonl")
    assert (code, "Demonstration and LabeledExample" in err) == (2, True)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "hello", "answer": "Done."},
        {"prompt": "hello", "completion": "Done."},
        {"instruction": "hello", "output": "Done."},
        {"instruction": "hello", "chosen": "Done.", "rejected": "No."},
        {"prompt": "hello", "chosen": "Done.", "rejected": "No."},
        {"chosen": [HELLO, DONE], "rejected": [HELLO, NO]},
        {"prompt": "hello", "chosen": json.dumps([DONE]), "rejected": json.dumps([NO])},
        {"input": {"messages": [HELLO]}, "preferred_output": [DONE], "non_preferred_output": [NO]},
        {"input": json.dumps({"messages": [HELLO]}), "preferred_output": [DONE], "non_preferred_output": [NO]},
        {"messages": [HELLO, DONE], "label": True},
    ],
)
def test_system_column_begins_every_conversation(tmp_path: Path, row: dict[str, Any]) -> None:
    (found,) = read_values(tmp_path / "rows.jsonl", row | {"system": "policy"})
    both = [found.chosen, found.rejected] if isinstance(found, PreferencePair) else [found.messages]
    for messages, last in zip(both, ("Done.", "No."), strict=False):
        assert [each.content for each in messages] == ["policy", "hello", last]
        assert [each.role for each in messages] == ["system", "user", "assistant"]


def test_system_message_of_the_conversation_wins_over_the_column(tmp_path: Path) -> None:
    row = {"messages": [*AFTER_CALL, DONE], "tools": [SPEC], "system": "another"}
    (found,) = read_values(tmp_path / "rows.jsonl", row)
    assert found.messages == EPISODE


def test_keys_that_are_not_understood_are_named_once_with_the_row(tmp_path: Path) -> None:
    said, tool = DONE | {"mood": "calm", "cache_control": {}}, SPEC | {"origin": "shop"}
    rows = [{"messages": [*AFTER_CALL, DONE], "tools": [SPEC]}, {"messages": [*AFTER_CALL, said], "tools": [tool]}]
    path, notes = write_lines(tmp_path / "rows.jsonl", [*rows, rows[1]]), ReadingNotes()
    assert [item.value.messages for item in read_conversations(path, notes=notes) if isinstance(item, Item)] == [
        EPISODE
    ] * 3
    assert notes.unused == dict.fromkeys(("messages.mood", "tools.origin"), f"{path}:2")


def test_calls_of_tools_that_a_row_does_not_describe_are_named(tmp_path: Path) -> None:
    rows = [{"messages": [*AFTER_CALL, DONE], "tools": tools} for tools in ([SPEC], [])]
    path, notes = write_lines(tmp_path / "rows.jsonl", rows), ReadingNotes()
    assert len(list(read_conversations(path, notes=notes))) == 2
    assert notes.undescribed == {"find": f"{path}:2"}
    assert any("find" in line and "tools" in line for line in notes.lines(""))


def test_convert_gives_the_tools_of_a_domain_to_rows_without_tools(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", [{"messages": [*AFTER_CALL, DONE], "tools": t} for t in ([SPEC], [])])
    out = tmp_path / "out.jsonl"
    code, said, _ = run_data_command("convert", rows, out, "--tools", "toy:DOMAIN")
    assert (code, "find" in said) == (0, True)
    first, second = (item.value.tools for item in read_examples(out, Demonstration) if isinstance(item, Item))
    assert [tool.name for tool in first] == ["find"]
    assert second == tuple(tool.without_aliases() for tool in load_source("toy:DOMAIN").tool_specs)


@pytest.mark.parametrize(
    ("row", "use", "hint"),
    [
        ({"messages": [*AFTER_CALL, DONE], "label": True}, "dpo", "preferences.kind=kto"),
        ({"prompt": "hello", "chosen": "Done.", "rejected": "No."}, "kto", "preferences.kind=dpo"),
    ],
)
def test_rows_of_the_other_kind_of_preferences_name_it(tmp_path: Path, row: Any, use: Any, hint: str) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [row])
    (error,) = read_conversations(path, use)
    assert hint in str(error)


def test_episodes_that_make_no_pair_point_to_kto(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"messages": [HELLO, DONE], "reward": 1.0}])
    with pytest.raises(ConfigError, match=r"preferences\.kind=kto"):
        list(read_conversations(path, "dpo"))


def test_unserializable_call_arguments_are_skipped(tmp_path: Path) -> None:
    rows = [
        {"messages": [*PROMPT, calling_message(text)], "tools": [SPEC]}
        for text in ('{"x": 1}', r'{"x": "\ud83d"}', '{"x": NaN}', '{"x": 1')
    ]
    out = tmp_path / "ours.jsonl"
    code, said, err = run_data_command("convert", write_lines(tmp_path / "rows.jsonl", rows), out, "--skip-invalid")
    assert (code, said.splitlines()) == (1, [f"{out}: 1", "3 left out"])
    assert [f"rows.jsonl:{line}: messages.2" in err for line in (1, 2, 3, 4)] == [False, True, True, True]


def test_each_of_several_calls_needs_a_result(tmp_path: Path) -> None:
    names = ("a", "b")
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
    results = [{"role": "tool", "tool_call_id": name, "content": "1"} for name in names]
    start = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "", "tool_calls": calls}]
    end = {"role": "assistant", "content": "Done."}
    rows = [{"messages": [*start, *results, end]}, {"messages": [*start, results[0], end]}]
    whole, partial = read_conversations(write_lines(tmp_path / "rows.jsonl", rows))
    assert isinstance(whole, Item)
    assert isinstance(partial, RowError)
    assert partial.field == "messages.3"
