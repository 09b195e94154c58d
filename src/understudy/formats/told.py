"""Tools told in words, for models and endpoints that know none, and for whoever chooses how calls are written.

The system message tells of the tools, a line each, with a call as an example; calls stand in the text of replies, in
any dialect, and results in a user's message. A template without system messages gets that text before the first user's.
"""

from collections.abc import Sequence
from itertools import groupby

from understudy.errors import ConfigError
from understudy.formats.jinja import Template
from understudy.formats.parse import render as written
from understudy.formats.signature import example, signature
from understudy.messages import Message, ToolCall, ToolSpec

_SYSTEM, _USER = Message(role="system", content="policy"), Message(role="user", content="hello")


def told(render: Template, dialect: str) -> Template:
    """The template for conversations in which calls and results are text."""
    show = shown(render, dialect)

    def rendered(messages: Sequence[Message], tools: Sequence[ToolSpec] = (), prompt: bool = True) -> str:
        return show(_plain(messages, dialect), tools, prompt=prompt)

    return rendered


def shown(render: Template, dialect: str) -> Template:
    """The template with its tools told in the system message, for one that has calls but shows no tools."""
    takes_system = _takes_system(render)

    def rendered(messages: Sequence[Message], tools: Sequence[ToolSpec] = (), prompt: bool = True) -> str:
        said = _introduced(messages, tools, dialect)
        if said and said[0].role == "system" and not takes_system:
            said = _joined([_USER.replace(content=said[0].content), *said[1:]])
        return render(said, (), prompt=prompt)

    return rendered


def spelled(messages: Sequence[Message], tools: Sequence[ToolSpec], dialect: str) -> list[Message]:
    """A conversation for whoever takes text alone, such as an endpoint without tool calls."""
    return _introduced(_plain(messages, dialect), tools, dialect)


def instructions(tools: Sequence[ToolSpec], dialect: str) -> str:
    """What a model is told of its tools."""
    lines = "\n".join(map(signature, tools))
    return f"# Tools\n{lines}\nTo use a tool, reply with only\n{written('', (example(tools[0]),), dialect)}"


def _takes_system(render: Template) -> bool:
    try:
        return _SYSTEM.content in render([_SYSTEM, _USER])
    except ConfigError:
        return False


def _introduced(messages: Sequence[Message], tools: Sequence[ToolSpec], dialect: str) -> list[Message]:
    """The conversation with the tools told at the end of its system message."""
    if not tools:
        return list(messages)
    own = messages[0].role == "system" if messages else False
    said = [messages[0].content] if own else []
    return [_SYSTEM.replace(content="\n\n".join([*said, instructions(tools, dialect)])), *messages[own:]]


def _plain(messages: Sequence[Message], dialect: str) -> list[Message]:
    """The conversation with calls and results as text."""
    return _joined([_text(message, dialect) for message in messages])


def _text(message: Message, dialect: str) -> Message:
    """A call that could not be read is written with its name alone, as `messages.to_wire` does."""
    if message.role == "assistant":
        calls = [ToolCall(name=c.name or "unknown") if c.malformed else c for c in message.tool_calls]
        return message.replace(content=written(message.content, calls, dialect), tool_calls=())
    if message.role != "tool":
        return message
    if dialect == "react":
        return _USER.replace(content=f"Observation: {message.content}")
    return _USER.replace(content=f"<tool_response>\n{message.content}\n</tool_response>")


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Users' messages that follow each other are one: many templates want turns to alternate."""
    joined: list[Message] = []
    for role, group in groupby(messages, key=lambda message: message.role):
        turns = list(group)
        joined += [turns[0].replace(content="\n\n".join(t.content for t in turns))] if role == "user" else turns
    return joined
