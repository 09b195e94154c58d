"""Test how messages of rows are normalized: thoughts, neighbouring replies, and calls and results in texts."""

import json
from typing import Any

import pytest

from understudy.core.items import InvalidField
from understudy.sources.row_messages import normalize_messages, normalize_tools, without_padding

ASKED = {"role": "user", "content": "How much is the lamp?"}
THOUGHT = {"role": "assistant", "content": "<think>\nLook it up.\n</think>"}
TAGGED = {"role": "assistant", "content": '<tool_call>\n{"name": "price", "arguments": {"of": "lamp"}}\n</tool_call>'}
CALL = {"name": "price", "arguments": {"of": "lamp"}}
RESULT = {"role": "tool", "content": "19.95"}
SAID = {"role": "assistant", "content": "It costs 19.95."}


def shown(messages: list[Any]) -> list[tuple[Any, ...]]:
    """Return the role, the text, the calls and the thought of each message."""
    found = []
    for message in normalize_messages(messages):
        functions = [call.get("function", call) for call in message.get("tool_calls", ())]
        calls = [
            (each["name"], json.loads(each["arguments"]) if isinstance(each["arguments"], str) else each["arguments"])
            for each in functions
        ]
        found.append((message["role"], message["content"], calls, message.get("reasoning_content", "")))
    return found


LOOKED_UP = [("user", ASKED["content"], [], ""), ("assistant", "", [("price", {"of": "lamp"})], "Look it up.")]


@pytest.mark.parametrize(
    "replies",
    [
        [THOUGHT, TAGGED],
        [TAGGED | {"content": THOUGHT["content"] + TAGGED["content"]}],
        [TAGGED | {"content": "Look it up.\n</think>\n\n" + TAGGED["content"]}],
        [TAGGED | {"content": "<think>Look it up." + TAGGED["content"]}],
        [THOUGHT | {"content": "<think>Look it up."}, TAGGED],
        [THOUGHT | {"content": "[THINK]Look it up.[/THINK]"}, TAGGED],
        [{"role": "assistant", "content": "", "reasoning": "Look it up."}, TAGGED],
        [{"role": "assistant", "content": "", "thinking": "Look it up."}, TAGGED],
    ],
)
def test_a_thought_and_a_call_are_one_reply(replies: list[Any]) -> None:
    assert shown([ASKED, *replies, RESULT, SAID]) == [
        *LOOKED_UP,
        ("tool", "19.95", [], ""),
        ("assistant", "It costs 19.95.", [], ""),
    ]


@pytest.mark.parametrize(
    ("replies", "text", "names", "thought"),
    [
        ([THOUGHT, SAID], "It costs 19.95.", [], "Look it up."),
        ([SAID, THOUGHT], "It costs 19.95.", [], "Look it up."),
        ([SAID, SAID], "It costs 19.95.", [], ""),
        ([SAID, TAGGED], "It costs 19.95.", ["price"], ""),
        ([TAGGED, TAGGED], "", ["price", "price"], ""),
        (
            [THOUGHT, THOUGHT | {"content": "<think>Then say it.</think>Done."}],
            "Done.",
            [],
            "Look it up.\nThen say it.",
        ),
        ([SAID | {"content": "Well.\n<think>Hm.</think>\nDone."}], "Well.\n\nDone.", [], "Hm."),
    ],
)
def test_neighbouring_replies_are_one(replies: list[Any], text: str, names: list[str], thought: str) -> None:
    ((_, *_), found) = shown([ASKED, *replies])
    assert (found[1], [name for name, _ in found[2]], found[3]) == (text, names, thought)


@pytest.mark.parametrize("second", [SAID | {"content": "Nothing."}, THOUGHT | {"content": "<think>a</think>Nothing."}])
def test_neighbouring_texts_are_one_reply_and_a_text_after_a_call_is_an_error(second: Any) -> None:
    assert shown([ASKED, SAID, second])[1][1] == "It costs 19.95.\n\nNothing."
    with pytest.raises(InvalidField, match=r"messages\.2: .*no result"):
        normalize_messages([ASKED, TAGGED, second])


