"""The Responses API of OpenAI as a translation to chat completions, so that one sampler and one parser serve both.

Only text and function calls are supported, not OpenAI's own tools.

Source: https://platform.openai.com/docs/api-reference/responses
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from understudy.core.messages import Message, ToolCall
from understudy.serve.requests import ApiError

_SHARED = (
    *("model", "stream", "parallel_tool_calls", "user", "metadata", "temperature", "top_p", "seed"),
    *("safety_identifier", "prompt_cache_key"),
)
"""Fields that both APIs have."""
_TRANSLATED = ("input", "instructions", "previous_response_id", "tools", "tool_choice", "text", "max_output_tokens")
_WITHOUT_EFFECT = (
    *("include", "store", "truncation", "reasoning", "service_tier", "stream_options", "prompt_cache_retention"),
    *("top_logprobs", "max_tool_calls", "background"),
)
_TYPES: Mapping[str, tuple[type, ...]] = {
    "input": (str, list),
    "instructions": (str,),
    "previous_response_id": (str,),
    "tools": (list,),
    "text": (dict,),
}
"""Types of the values that are translated. The rest is checked as a field of chat completions."""
_TYPE_NAMES: Mapping[type, str] = {str: "a text", list: "a list", dict: "an object"}
_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal")

Wire = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A request of the Responses API, as the body of a chat-completions request."""

    body: Mapping[str, Any]
    messages: list[Wire]
    """The whole conversation without the instructions, in the form of chat completions."""

    @classmethod
    def parse(cls, body: Mapping[str, Any], conversations: Mapping[str, list[Wire]]) -> "ResponsesRequest":
        """Return a request. `conversations` has the messages up to each earlier response, by its id.

        Raise ApiError for a field, an input item or a tool that is not supported.
        """
        body = {key: value for key, value in body.items() if value is not None}
        if unknown := sorted(body.keys() - {*_SHARED, *_TRANSLATED, *_WITHOUT_EFFECT}):
            raise ApiError(f"unrecognized request argument: {unknown[0]}", unknown[0], "unknown_parameter")
        for name, types in _TYPES.items():
            if not isinstance(body.get(name), (*types, type(None))):
                allowed = " or ".join(_TYPE_NAMES[each] for each in types)
                raise ApiError(f"{name}: expected {allowed}", name, "invalid_type")
        previous = body.get("previous_response_id")
        if previous is not None and previous not in conversations:
            text = f"previous_response_id: this episode has no response {previous!r}"
            raise ApiError(text, "previous_response_id", "previous_response_not_found")
        messages = [dict(message) for message in conversations[previous]] if previous else []
        given = body.get("input") or []
        for place, item in enumerate([{"role": "user", "content": given}] if isinstance(given, str) else given):
            _append(messages, item, f"input[{place}]")
        return cls(body, messages)

    @property
    def stream(self) -> bool:
        """Whether the response is streamed."""
        return bool(self.body.get("stream"))

    @property
    def chat_body(self) -> Wire:
        """The body of the chat-completions request with the same meaning."""
        body = self.body
        chat: Wire = {key: body[key] for key in _SHARED if key in body}
        instructions = body.get("instructions")
        chat["messages"] = [{"role": "system", "content": instructions}] if instructions else []
        chat["messages"] += self.messages
        chat["max_completion_tokens"] = body.get("max_output_tokens")
        if tools := body.get("tools"):
            chat["tools"] = [_chat_tool(tool, f"tools[{place}]") for place, tool in enumerate(tools)]
            choice = body.get("tool_choice") or "auto"
            if isinstance(choice, dict) and "name" in choice:
                choice = {"type": "function", "function": {"name": choice["name"]}}
            chat["tool_choice"] = choice
        form = (body.get("text") or {}).get("format") or {"type": "text"}
        if isinstance(form, dict) and form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {key: form[key] for key in form.keys() - {"type"}}}
        chat["response_format"] = form
        return chat

    def conversation_with(self, reply: Message) -> list[Wire]:
        """Return the conversation after a reply."""
        calls = [_chat_call(call.id, call.name, _arguments(call)) for call in reply.tool_calls]
        said: Wire = {"role": "assistant", "content": reply.content} | ({"tool_calls": calls} if calls else {})
        return [*self.messages, said]


