"""Tests that a format reads the calls that it writes, or says that it does not."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.engines.models import find_model
from understudy.formats import ChatFormat, load_chat_format
from understudy.formats.parsing.parse import TOOL_FORMATS, parse_reply, render_reply
from understudy.formats.round_trip import validate_reply, validate_tools

ANY_NAME = ("hermes", "json", "llama3", "openai", "xml", "apertus")
"""Formats that write names as JSON strings or attributes, so that every name is read."""
NAMES = st.text(st.sampled_from("ab1_-./ :|()<>\"'#$é名[]"), min_size=1, max_size=8).filter(lambda name: name.strip())


def spec_of(name: str, *arguments: str) -> ToolSpec:
    properties = {argument: {"type": "string"} for argument in arguments}
    return ToolSpec(name=name, description="", parameters={"type": "object", "properties": properties})


@pytest.fixture(scope="module")
def formats() -> dict[str, ChatFormat]:
    folder = find_model("tiny")
    return {name: load_chat_format(folder, tool_format=name) for name in TOOL_FORMATS}


@pytest.mark.parametrize("name", ["get-docs", "a.b", "名前", "x-y.z_1"])
def test_pythonic_calls_have_the_names_that_are_written(name: str) -> None:
    for arguments in ({}, {"topic": "it's [a](b)"}, {"from-date": "x", "class": "y"}):
        call = ToolCall(name=name, arguments=arguments)
        for calls in ([call], [call, call]):
            assert list(parse_reply(render_reply("", calls, "pythonic"), "pythonic").calls) == calls


@pytest.mark.parametrize("tool_format", sorted(TOOL_FORMATS))
def test_usual_names_are_read_in_every_format(tool_format: str, formats: dict[str, ChatFormat]) -> None:
    validate_tools(formats[tool_format], [spec_of("get_docs", "topic"), spec_of("get-docs"), spec_of("notes.add", "a")])


@pytest.mark.parametrize("tool_format", sorted(TOOL_FORMATS))
@given(name=NAMES, argument=NAMES)
def test_a_tool_is_read_or_refused(tool_format: str, formats: dict[str, ChatFormat], name: str, argument: str) -> None:
    """No name passes that the format reads differently."""
    tools = [spec_of(name, argument)]
    format, call = formats[tool_format], ToolCall(name=name, arguments={argument: "..."})
    tokens = format.encode_reply(Message(role="assistant", tool_calls=(call,)))
    if format.parse(tokens, tools).message.tool_calls == (call,):
        validate_tools(format, tools)
        return
    assert tool_format not in ANY_NAME
    with pytest.raises(ConfigError, match=re.escape(repr(name))):
        validate_tools(format, tools)


@pytest.mark.parametrize(
    ("tool_format", "schema", "value", "problem"),
    [
        ("qwen3_coder", {}, "94110", "94110"),
        ("glm", {}, "true", "True"),
        ("qwen3_coder", {"type": "string"}, "94110", ""),
        ("hermes", {}, "94110", ""),
    ],
)
def test_values_of_gold_calls_are_read_exactly(
    tool_format: str, schema: dict[str, Any], value: str, problem: str, formats: dict[str, ChatFormat]
) -> None:
    format = formats[tool_format]
    tool = ToolSpec(name="ship", description="", parameters={"type": "object", "properties": {"zip": schema}})
    reply = Message(role="assistant", tool_calls=(ToolCall(name="ship", arguments={"zip": value}),))
    tokens = format.encode_reply(reply)
    validate_reply(format, reply, tokens, [tool], exactly=False)
    if problem:
        with pytest.raises(ConfigError, match=rf"zip = '{value}' is read as {problem};.*format\.tool_format"):
            validate_reply(format, reply, tokens, [tool], exactly=True)
    else:
        validate_reply(format, reply, tokens, [tool], exactly=True)