def test_a_thought_at_the_end_is_left_out_and_one_before_the_user_is_an_error() -> None:
    assert [role for role, *_ in shown([ASKED, TAGGED, RESULT, THOUGHT])] == ["user", "assistant", "tool"]
    with pytest.raises(InvalidField, match=r"messages\.1: neither content"):
        normalize_messages([ASKED, THOUGHT, ASKED, SAID])


@pytest.mark.parametrize(
    "text",
    [
        {"function_call": CALL},
        {"function_call": CALL | {"arguments": json.dumps(CALL["arguments"])}},
        CALL,
        [CALL],
        {"tool_calls": [CALL]},
        {"tool_calls": [{"id": "c", "type": "function", "function": CALL}]},
        {"tool_call": {"server": "shop", "tool": "price", "params": {"of": "lamp"}}},
        {"tool": "price", "arguments": {"of": "lamp"}},
    ],
)
@pytest.mark.parametrize(
    "result",
    [
        RESULT,
        {"role": "function", "name": "price", "content": "19.95"},
        {"role": "tool", "content": 'Function result: {"function_name": "price", "result": "19.95"}'},
        {"role": "user", "content": "<tool_response>\n19.95\n</tool_response>"},
        {"role": "user", "content": "[tool-response]\n19.95"},
    ],
)
def test_a_text_that_is_nothing_but_a_call_is_a_call(text: Any, result: Any) -> None:
    reply = {"role": "assistant", "content": json.dumps(text)}
    found = normalize_messages([ASKED, reply, result, SAID])
    assert shown([ASKED, reply, result, SAID])[1:3] == [
        ("assistant", "", [("price", {"of": "lamp"})], ""),
        ("tool", "19.95", [], ""),
    ]
    assert found[2]["tool_call_id"] == found[1]["tool_calls"][0]["id"]


@pytest.mark.parametrize(
    "reply",
    [
        {"role": "assistant", "content": None, "function_call": CALL | {"arguments": '{"of": "lamp"}'}},
        {"role": "function_call", "content": json.dumps(CALL)},
    ],
)
def test_older_forms_of_a_call_are_calls(reply: Any) -> None:
    assert shown([ASKED, reply])[1] == ("assistant", "", [("price", {"of": "lamp"})], "")


@pytest.mark.parametrize(
    "text", ['{"name": "Ann", "arguments": ["none"]}', '{"name": "Ann"}', '["a"]', "{price}", "[]"]
)
def test_other_json_is_a_text(text: str) -> None:
    assert shown([ASKED, SAID | {"content": text}])[1] == ("assistant", text, [], "")


def test_results_with_the_id_of_their_call_and_texts_of_the_user_do_not_change() -> None:
    calls = [{"id": "c", "type": "function", "function": CALL | {"arguments": "{}"}}]
    text = 'Function result: {"function_name": "f", "result": "x"}'
    messages = [ASKED, SAID | {"tool_calls": calls}, RESULT | {"tool_call_id": "c", "content": text}, SAID]
    assert normalize_messages(messages)[2]["content"] == text
    asked = ASKED | {"content": "[tool-response] is what your log says"}
    assert normalize_messages([ASKED, SAID, asked, SAID])[2]["role"] == "user"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (SAID | {"weight": 0}, r"messages\.1\.weight"),
        (SAID | {"weight": 0.5}, r"messages\.1\.weight"),
        (SAID | {"loss": False}, r"messages\.1\.loss"),
        (SAID | {"train": False}, r"messages\.1\.train"),
        (SAID | {"mask": 1}, r"messages\.1\.mask"),
        (SAID | {"loss_mask": 0}, r"messages\.1\.loss_mask"),
        (SAID | {"trainable": False}, r"messages\.1\.trainable"),
        (SAID | {"loss_scale": 0.0}, r"messages\.1\.loss_scale"),
        (SAID | {"loss_weights": [0, 1]}, r"messages\.1\.loss_weights"),
        (SAID | {"train_mask": False}, r"messages\.1\.train_mask"),
        (SAID | {"is_masked": True}, r"messages\.1\.is_masked"),
        (SAID | {"train_on_turn": False}, r"messages\.1\.train_on_turn"),
        (SAID | {"response_mask": [0, 0]}, r"messages\.1\.response_mask"),
        (ASKED | {"loss": True}, r"messages\.1\.loss"),
        ({"role": "user", "body": "Hi."}, r"messages\.1: .*body"),
        (ASKED | {"weight": 1}, r"messages\.1\.weight"),
        (ASKED | {"content": "<image>What is this?"}, r"messages\.1\.content: <image>"),
        (ASKED | {"content": [{"type": "input_audio", "input_audio": {}}]}, r"messages\.1\.content: .*'input_audio'"),
        (SAID | {"content": '{"function_call": {"name": "f"'}, r"messages\.1: .*not JSON"),
        (SAID | {"content": '{"function_call": {"name": "f"}}'}, r"messages\.1: .*arguments"),
    ],
)
def test_what_is_not_supported_is_named(message: Any, field: str) -> None:
    with pytest.raises(InvalidField, match=field):
        normalize_messages([ASKED, message, ASKED, SAID])