def _append(messages: list[Wire], item: Any, where: str) -> None:
    """Append an input item to the conversation. The items of one reply, text and calls, are one message."""
    kind = item.get("type", "message") if isinstance(item, dict) else item
    try:
        if kind == "message" and item["role"] in _ROLES:
            _join(messages, {"role": item["role"], "content": _text(item["content"], f"{where}.content")})
        elif kind == "function_call":
            call = _chat_call(item["call_id"], item["name"], item["arguments"])
            _join(messages, {"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            text = _text(item["output"], f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": text})
        elif kind != "reasoning":  # thoughts are known from the tokens
            raise ApiError(f"{where}: an item of type {kind!r:.40} is not supported", where, "unsupported_value")
    except KeyError as e:
        field = f"{where}.{e.args[0]}"
        raise ApiError(f"missing required parameter: {field}", field, "missing_required_parameter") from e


def _join(messages: list[Wire], new: Wire) -> None:
    last = messages[-1] if messages else {}
    if new["role"] == last.get("role") == "assistant":
        calls = [*last.get("tool_calls", []), *new.get("tool_calls", [])]
        messages[-1] = last | {"content": last["content"] + new["content"]} | ({"tool_calls": calls} if calls else {})
    else:
        messages.append(new)


def _text(content: Any, where: str) -> str:
    """Return a content as a text. Raise ApiError for a part that is no text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(f"{where}: expected a text or a list of parts", where, "invalid_type")
    for place, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS:
            raise ApiError(f"{where}[{place}]: only text is supported", f"{where}[{place}]", "unsupported_value")
    return "".join(str(part.get("refusal" if part["type"] == "refusal" else "text", "")) for part in content)


def _chat_tool(tool: Any, where: str) -> Wire:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else tool
        text = f"{where}: the tool {kind!r:.40} is not supported; give function tools"
        raise ApiError(text, where, "unsupported_value")
    return {"type": "function", "function": {key: tool[key] for key in tool.keys() - {"type"}}}


def _chat_call(name: str, function: str, arguments: Any) -> Wire:
    return {"id": name, "type": "function", "function": {"name": function, "arguments": arguments}}


def _arguments(call: ToolCall) -> str:
    return call.parse_error or json.dumps(call.arguments)


def to_response(
    request: ResponsesRequest, reply: Message, truncated: bool, input_tokens: int, output_tokens: int
) -> Wire:
    """Return the complete response with a reply. A malformed call has the parser's reason instead of arguments."""
    body, key = request.body, uuid.uuid4().hex
    output: list[Wire] = []
    status = "incomplete" if truncated else "completed"
    if reply.content or not reply.tool_calls:
        part = {"type": "output_text", "text": reply.content, "annotations": [], "logprobs": []}
        said = {"type": "message", "role": "assistant", "status": status, "content": [part]}
        output.append({"id": f"msg_{key}", **said})
    for place, call in enumerate(reply.tool_calls):
        called = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": _arguments(call)}
        output.append({"id": f"fc_{key}{place}", **called, "status": "completed"})
    return {
        "id": f"resp_{key}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if truncated else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": body["model"],
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": body.get("previous_response_id"),
        "temperature": body.get("temperature"),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p"),
        "usage": {
            "input_tokens": input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input_tokens + output_tokens,
        },
    }


def response_events(response: Mapping[str, Any]) -> Iterator[Wire]:
    """Yield the streamed events of a response: each item with its text or arguments, then the response."""
    events: list[Wire] = []
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events += ({"type": f"response.{name}", "response": begun} for name in ("created", "in_progress"))
    for place, item in enumerate(response["output"]):
        events += _item_events(item, place)
    events.append({"type": f"response.{response['status']}", "response": response})
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _item_events(item: Wire, place: int) -> Sequence[Wire]:
    where: Wire = {"item_id": item["id"], "output_index": place}
    if item["type"] == "message":
        (part,) = item["content"]
        empty, text, inside = {**item, "content": []}, part["text"], {**where, "content_index": 0}
        parts = [
            {"type": "response.content_part.added", **inside, "part": {**part, "text": ""}},
            {"type": "response.output_text.delta", **inside, "delta": text, "logprobs": []},
            {"type": "response.output_text.done", **inside, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **inside, "part": part},
        ]
    else:
        empty, called = {**item, "arguments": ""}, item["arguments"]
        parts = [
            {"type": "response.function_call_arguments.delta", **where, "delta": called},
            {"type": "response.function_call_arguments.done", **where, "arguments": called, "name": item["name"]},
        ]
    return [
        {"type": "response.output_item.added", "output_index": place, "item": {**empty, "status": "in_progress"}},
        *parts,
        {"type": "response.output_item.done", "output_index": place, "item": item},
    ]
