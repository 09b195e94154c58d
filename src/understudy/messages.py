"""Messages, tool calls and tool descriptions, and their OpenAI wire format.

Source of the wire format: the chat completions API (https://platform.openai.com/docs/api-reference/chat).
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from understudy.records import Record
from understudy.values import read

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(Record):
    """One call that the model wrote. `malformed` says why it could not be read; such a call is answered, not run."""

    name: str
    arguments: dict[str, Any] = {}
    id: str = ""
    malformed: str = ""


class ToolSpec(Record):
    """What the model is told of a tool; `parameters` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]
    aliases: dict[str, str] = {}
    """Other names that models give an argument, and its own; read in calls, never shown."""


class Message(Record):
    """One utterance. A tool message answers the call whose id it carries."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


def identified(message: Message, turn: int) -> Message:
    """The reply of that turn with ids for the calls that have none, unique in their episode."""
    if not message.tool_calls:
        return message
    calls = enumerate(message.tool_calls)
    return message.replace(tool_calls=tuple(c if c.id else c.replace(id=f"call_{turn}_{i}") for i, c in calls))


def to_wire(message: Message) -> dict[str, Any]:
    """The message as the chat completions API takes it.

    A malformed call travels with its name and no arguments, so that the error which answers it has a call to answer.
    """
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        wire["tool_calls"] = [_call_to_wire(call) for call in message.tool_calls]
    if message.tool_call_id:
        wire["tool_call_id"] = message.tool_call_id
    return wire


def _call_to_wire(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name or "unknown", "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def from_wire(wire: Mapping[str, Any]) -> Message:
    """The inverse of `to_wire`. Arguments that are not a JSON object, as strictly as in text, make the call malformed.

    None are invented, and of two values of one key none is chosen.
    """
    calls = tuple(_call_from_wire(call) for call in wire.get("tool_calls") or ())
    return Message(
        role=wire["role"],
        content=wire.get("content") or "",
        tool_calls=calls,
        tool_call_id=wire.get("tool_call_id") or "",
    )


def _call_from_wire(wire: Mapping[str, Any]) -> ToolCall:
    function, identity = wire["function"], wire.get("id") or ""
    if malformed := wire.get("malformed"):  # as our own server says why it could not read a call
        return ToolCall(name=function["name"], id=identity, malformed=malformed)
    raw = function.get("arguments") or "{}"
    try:
        arguments = read(raw if isinstance(raw, str) else json.dumps(raw), 1, "the arguments are")
    except (ValueError, RecursionError) as e:
        return ToolCall(name=function["name"], id=identity, malformed=str(e))
    if not isinstance(arguments, dict):
        return ToolCall(name=function["name"], id=identity, malformed="the arguments are not a JSON object")
    return ToolCall(name=function["name"], arguments=arguments, id=identity)


def spec_to_wire(spec: ToolSpec) -> dict[str, Any]:
    """The tool as the chat completions API, and chat templates, take it."""
    return {"type": "function", "function": spec.model_dump(exclude={"aliases"})}
