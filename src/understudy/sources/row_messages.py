"""Convert the messages and tools of a row to the form that `examples` reads: that of the chat completions API."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from understudy.core.items import InvalidField
from understudy.core.messages import join_text_parts

Row = Mapping[str, Any]
WireMessage = dict[str, Any]
"""A message of the chat completions API."""

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_RESULT = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_IGNORED = ("weight", "name")
"""Columns of a message that no model sees."""
_IGNORED_IF_EMPTY = ("annotations", "audio", "parsed", "refusal")
"""Columns of a reply in the SDK of OpenAI."""


def text_message(role: str, text: str) -> WireMessage:
    """Return a message with a text."""
    return {"role": role, "content": text}


def parse_field(text: str, field: str, problem: str) -> Any:
    """Return the value of a JSON text. Raise InvalidField with `problem` if it is not JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as e:
        raise InvalidField(field, f"{problem}: {e}") from e


def normalize_messages(messages: Sequence[Any], *, allow_empty_replies: bool = False) -> list[WireMessage]:
    """Return messages without null columns and weights. Calls without ids get ids, and so do their results.

    Calls and results in the tags of Hermes (`<tool_call>`, `<tool_response>`) become calls and results. Raise
    InvalidField for a message of another form, and for an empty reply unless it is allowed.
    """
    normalized = [_normalize_message(message, f"messages.{i}") for i, message in enumerate(messages)]
    for number, message in enumerate(normalized):
        if _is_empty_reply(message) and not allow_empty_replies:
            raise InvalidField(f"messages.{number}", "neither content nor tool_calls")
    return _with_call_ids([part for message in normalized for part in _split_results(message)])


def normalize_tools(row: Row) -> list[Any]:
    """Return the tools of a row, which may be JSON text or beside the messages in `input`, without their wrappers."""
    inner = row["input"] if isinstance(row.get("input"), dict) else row
    tools = inner.get("tools") or []
    tools = parse_field(tools, "tools", "not JSON") if isinstance(tools, str) else tools
    if not isinstance(tools, list):
        raise InvalidField("tools", "a list of tools is needed")
    return [_normalize_tool(tool) for tool in tools]


def _normalize_message(message: Any, field: str) -> WireMessage:
    if not isinstance(message, dict):
        raise InvalidField(field, "it is not an object")
    if message.get("weight") == 0:
        raise InvalidField(f"{field}.weight", "replies with weight 0 are not supported")
    bare = {key: value for key, value in message.items() if value is not None and key not in _IGNORED}
    for key in _IGNORED_IF_EMPTY:
        if not bare.get(key, True):
            del bare[key]
    if "reasoning" in bare:  # the name that OpenRouter and newer versions of vLLM use
        bare.setdefault("reasoning_content", bare.pop("reasoning"))
    if bare.get("role") == "developer":  # OpenAI's newer name of the system message
        bare["role"] = "system"
    if bare.get("tool_calls") == []:
        del bare["tool_calls"]
    elif isinstance(bare.get("tool_calls"), list):
        bare["tool_calls"] = [_normalize_call(call) for call in bare["tool_calls"]]
    if "content" in bare:
        bare["content"] = join_text_parts(bare["content"])
    if not bare.get("tool_calls") and bare.get("role") == "assistant" and isinstance(bare.get("content"), str):
        bare |= _tagged_calls(bare["content"], field)
    return {"content": ""} | bare


def _is_empty_reply(message: WireMessage) -> bool:
    """Return whether a message is the assistant's and says and calls nothing."""
    return message.get("role") == "assistant" and message.get("content") == "" and not message.get("tool_calls")


def _tagged_calls(text: str, field: str) -> WireMessage:
    """Return the text and the calls of a reply that has calls in the tags of Hermes; nothing if it has none."""
    calls = [_parse_call(match[1], field) for match in _CALL.finditer(text)]
    if not calls:
        return {}
    return {"content": "\n".join(filter(None, map(str.strip, _CALL.split(text)[::2]))), "tool_calls": calls}


def _parse_call(text: str, field: str) -> Any:
    call = parse_field(text, field, "a <tool_call> that is not JSON")
    if not isinstance(call, dict) or not call.keys() >= {"name", "arguments"}:
        raise InvalidField(field, "a <tool_call> without a name and arguments")
    return {"function": {"name": call["name"], "arguments": call["arguments"]}}


def _split_results(message: WireMessage) -> list[WireMessage]:
    """Return one message for each result in the tags of Hermes; the message itself if it has no such tags.

    A result with the id of its call is never split: its tags are what the tool returned.
    """
    content = message.get("content")
    is_result = message.get("role") == "tool" and not message.get("tool_call_id")
    results = _RESULT.findall(content) if is_result and isinstance(content, str) else []
    if not results or _RESULT.sub("", str(content)).strip():
        return [message]
    return [{**message, "content": result} for result in results]


def _normalize_call(call: Any) -> Any:
    """Return a call with its name and arguments under `function`. Calls as understudy writes them do not change."""
    if isinstance(call, dict) and isinstance(call.get("arguments"), str) and "function" not in call:
        return {
            "id": call.get("id") or "",
            "function": {key: call[key] for key in ("name", "arguments") if key in call},
        }
    if isinstance(call, dict) and "function" not in call:
        return {key: value for key, value in call.items() if key != "type" and value is not None}
    return call


def _normalize_tool(tool: Any) -> Any:
    """Return a tool without its wrapper and without `strict`, which no model sees. Its description may be missing."""
    function = tool.get("function", tool) if isinstance(tool, dict) else tool
    if not isinstance(function, dict):
        return function
    given = {key: value for key, value in function.items() if value is not None and key not in ("strict", "type")}
    return {"description": "", "parameters": {"type": "object", "properties": {}}} | given


def _with_call_ids(messages: Sequence[WireMessage]) -> list[WireMessage]:
    """Give ids to calls without ids, and to the results after them in order."""
    turn, asked, named = 0, list[str](), list[WireMessage]()
    for message in messages:
        calls = message.get("tool_calls")
        if message.get("role") == "assistant":
            if isinstance(calls, list) and all(isinstance(call, dict) for call in calls):
                calls = [c if c.get("id") else c | {"id": f"call_{turn}_{i}"} for i, c in enumerate(calls)]
                message = message | {"tool_calls": calls}
                asked = [call["id"] for call in calls]
            turn += 1
        elif message.get("role") == "tool" and asked:
            message = {"tool_call_id": asked.pop(0)} | message
        named.append(message)
    return named
