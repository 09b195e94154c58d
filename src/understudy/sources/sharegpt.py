"""ShareGPT turns, {from, value}, as LLaMA-Factory reads them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from understudy.core.items import InvalidField
from understudy.sources.row_messages import WireMessage, parse_field, read_weight, text_message

RESULT_SEPARATOR = "\n</tool_response>\n<tool_response>\n"
"""Separates the results of several calls in one observation."""
TOOL_CALL_START, TOOL_CALL_END = "<tool_call>", "</tool_call>"
"""Encloses the calls of a `function_call` that also has text."""
TOOL_RESULT_START = "<tool_response>"

_ROLES = {
    "system": "system",
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "bot"), "assistant"),
}
_CALL_TAGS = ("function_call", "function", "tool_call")
_RESULT_TAGS = ("observation", "tool", "tool_response", "function_response")


def messages_from_sharegpt(turns: Sequence[Any]) -> list[WireMessage]:
    """Return the turns as messages of the chat completions API. Turns that are such messages do not change."""
    if turns and all(isinstance(turn, dict) and "role" in turn for turn in turns):
        return list(turns)
    messages: list[WireMessage] = []
    for number, turn in enumerate(turns):
        field = f"conversations.{number}"
        if not isinstance(turn, dict):
            raise InvalidField(field, "it is not an object with a string as value")
        tag, text = turn.get("from"), turn.get("value")
        if tag in (*_CALL_TAGS, *_RESULT_TAGS) and isinstance(text, dict | list):
            text = json.dumps(text, ensure_ascii=False)
        if not isinstance(text, str):
            raise InvalidField(field, "it is not an object with a string as value")
        is_reply = tag in _CALL_TAGS or _ROLES.get(str(tag)) == "assistant"
        weight = read_weight(turn, is_reply, field, may_be_zero=True)
        if tag in _CALL_TAGS:
            messages.append(_calling_message(text, field) | ({} if weight else {"weight": 0}))
        elif tag in _RESULT_TAGS:
            messages += _result_messages(text, messages[-1] if messages else {}, field)
        elif isinstance(tag, str) and tag in _ROLES:
            given = {key: value for key, value in turn.items() if key not in ("from", "value", "role", "content")}
            messages.append(given | text_message(_ROLES[tag], text))
        else:
            allowed = ", ".join((*_ROLES, *_CALL_TAGS, *_RESULT_TAGS))
            raise InvalidField(f"{field}.from", f"unknown tag {tag!r}; allowed: {allowed}")
    return messages


def _calling_message(text: str, field: str) -> WireMessage:
    """Parse a `function_call`: JSON of one call or a list, or a text with that in a `<tool_call>`."""
    content, inner = "", text
    if not text.lstrip().startswith(("{", "[")) and TOOL_CALL_START in text and TOOL_CALL_END in text:
        content, _, inner = text.partition(TOOL_CALL_START)
        content, inner = content.removesuffix("\n"), inner.rpartition(TOOL_CALL_END)[0]
    calls = parse_field(inner, field, "a function_call that is not JSON")
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and call.keys() >= {"name", "arguments"} for call in calls):
        raise InvalidField(field, "a function_call without a name and arguments")
    wired = [{"function": {"name": call["name"], "arguments": call["arguments"]}} for call in calls]
    return {"role": "assistant", "content": content, "tool_calls": wired}


def _result_messages(text: str, before: Mapping[str, Any], field: str) -> list[WireMessage]:
    """Split an observation into one message for each earlier call. `row_messages` splits results in tags."""
    if text.lstrip().startswith(TOOL_RESULT_START):
        return [text_message("tool", text)]
    count = len(before.get("tool_calls") or [])
    parts = text.split(RESULT_SEPARATOR) if count > 1 else [text]
    if len(parts) != max(1, count):
        raise InvalidField(field, f"an observation of {len(parts)} results after {count} calls")
    return [text_message("tool", part) for part in parts]
