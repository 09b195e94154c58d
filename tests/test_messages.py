"""Messages and the OpenAI wire format."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from understudy.messages import Message, ToolCall, ToolSpec, from_wire, spec_to_wire, to_wire

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


@given(MESSAGES)
def test_the_wire_format_loses_nothing(message: Message) -> None:
    assert from_wire(json.loads(json.dumps(to_wire(message)))) == message


UNREADABLE = (
    *("{", "[1]", '"x"', "null", "nul"),
    *('{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"a": 1, "a": 2}', r'{"a": "\ud83d"}'),
    *(f'{{"a": {"9" * 5000}}}', '{"a":' * 2000, f'{{"a": {"[" * 40}{"]" * 40}}}'),
)


@pytest.mark.parametrize("arguments", UNREADABLE)
def test_arguments_that_are_no_object_make_a_malformed_call(arguments: str) -> None:
    call = {"id": "c1", "function": {"name": "f", "arguments": arguments}}
    (read,) = from_wire({"role": "assistant", "content": None, "tool_calls": [call]}).tool_calls
    assert read.malformed
    assert (read.name, read.arguments) == ("f", {})
    read.model_dump_json().encode()


def test_arguments_that_are_an_object_already_are_held_to_the_same() -> None:
    def read(arguments: object) -> ToolCall:
        call = {"function": {"name": "f", "arguments": arguments}}
        return from_wire({"role": "assistant", "tool_calls": [call]}).tool_calls[0]

    assert read({"a": [1, None]}).arguments == {"a": [1, None]}
    for value in (float("nan"), float("inf"), "\ud83d"):
        assert read({"a": value}).malformed


def test_a_malformed_call_travels_without_arguments() -> None:
    """An API refuses a tool message that answers no call, and a call without a name."""
    calls = (ToolCall(name="f", malformed="no JSON", id="c1"), ToolCall(name="", malformed="no name", id="c2"))
    wire = to_wire(Message(role="assistant", tool_calls=calls))
    assert [(call["id"], call["function"]) for call in wire["tool_calls"]] == [
        ("c1", {"name": "f", "arguments": "{}"}),
        ("c2", {"name": "unknown", "arguments": "{}"}),
    ]
    assert "tool_calls" not in to_wire(Message(role="assistant"))


def test_calls_without_arguments_have_none() -> None:
    wire = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}
    assert from_wire(wire).tool_calls == (ToolCall(name="f"),)


def test_messages_are_frozen_and_strict() -> None:
    message = Message(role="user", content="hi")
    with pytest.raises(ValidationError):
        message.content = "bye"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Message.model_validate({"role": "user", "text": "hi"})
    with pytest.raises(AttributeError, match="no field 'text'"):
        message.replace(text="bye")
    assert message.replace(content="bye") == Message(role="user", content="bye")


def test_a_spec_travels_as_a_function() -> None:
    spec = ToolSpec(name="f", description="d", parameters={"type": "object", "properties": {}}, aliases={"b": "a"})
    assert spec_to_wire(spec) == {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": spec.parameters},
    }
