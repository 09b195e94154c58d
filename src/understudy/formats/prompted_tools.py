"""Tools described in the prompt, for models and endpoints without native tool calls, and for a chosen tool format.

The system message lists the tools, one a line, with an example call. Calls stand in the text of replies, in any tool
format. Results stand in a user message; whoever renders escapes the text that marks them everywhere else
(`control_text`). If a template has no system messages, the list comes before the first user message.
"""

from collections.abc import Sequence
from itertools import groupby

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.formats.control_text import escape_markers, escape_results
from understudy.formats.jinja import ChatTemplate
from understudy.formats.parsing.parse import render_reply
from understudy.formats.signature import example_call, tool_signature
from understudy.formats.tool_parsers import hermes

_SYSTEM, _USER = Message(role="system", content="policy"), Message(role="user", content="hello")


def template_with_text_tools(render: ChatTemplate, tool_format: str) -> ChatTemplate:
    """Return a template whose conversations have tools, calls and results as text."""
    show = template_with_listed_tools(render, tool_format)

    def render_text(messages: Sequence[Message], tools: Sequence[ToolSpec] = (), prompt: bool = True) -> str:
        return show(_without_calls(messages, tool_format), tools, prompt=prompt)

    return render_text


def template_with_listed_tools(render: ChatTemplate, tool_format: str) -> ChatTemplate:
    """Return the template with tools listed in the system message.

    This is for templates that have calls but do not show tools.
    """
    takes_system = _takes_system(render)

    def render_text(messages: Sequence[Message], tools: Sequence[ToolSpec] = (), prompt: bool = True) -> str:
        introduced = _with_tool_list(messages, tools, tool_format)
        if introduced and introduced[0].role == "system" and not takes_system:
            introduced = _merge_user_messages([_USER.replace(content=introduced[0].content), *introduced[1:]])
        return render(introduced, (), prompt=prompt)

    return render_text


def render_as_text(messages: Sequence[Message], tools: Sequence[ToolSpec], tool_format: str) -> list[Message]:
    """Return the conversation with tools, calls and results as text, for an endpoint without tool calls."""
    shown = escape_results(messages, tools, _result_markers(tool_format))
    return _with_tool_list(_without_calls(shown, tool_format), tools, tool_format)


def tool_instructions(tools: Sequence[ToolSpec], tool_format: str) -> str:
    """Return the text that describes the tools to a model."""
    lines = escape_markers("\n".join(map(tool_signature, tools)), _result_markers(tool_format))
    example = render_reply("", (example_call(tools[0]),), tool_format)
    return f"# Tools\n{lines}\nTo use a tool, reply with only\n{example}"


def _takes_system(render: ChatTemplate) -> bool:
    try:
        return _SYSTEM.content in render([_SYSTEM, _USER])
    except ConfigError:
        return False


def _with_tool_list(messages: Sequence[Message], tools: Sequence[ToolSpec], tool_format: str) -> list[Message]:
    """Return the conversation with the tools listed at the end of its system message."""
    if not tools:
        return list(messages)
    instructions = tool_instructions(tools, tool_format)
    if messages and messages[0].role == "system":
        system = messages[0].content
        return [_SYSTEM.replace(content=f"{system}\n\n{instructions}"), *messages[1:]]
    return [_SYSTEM.replace(content=instructions), *messages]


def _without_calls(messages: Sequence[Message], tool_format: str) -> list[Message]:
    """Return the conversation with calls and results as text."""
    return _merge_user_messages([_message_as_text(message, tool_format) for message in messages])


def _message_as_text(message: Message, tool_format: str) -> Message:
    """Return a message with its calls as text. A malformed call is written with its name alone."""
    if message.role == "assistant":
        calls = [ToolCall(name=c.name or "unknown") if c.parse_error else c for c in message.tool_calls]
        return Message(role="assistant", content=render_reply(message.content, calls, tool_format))
    if message.role != "tool":
        return message
    before, *after = _result_markers(tool_format)
    return _USER.replace(
        content="\n".join((before, message.content, *after)) if after else f"{before} {message.content}"
    )


def _result_markers(tool_format: str) -> Sequence[str]:
    """Return the text before a result, and the text after it if there is one."""
    return ("Observation:",) if tool_format == "react" else (hermes.RESULT, hermes.RESULT_END)


def _merge_user_messages(messages: Sequence[Message]) -> list[Message]:
    """Merge consecutive user messages, because many templates require alternating turns."""
    merged: list[Message] = []
    for role, group in groupby(messages, key=lambda message: message.role):
        turns = list(group)
        if role == "user":
            turns = [turns[0].replace(content="\n\n".join(turn.content for turn in turns))]
        merged += turns
    return merged
