"""Tool calls that a person types: `tool a=b`, `tool(a="b")` or `tool {"a": "b"}`.

Typed text is never executed: arguments are parsed as literals.
"""

import ast
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from understudy.core.errors import did_you_mean
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.formats.parsing.schema import member_schema, schema_types
from understudy.formats.tool_parsers.pythonic import literal_value

_CALL = re.compile(r"([\w.-]*)\s*(.*)", re.DOTALL)
_LIKE_A_CALL = re.compile(r"\(.*\)|\{.*\}|\w+=\S+(?:\s+\w+=\S+)*", re.DOTALL)
_ARGUMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)


def parse_typed_reply(line: str, tools: Sequence[ToolSpec]) -> Message:
    """Return a typed line as an assistant message: a tool call if it is a tool name with arguments, else text.

    Raise ValueError if the line looks like a call of an unknown tool or its arguments cannot be parsed.
    """
    name, rest = _CALL.match(line).groups()  # type: ignore[union-attr]  # the pattern matches any line
    known = {tool.name: tool for tool in tools}
    if name not in known and _LIKE_A_CALL.fullmatch(rest):
        raise ValueError(f"no tool {did_you_mean(name, known)}")
    arguments = _arguments(rest, known[name].parameters) if name in known else None
    if arguments is None:
        return Message(role="assistant", content=line)
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


def _arguments(text: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments after a tool name: `(a="b")`, `{"a": "b"}` or `a=b`; None if it is plain text."""
    if text[:1] in ("", "{"):
        return dict(json.loads(text or "{}"))
    if text.startswith("("):
        return _literals(text)
    if not _ARGUMENT.match(text):
        return None
    return parse_typed_arguments(shlex.split(text), schema)


def parse_typed_arguments(words: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments from words like `a=b`, or from one JSON object. `schema` is that of the tool's arguments.

    Raise ValueError if a word is not `name=value`.
    """
    if len(words) == 1 and words[0].startswith("{"):
        return dict(json.loads(words[0]))
    pairs = [_ARGUMENT.fullmatch(word) for word in words]
    if None in pairs:
        raise ValueError("arguments must be name=value; quote values with spaces, such as reason='no longer needed'")
    return {pair[1]: _coerce(pair[2], member_schema(schema, pair[1], schema), schema) for pair in pairs if pair}


def _coerce(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Return a typed word as a value of the schema's type.

    If the word is not such a value, return it as text, which the tool then rejects.
    """
    types = schema_types(schema, root)
    if "string" in types:
        return text
    value = _json(text)
    if "array" not in types or isinstance(value, list):
        return value
    parts = (part.strip() for part in text.strip("[]").split(","))
    return [_coerce(part, member_schema(schema, "item", root), root) for part in parts if part]


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
