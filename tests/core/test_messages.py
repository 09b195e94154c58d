"""Test messages and their conversion to and from the OpenAI API's format."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from understudy.core.messages import (
    Message,
    ToolCall,
    ToolSpec,
    assign_call_ids,
    message_from_openai,
    message_to_openai,
    order_tool_results,
    tool_to_openai,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)
CALLS = st.builds(
    ToolCall, name=st.text(min_size=1), arguments=st.dictionaries(st.text(), JSON), id=st.text(min_size=1)
)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=st.text(),
    tool_calls=st.lists(CALLS, max_size=3).map(tuple),
    tool_call_id=st.text(),
)


@pytest.mark.slow
@given(MESSAGES)
def test_openai_format_round_trips_every_message(message: Message) -> None:
    assert message_from_openai(json.loads(json.dumps(message_to_openai(message)))) == message


UNREADABLE = (
    *("{", "[1]", '"x"', "null", "nul"),
    *('{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"a": 1, "a": 2}', r'{"a": "\ud83d"}'),
    *(f'{{"a": {"9" * 5000}}}', '{"a":' * 2000, f'{{"a": {"[" * 40}{"]" * 40}}}'),
)


@pytest.mark.parametrize("arguments", UNREADABLE)
def test_arguments_that_are_not_a_json_object_give_a_parse_error(arguments: str) -> None:
    call = {"id": "c1", "function": {"name": "f", "arguments": arguments}}
    (read,) = message_from_openai({"role": "assistant", "content": None, "tool_calls": [call]}).tool_calls
    assert read.parse_error
    assert (read.name, read.arguments) == ("f", {})
    read.model_dump_json().encode()


def test_already_parsed_arguments_get_the_same_validation() -> None:
    def read(arguments: object) -> ToolCall:
        call = {"function": {"name": "f", "arguments": arguments}}
        return message_from_openai({"role": "assistant", "tool_calls": [call]}).tool_calls[0]

    assert read({"a": [1, None]}).arguments == {"a": [1, None]}
    for value in (float("nan"), float("inf"), "\ud83d"):
        assert read({"a": value}).parse_error


def test_results_are_ordered_as_their_calls() -> None:
    def reply(*ids: str) -> Message:
        return Message(role="assistant", tool_calls=tuple(ToolCall(name="f", id=call_id) for call_id in ids))

    def results(*ids: str) -> list[Message]:
        return [Message(role="tool", content=call_id, tool_call_id=call_id) for call_id in ids]

    user = Message(role="user", content="Hi.")
    given = [user, reply("a", "b", "c"), *results("c", "x", "a", "b"), reply("d"), *results("d"), user, *results("z")]
    ordered = [user, reply("a", "b", "c"), *results("a", "b", "c", "x"), reply("d"), *results("d"), user, *results("z")]
    assert order_tool_results(given) == ordered


def test_calls_of_a_reply_get_different_ids() -> None:
    calls = tuple(ToolCall(name=name, id=id) for name, id in (("a", "1"), ("b", ""), ("c", "1"), ("d", "2")))
    assigned = assign_call_ids(Message(role="assistant", tool_calls=calls), 3)
    assert [(call.name, call.id) for call in assigned.tool_calls] == [
        ("a", "1"),
        ("b", "call_3_1"),
        ("c", "call_3_2"),
        ("d", "2"),
    ]


def test_malformed_call_is_sent_without_arguments() -> None:
    """An API rejects a tool message that answers no call, and a call without a name."""
    calls = (ToolCall(name="f", parse_error="no JSON", id="c1"), ToolCall(name="", parse_error="no name", id="c2"))
    wire = message_to_openai(Message(role="assistant", tool_calls=calls))
    assert [(call["id"], call["function"]) for call in wire["tool_calls"]] == [
        ("c1", {"name": "f", "arguments": "{}"}),
        ("c2", {"name": "unknown", "arguments": "{}"}),
    ]
    assert "tool_calls" not in message_to_openai(Message(role="assistant"))


def test_empty_argument_text_gives_no_arguments() -> None:
    wire = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}
    assert message_from_openai(wire).tool_calls == (ToolCall(name="f"),)


def test_messages_are_frozen_and_strict() -> None:
    message = Message(role="user", content="hi")
    with pytest.raises(ValidationError):
        message.content = "bye"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Message.model_validate({"role": "user", "text": "hi"})
    with pytest.raises(AttributeError, match="'text'"):
        message.replace(text="bye")
    assert message.replace(content="bye") == Message(role="user", content="bye")


def test_tool_spec_converts_to_an_openai_function() -> None:
    spec = ToolSpec(name="f", description="d", parameters={"type": "object", "properties": {}}, aliases={"b": "a"})
    assert tool_to_openai(spec) == {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": spec.parameters},
    }
