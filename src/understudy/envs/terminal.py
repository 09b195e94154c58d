"""Terminal input and output: read a line, parse it as a reply or tool call, and print a conversation.

Typed text is never executed: arguments are parsed as literals.
"""

import ast
import contextlib
import json
import re
import shlex
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from unicodedata import category

from rich.console import Console
from rich.text import Text

from understudy.core.errors import did_you_mean
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.formats.parsing.schema import schema_types
from understudy.formats.tool_parsers.pythonic import literal_value

with contextlib.suppress(ModuleNotFoundError):  # not available on every platform
    import readline  # noqa: F401  # gives `input` a history and line editing

_CALL = re.compile(r"([\w.-]*)\s*(.*)", re.DOTALL)
_LIKE_A_CALL = re.compile(r"\(.*\)|\{.*\}|\w+=\S+(?:\s+\w+=\S+)*", re.DOTALL)
_ARGUMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
_SPEAKER = re.compile(r" *(\w*) [|>] ")
_STYLES = {"system": "dim", "user": "green", "assistant": "cyan", "agent": "cyan", "tool": "yellow", "db": "magenta"}


class PersonLeft(BaseException):
    """A person left an episode: /quit, end of input, or Ctrl-C.

    It is no Exception, so that `core.user_code` does not report it, and no KeyboardInterrupt, because asyncio prints
    the traceback of one that is raised in a task.
    """


class InputEnded(PersonLeft):
    """The input ended (Ctrl-D): no further line can be read."""


def read_line(prompt: str) -> str:
    """Return a line from `input`. Raise InputEnded at its end, and PersonLeft at once at Ctrl-C.

    It works in an event loop too.
    """
    try:
        if threading.current_thread() is not threading.main_thread():
            return input(prompt)
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return input(prompt)
        finally:
            signal.signal(signal.SIGINT, handler)
    except EOFError:
        raise InputEnded from None
    except KeyboardInterrupt:
        raise PersonLeft from None


def print_conversation(text: str) -> None:
    """Print a conversation with one colour per speaker if the terminal supports colours."""
    console = Console(highlight=False, soft_wrap=True)
    style = ""
    for line in map(escape_control_characters, text.splitlines() or [""]):
        speaker = _SPEAKER.match(line)
        if not speaker:
            style = ""
        elif speaker[1]:  # a continuation line has no name and keeps the style
            style = _STYLES.get(speaker[1], "")
        console.print(Text(line, style))


def escape_control_characters(text: str) -> str:
    """Return the text with terminal control characters (escapes, bells, direction marks) replaced by U+FFFD."""
    return "".join(c if _is_safe(c) else "\N{REPLACEMENT CHARACTER}" for c in text)


def _is_safe(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or category(character) == "Zs"


def parse_typed_reply(line: str, tools: Sequence[ToolSpec]) -> Message:
    """Return a typed line as an assistant message: a tool call if it is a tool name with arguments, else text.

    Raise ValueError if the line looks like a call of an unknown tool or its arguments cannot be parsed.
    """
    name, rest = _CALL.match(line).groups()  # type: ignore[union-attr]  # the pattern matches any line
    known = {tool.name: tool for tool in tools}
    if name not in known and _LIKE_A_CALL.fullmatch(rest):
        raise ValueError(f"no tool {did_you_mean(name, known)}")
    arguments = _arguments(rest, known[name].parameters.get("properties", {})) if name in known else None
    if arguments is None:
        return Message(role="assistant", content=line)
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


def _arguments(text: str, properties: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments after a tool name: `(a="b")`, `{"a": "b"}` or `a=b`; None if it is plain text."""
    if text[:1] in ("", "{"):
        return dict(json.loads(text or "{}"))
    if text.startswith("("):
        return _literals(text)
    if not _ARGUMENT.match(text):
        return None
    return parse_typed_arguments(shlex.split(text), properties)


def parse_typed_arguments(words: Sequence[str], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments from words like `a=b`, or from one JSON object. `properties` are those of the tool's schema.

    Raise ValueError if a word is not `name=value`.
    """
    if len(words) == 1 and words[0].startswith("{"):
        return dict(json.loads(words[0]))
    pairs = [_ARGUMENT.fullmatch(word) for word in words]
    if None in pairs:
        raise ValueError("arguments must be name=value; quote values with spaces, such as reason='no longer needed'")
    return {pair[1]: _coerce(pair[2], properties.get(pair[1], {})) for pair in pairs if pair}


def _coerce(text: str, schema: Mapping[str, Any]) -> Any:
    """Return a typed word as a value of the schema's type.

    If the word is not such a value, return it as text, which the tool then rejects.
    """
    types = schema_types(schema)
    if "string" in types:
        return text
    value = _json(text)
    if "array" not in types or isinstance(value, list):
        return value
    parts = (part.strip() for part in text.strip("[]").split(","))
    return [_coerce(part, schema.get("items", {})) for part in parts if part]


def _json(text: str) -> Any:
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false", "null") else text)
    except json.JSONDecodeError:
        return text


def _literals(text: str) -> dict[str, Any]:
    """Return the keyword arguments of `(name=literal, …)`."""
    try:
        call = ast.parse(f"call{text}", mode="eval").body
    except SyntaxError as e:
        raise ValueError(e.msg) from e
    if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
        raise ValueError('arguments must have names, such as order_id="W1"')
    return {str(k.arg): literal_value(k.value) for k in call.keywords}


def format_tool_list(tools: Sequence[ToolSpec]) -> str:
    """Return the tools as text for a person: the signature and the first line of the description of each."""
    return "\n".join(f"  {_signature(tool)}\n      {tool.description.partition(chr(10))[0]}" for tool in tools)


def _signature(tool: ToolSpec) -> str:
    required = tool.parameters.get("required", [])
    names = tool.parameters.get("properties", {})
    return f"{tool.name}({', '.join(n if n in required else f'[{n}]' for n in names)})"