@pytest.mark.parametrize("untrained", [{"weight": 0}, {"loss": False}, {"train": False}, {"loss_mask": 0}])
def test_replies_of_demonstrations_may_be_left_out(untrained: dict[str, Any]) -> None:
    """Neighbouring replies are one reply only if both are trained on, or neither."""
    other = THOUGHT | untrained
    messages = [ASKED | {"weight": 0}, SAID | untrained, other, ASKED, SAID | untrained, SAID | {"weight": 1}, SAID]
    found = normalize_messages(messages, allow_weights=True)
    assert [(message["role"], message.get("weight")) for message in found] == [
        ("user", None),
        ("assistant", 0),
        ("user", None),
        ("assistant", 0),
        ("assistant", None),
    ]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (SAID | {"weight": 0.5}, r"messages\.1\.weight: 0\.5 .*\b1, or 0\b"),
        (SAID | {"weight": "0"}, r"messages\.1\.weight: '0'"),
        (SAID | {"loss_mask": [0, 1]}, r"messages\.1\.loss_mask"),
        (SAID | {"mask": 1}, r"messages\.1\.mask"),
        (SAID | {"train_on_history": True}, r"messages\.1\.train_on_history"),
        (ASKED | {"weight": 1}, r"messages\.1\.weight: .*only replies"),
    ],
)
def test_other_weights_of_demonstrations_are_refused(message: Any, field: str) -> None:
    with pytest.raises(InvalidField, match=field):
        normalize_messages([ASKED, message, ASKED, SAID], allow_weights=True)


def test_usual_weights_and_elements_of_xml_are_read() -> None:
    asked = ASKED | {"weight": 0, "content": "<image>lamp.png</image> Is this it?"}
    said = SAID | {"weight": 1, "loss": True, "masked": False, "trainable": 1}
    assert [role for role, *_ in shown([asked | {"masked": True}, said])] == ["user", "assistant"]


TOOL_USE = {"type": "tool_use", "id": "t1", "name": "price", "input": {"of": "lamp"}}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "19.95"}]}


@pytest.mark.parametrize("as_text", [False, True])
def test_content_blocks_are_calls_results_and_texts(as_text: bool) -> None:
    def content(*blocks: Any) -> Any:
        return json.dumps(blocks) if as_text else list(blocks)

    thought = {"type": "thinking", "thinking": "Look it up.", "signature": "abc"}
    messages = [
        {"role": "user", "content": content({"type": "text", "text": "Hi.", "cache_control": {"type": "ephemeral"}})},
        {"role": "assistant", "content": content(thought, {"type": "text", "text": "Looking."}, TOOL_USE)},
        {"role": "user", "content": content(TOOL_RESULT, {"type": "text", "text": "Well?"})},
        {"role": "assistant", "content": content({"type": "output_text", "text": "19.95.", "annotations": []})},
    ]
    assert shown(messages) == [
        ("user", "Hi.", [], ""),
        ("assistant", "Looking.", [("price", {"of": "lamp"})], "Look it up."),
        ("tool", "19.95", [], ""),
        ("user", "Well?", [], ""),
        ("assistant", "19.95.", [], ""),
    ]
    assert normalize_messages(messages)[2]["tool_call_id"] == "t1"


