"""Tools for endpoints without tool calls: they are shown in the prompt, and calls are written and read as text.

    messages with calls and results  ->  spelled  ->  messages of text alone  ->  endpoint  ->  text  ->  understood

Calls are written in one of the dialects of `formats`, and read in any, as a model's own are.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from understudy.formats.base import Parsed
from understudy.formats.chatml import wire_text
from understudy.formats.parse import parse, render
from understudy.formats.signature import example
from understudy.messages import Message, ToolCall, ToolSpec

_TOOLS = """\
# Tools
You can use these tools:
%s

To use one, reply with nothing but a call in this form, with the tool's name and arguments for what is shown here:
%s
You are told the result in the next message. Without a call, your reply goes to the user."""


def spelled(messages: Sequence[Message], tools: Sequence[ToolSpec], dialect: str) -> list[Message]:
    """The conversation without calls and results: both are text, and the tools stand at the end of the system text."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    told: list[Message] = []
    for role, group in groupby(messages, key=lambda message: message.role):
        if role == "tool":
            told.append(Message(role="user", content="\n".join(_results(group, names, dialect))))
        else:
            told += [_written(message, dialect) for message in group]
    if not tools:
        return told
    own = bool(told) and told[0].role == "system"
    shown = _TOOLS % ("\n".join(map(wire_text, tools)), render("", (example(tools[0]),), dialect))
    system = f"{told[0].content}\n\n{shown}" if own else shown
    return [Message(role="system", content=system), *told[own:]]


def understood(text: str, tools: Sequence[ToolSpec], dialect: str) -> Parsed:
    """What a reply says and calls."""
    reading = parse(text, dialect, tools)
    message = Message(role="assistant", content=reading.text, tool_calls=reading.calls)
    return Parsed(message, reading.status, reading.other_side, reading.repairs, reading.faults)


def _written(message: Message, dialect: str) -> Message:
    """Calls as text. One that could not be read is written with its name alone, as `messages.to_wire` does."""
    if not message.tool_calls:
        return message
    calls = [ToolCall(name=c.name or "unknown") if c.malformed else c for c in message.tool_calls]
    return Message(role=message.role, content=render(message.content, calls, dialect))


def _results(messages: Iterator[Message], names: dict[str, str], dialect: str) -> Iterator[str]:
    for message in messages:
        head = "Observation" if dialect == "react" else f"Result of {names.get(message.tool_call_id, 'the call')}"
        yield f"{head}: {message.content}"
