"""Messages, tool calls and tool descriptions, and their OpenAI wire format.

Source: the chat completions API, https://platform.openai.com/docs/api-reference/chat.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from understudy.core.json_values import parse_json
from understudy.core.records import Record

Role = Literal["system", "user", "assistant", "tool"]
ERROR_PREFIX = "Error: "
"""Prefix of the tool message for a failed call."""
HIDDEN_FIELDS = {"aliases", "name_aliases"}
"""Fields of a `ToolSpec` that the model does not see."""


class ToolCall(Record):
    """One tool call of the model.

    `parse_error` says why the call could not be parsed. Such a call is answered with an error and never executed.
    """

    name: str
    arguments: dict[str, Any] = {}
    id: str = ""
    parse_error: str = ""
    extra_content: SkipJsonSchema[dict[str, Any]] = Field(default={}, exclude_if=lambda extra: not extra)
    """What an endpoint wants back with the call, such as Gemini's thought signature. Only `ChatModel` reads it: it is
    no part of `message_to_openai`, and no template, grader or example of training data contains it."""


class ToolSpec(Record):
    """The description of a tool that the model sees. `parameters` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]
    aliases: dict[str, str] = {}
    """Alternative argument names that models write, mapped to the real names. They are accepted in calls and never
    shown."""
    name_aliases: SkipJsonSchema[tuple[str, ...]] = Field(default=(), exclude_if=lambda names: not names)
    """Alternative names of the tool that models write. They are accepted in calls and never shown."""

    def resolve_aliases(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call under the parameters' real names.

        If an argument has two names in the call, nothing is renamed, and the tool reports the unknown name.
        """
        renamed = {self.aliases.get(key, key): value for key, value in arguments.items()}
        return renamed if len(renamed) == len(arguments) else dict(arguments)

    def without_aliases(self) -> "ToolSpec":
        """Return the tool as the model sees it."""
        return self.replace(aliases={}, name_aliases=())


class Message(Record):
    """One message. A tool message answers the call with the id `tool_call_id`."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning_content: SkipJsonSchema[str] = Field(default="", exclude_if=lambda text: not text)
    """The model's thoughts, if its endpoint wants them back, such as DeepSeek's. As with `ToolCall.extra_content`, only
    `ChatModel` reads them: users, templates and training data do not get them."""
    weight: SkipJsonSchema[Literal[0, 1]] = Field(default=1, exclude_if=lambda weight: weight == 1)
    """0 for a reply in a file of demonstrations that is not trained on, as in OpenAI's fine-tuning."""


def assign_call_ids(message: Message, turn: int | str) -> Message:
    """Return the reply with ids for calls that have none or that of an earlier call of the reply, as some endpoints
    send. `turn` makes the ids unique in their episode.
    """
    ids = [call.id for call in message.tool_calls]
    if all(ids) and len(set(ids)) == len(ids):
        return message
    calls = (
        call if call.id and call.id not in ids[:i] else call.replace(id=f"call_{turn}_{i}")
        for i, call in enumerate(message.tool_calls)
    )
    return message.replace(tool_calls=tuple(calls))


def format_call(call: ToolCall) -> str:
    """Return a call as text, with long values cut."""
    return f"{call.name}({', '.join(f'{name}={_short(value)}' for name, value in call.arguments.items())})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text):,} characters)"


def strip_endpoint_data(message: Message) -> Message:
    """Return the message without what only the endpoint that wrote it understands."""
    if not message.reasoning_content and not any(call.extra_content for call in message.tool_calls):
        return message
    calls = tuple(call.replace(extra_content={}) for call in message.tool_calls)
    return message.replace(tool_calls=calls, reasoning_content="")


def message_to_openai(message: Message) -> dict[str, Any]:
    """Return the message in the wire format.

    A malformed call is sent with its name and no arguments, so that the error message has a call to answer. Data of the
    endpoint that wrote the message is left out.
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


def message_from_openai(wire: Mapping[str, Any]) -> Message:
    """Return the message that a wire message describes: the inverse of `message_to_openai`.

    A call is malformed if its arguments are not a JSON object or if `json_values.parse_json` rejects them, for example
    because of a duplicate key.
    """
    calls = tuple(_call_from_wire(call) for call in wire.get("tool_calls") or ())
    return Message(
        role=wire["role"],
        content=wire.get("content") or "",
        tool_calls=calls,
        tool_call_id=wire.get("tool_call_id") or "",
    )


def join_text_parts(content: Any) -> Any:
    """Return the text of content that is a list of {"type": "text", "text": …}. Return other content as it is.

    Other keys of such parts, such as `cache_control`, have no effect on a model here.
    """
    if not isinstance(content, list):
        return content
    are_texts = all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content)
    return "".join(part["text"] for part in content) if are_texts else content


def order_tool_results(messages: Iterable[Message]) -> list[Message]:
    """Return the messages, the results after each reply in the order of its calls. Chat templates expect this order."""
    ordered: list[Message] = []
    places: dict[str, int] = {}
    for is_result, group in groupby(messages, key=lambda message: message.role == "tool"):
        if is_result:
            ordered += sorted(group, key=lambda result: places.get(result.tool_call_id, len(places)))
            continue
        ordered += group
        places = {call.id: i for i, call in enumerate(ordered[-1].tool_calls)}
    return ordered


def _call_from_wire(wire: Mapping[str, Any]) -> ToolCall:
    function = wire["function"]
    call_id = wire.get("id") or ""
    if malformed := wire.get("malformed"):  # a key that `understudy serve` adds to unparsable calls
        return ToolCall(name=function["name"], id=call_id, parse_error=malformed)
    raw = function.get("arguments") or "{}"
    try:
        arguments = parse_json(raw if isinstance(raw, str) else json.dumps(raw), 1, "the arguments are")
    except (ValueError, RecursionError) as e:
        return ToolCall(name=function["name"], id=call_id, parse_error=str(e))
    if not isinstance(arguments, dict):
        return ToolCall(name=function["name"], id=call_id, parse_error="the arguments are not a JSON object")
    return ToolCall(name=function["name"], arguments=arguments, id=call_id)


def tool_to_openai(spec: ToolSpec) -> dict[str, Any]:
    """Return the tool in the wire format, which chat templates take too."""
    return {"type": "function", "function": spec.model_dump(exclude=HIDDEN_FIELDS)}


def index_tools(specs: Iterable[ToolSpec]) -> dict[str, ToolSpec]:
    """Return tools by name and by alias. An alias that is another tool's name has no effect."""
    specs = tuple(specs)
    by_alias = {alias: spec for spec in specs for alias in spec.name_aliases}
    return by_alias | {spec.name: spec for spec in specs}
