"""Checks that a chat format reads the tool calls that it writes.

A format may write a call that its parser reads as text, with another name or with another value: a name with a space,
or a number where the tool takes text. SFT would teach such a reply, and no episode could earn its reward with it.
"""

from collections.abc import Sequence

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall, ToolSpec, assign_call_ids
from understudy.core.tasks import Task
from understudy.formats.chat_format import ChatFormat
from understudy.formats.parsing.json_calls import json_equal
from understudy.formats.signature import example_call

_REMEDY = "rename it, or set format.tool_format to another format, such as hermes or json"


def validate_tools(format: ChatFormat, tools: Sequence[ToolSpec]) -> None:
    """Raise ConfigError if the format cannot read an example call of each tool with all its arguments."""
    for tool in tools:
        every = {**tool.parameters, "required": [*tool.parameters.get("properties", {})]}
        reply = Message(role="assistant", tool_calls=(example_call(tool.replace(parameters=every)),))
        validate_reply(format, reply, format.encode_reply(reply), tools, exactly=False)


def validate_gold(format: ChatFormat, task: Task, tools: Sequence[ToolSpec]) -> None:
    """Raise ConfigError if the format cannot express a gold call of a task, which no reply can then make."""
    for number, turn in enumerate(task.gold_turns):
        reply = assign_call_ids(turn, number)
        validate_reply(format, reply, format.encode_reply(reply), tools, exactly=True)


def validate_reply(
    format: ChatFormat, reply: Message, tokens: Sequence[int], tools: Sequence[ToolSpec], exactly: bool
) -> None:
    """Raise ConfigError if `tokens`, which the format wrote for a reply, are not read as its calls.

    `exactly` compares the values of arguments too. Conversations of other programs may have values of another type than
    the tool's schema, which are the same text in formats without quotes.
    """
    if not reply.tool_calls:
        return
    read = format.parse(tokens, tools).message.tool_calls
    for i, call in enumerate(reply.tool_calls):
        problem = _difference(call, read[i] if i < len(read) else None, exactly)
        if problem:
            raise ConfigError(f"the model's chat format cannot express a call of the tool {call.name!r}: {problem}")
    if len(read) > len(reply.tool_calls):
        names = ", ".join(call.name for call in reply.tool_calls)
        raise ConfigError(
            f"the model's chat format reads a call of {read[-1].name!r} in the arguments of {names}; {_REMEDY}"
        )


def _difference(call: ToolCall, read: ToolCall | None, exactly: bool) -> str:
    """Return why a call that was read is not the one that was written, or nothing."""
    if read is None:
        return f"it is read as text; {_REMEDY}"
    if read.parse_error:
        return f"it is read as malformed ({read.parse_error}); {_REMEDY}"
    if read.name != call.name:
        return f"its name is read as {read.name!r}; {_REMEDY}"
    for key, value in call.arguments.items():
        if key not in read.arguments:
            return f"its argument {key!r} is not read; {_REMEDY}"
        if exactly and not json_equal(read.arguments[key], value):
            return (
                f"its argument {key} = {value!r} is read as {read.arguments[key]!r}; state the argument's type in the "
                "tool's schema, or set format.tool_format to one that writes JSON, such as hermes or json"
            )
    if len(read.arguments) > len(call.arguments):
        return f"it is read with other arguments: {sorted(read.arguments)}; {_REMEDY}"
    return ""