@pytest.mark.parametrize(
    "reply",
    [
        {
            "role": "assistant",
            "tool_calls": [{"id": "a", "name": "price", "args": {"of": "lamp"}, "type": "tool_call"}],
        },
        {"role": "assistant", "tool_calls": json.dumps([{"function": CALL}])},
        {"role": "assistant", "tool_calls": [{"function": json.dumps(CALL)}]},
        {"role": "assistant", "tool_calls": [json.dumps(CALL)]},
        {"role": "assistant", "function_call": json.dumps(CALL)},
        {"role": "tool_call", "content": json.dumps(CALL)},
    ],
)
def test_calls_of_other_dialects_and_in_json_text_are_calls(reply: Any) -> None:
    for role in ("tool", "tool_response"):
        found = shown([ASKED, reply, RESULT | {"role": role}, SAID])
        assert [each[:3] for each in found[1:3]] == [
            ("assistant", "", [("price", {"of": "lamp"})]),
            ("tool", "19.95", []),
        ]


@pytest.mark.parametrize(
    ("tools", "field"), [(["price"], r"tools\.0: 'price'"), ({"price": {}}, "tools: "), ("price", "tools: not JSON")]
)
def test_tools_that_are_no_descriptions_are_named(tools: Any, field: str) -> None:
    with pytest.raises(InvalidField, match=field):
        normalize_tools({"tools": tools})


def test_a_failed_result_of_anthropic_is_an_error_here() -> None:
    use, result = {"role": "assistant", "content": [TOOL_USE]}, TOOL_RESULT | {"content": "No lamp.", "is_error": True}
    assert shown([ASKED, use, {"role": "user", "content": [result]}, SAID])[2][1] == "Error: No lamp."


def test_json_that_a_tool_returned_stays_as_it_is() -> None:
    text = json.dumps([{"type": "text", "text": "19.95"}])
    assert shown([ASKED, TAGGED, RESULT | {"content": text}, SAID])[2][1] == text


@pytest.mark.parametrize("name", ["tools", "tool_defs", "functions", "tool_schemas", "available_tools"])
@pytest.mark.parametrize("schema", ["parameters", "input_schema", "inputSchema"])
def test_tools_are_read_under_their_other_names(name: str, schema: str) -> None:
    parameters = {"type": "object", "properties": {"of": {"type": "string"}}}
    tool = {"name": "price", "description": "Look up.", schema: parameters, "cache_control": {"type": "ephemeral"}}
    read = [{"name": "price", "description": "Look up.", "parameters": parameters}]
    as_text = tool | {schema: json.dumps(parameters)}
    for tools in ([tool], json.dumps([tool]), [json.dumps(tool)], [{"type": "function", "function": tool}], [as_text]):
        assert normalize_tools({"tools": None, name: tools}) == read
        assert normalize_tools({"messages": [], "input": {name: tools}}) == read


def test_nulls_that_pad_objects_are_left_out() -> None:
    known = {"properties": {"of": {"type": "string", "description": None}, "lot": None}}
    row = {"tools": [{"name": "price", "parameters": known}], "messages": [{"arguments": {"of": "lamp", "lot": None}}]}
    assert without_padding(row) == {
        "tools": [{"name": "price", "parameters": {"properties": {"of": {"type": "string"}}}}],
        "messages": [{"arguments": {"of": "lamp"}}],
    }
    del known["properties"]["lot"]
    assert without_padding(row) == row


@pytest.mark.parametrize(
    ("results", "ids"), [(["", ""], ["call_0_0", "call_0_1"]), (["call_0_1", None], ["call_0_1", "call_0_0"])]
)
def test_results_without_an_id_belong_to_the_calls_that_have_none_yet(results: list[Any], ids: list[str]) -> None:
    calls = [{"type": "function", "function": CALL | {"arguments": "{}"}} for _ in results]
    answers = [RESULT | ({} if given is None else {"tool_call_id": given}) for given in results]
    messages = normalize_messages([ASKED, SAID | {"tool_calls": calls}, *answers, SAID])
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ids
