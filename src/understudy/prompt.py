"""A person at a prompt: asking for a line, reading a call out of it, and printing a conversation.

Nothing that is typed is executed; arguments are literals.
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

from understudy.errors import nearest
from understudy.formats.dialects.pythonic import literal
from understudy.formats.schema import kinds
from understudy.messages import Message, ToolCall, ToolSpec

with contextlib.suppress(ModuleNotFoundError):  # not everywhere there
    import readline  # noqa: F401  # gives `input` a history and keys to edit a line

_CALL = re.compile(r"([\w.-]*)\s*(.*)", re.DOTALL)
_LIKE_A_CALL = re.compile(r"\(.*\)|\{.*\}|\w+=\S+(?:\s+\w+=\S+)*", re.DOTALL)
_ARGUMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
_SPEAKER = re.compile(r" *(\w*) [|>] ")
_STYLES = {"system": "dim", "user": "green", "assistant": "cyan", "agent": "cyan", "tool": "yellow"}


def ask_person(prompt: str) -> str:
    """`input`, which Ctrl-C ends at once: a running event loop would take note of it and go on waiting for the line."""
    if threading.current_thread() is not threading.main_thread():
        return input(prompt)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(prompt)
    finally:
        signal.signal(signal.SIGINT, handler)


def print_coloured(text: str) -> None:
    """Print a conversation with a colour for each speaker, where the terminal has colours."""
    console, style = Console(highlight=False, soft_wrap=True), ""
    for line in map(printable, text.splitlines() or [""]):
        speaker = _SPEAKER.match(line)
        style = (_STYLES.get(speaker[1], "") if speaker[1] else style) if speaker else ""
        console.print(Text(line, style))


def printable(text: str) -> str:
    """A text that a model may have written, without what a terminal would obey (escapes, bells, marks of direction)."""
    harmless = (c.isprintable() or c in "\n\t" or category(c) == "Zs" for c in text)
    return "".join(c if shown else "\N{REPLACEMENT CHARACTER}" for c, shown in zip(text, harmless, strict=True))


def read_reply(line: str, tools: Sequence[ToolSpec]) -> Message:
    """A typed line as a reply: a call where it is a tool's name and a bracket, text else. Nothing is executed."""
    name, rest = _CALL.match(line).groups()  # type: ignore[union-attr]  # the pattern matches any line
    known = {tool.name: tool for tool in tools}
    if name not in known and _LIKE_A_CALL.fullmatch(rest):
        raise ValueError(f"no tool {nearest(name, known)}")
    arguments = _arguments(rest, known[name].parameters.get("properties", {})) if name in known else None
    if arguments is None:
        return Message(role="assistant", content=line)
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


def _arguments(text: str, properties: Mapping[str, Any]) -> dict[str, Any] | None:
    """What stands behind a tool's name, as arguments: `(a="b")`, `{"a": "b"}` or `a=b`; None if it is plain text."""
    if text[:1] in ("", "{"):
        return dict(json.loads(text or "{}"))
    if text.startswith("("):
        return _literals(text)
    if not _ARGUMENT.match(text):
        return None
    return read_arguments(shlex.split(text), properties)


def read_arguments(words: Sequence[str], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Words like `a=b`, or one that is a JSON object, as arguments for a schema's properties."""
    if len(words) == 1 and words[0].startswith("{"):
        return dict(json.loads(words[0]))
    pairs = [_ARGUMENT.fullmatch(word) for word in words]
    if None in pairs:
        raise ValueError("put what has spaces in quotes, such as reason='no longer needed'")
    return {pair[1]: _typed(pair[2], properties.get(pair[1], {})) for pair in pairs if pair}


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """A typed word as the value that the schema wants; where it cannot be one it stays text, and the tool says so."""
    wanted = kinds(schema)
    if "string" in wanted:
        return text
    value = _json(text)
    if "array" not in wanted or isinstance(value, list):
        return value
    parts = (part.strip() for part in text.strip("[]").split(","))
    return [_typed(part, schema.get("items", {})) for part in parts if part]


def _json(text: str) -> Any:
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false", "null") else text)
    except json.JSONDecodeError:
        return text


def _literals(text: str) -> dict[str, Any]:
    """The keyword arguments of `(name=literal, …)`."""
    try:
        call = ast.parse(f"call{text}", mode="eval").body
    except SyntaxError as e:
        raise ValueError(e.msg) from e
    if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
        raise ValueError('give each argument its name, such as order_id="W1"')
    return {str(k.arg): literal(k.value) for k in call.keywords}


def tool_list(tools: Sequence[ToolSpec]) -> str:
    """The tools to read: how each is called, and its first line."""
    return "\n".join(f"  {_signature(tool)}\n      {tool.description.partition(chr(10))[0]}" for tool in tools)


def _signature(tool: ToolSpec) -> str:
    required = tool.parameters.get("required", [])
    names = tool.parameters.get("properties", {})
    return f"{tool.name}({', '.join(n if n in required else f'[{n}]' for n in names)})"
