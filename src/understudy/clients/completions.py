"""ChatCompletion: one completion of an endpoint, its parsing, and its cache file."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolSpec, message_from_openai, message_to_openai
from understudy.core.records import Record
from understudy.formats.chat_format import mark_truncated_call
from understudy.formats.parsing.parse import parse_message, parse_reply

MAX_USAGE_TOKENS = 100_000_000
"""Largest number of tokens that an endpoint can report for one request. No model has a context of this size."""
_FAILED = {
    "content_filter": "the endpoint's content filter stopped the reply",
    "error": "the endpoint failed during the reply",
    "abort": "the endpoint aborted the reply",
    "insufficient_system_resource": "the endpoint had no capacity to complete the reply",
}
"""What went wrong at the endpoint, by the finish reason of a reply. The last one is DeepSeek's."""
_THOUGHTS = ("reasoning_content", "reasoning")
"""The keys of a message under which endpoints return a model's thoughts."""


class ChatCompletion(Record):
    """One completion of an endpoint."""

    message: Message
    finish_reason: str = ""
    """The endpoint's finish reason: stop, length or tool_calls, or that of a failure."""
    refusal: str = ""
    """The model's text if it refuses to answer."""
    repairs: dict[str, int] = {}
    """Repairs made to parse calls in the text, counted by kind."""
    parse_errors: dict[str, int] = {}
    """Malformed calls in the text, counted by kind."""
    hallucinated_turn: bool = False
    """Whether the text continued with a turn of another role. It is cut there."""
    prompt_tokens: int = Field(default=0, ge=0, le=MAX_USAGE_TOKENS)
    completion_tokens: int = Field(default=0, ge=0, le=MAX_USAGE_TOKENS)
    failure: str = ""
    """What went wrong at the endpoint, if it gave no reply of the model or only a part of it. Empty if nothing did."""


class InvalidCompletionError(Exception):
    """The body of a response is not a completion.

    The error is transient: while an endpoint starts or stops, a proxy may answer in its place. `billed` is an empty
    reply with the tokens that the response reports, or None if it reports none.
    """

    def __init__(self, problem: str, billed: ChatCompletion | None = None) -> None:
        super().__init__(problem)
        self.billed = billed


def parse_completion(content: bytes) -> ChatCompletion:
    """Parse the body of a response. Raise InvalidCompletionError if it is not a completion with a choice."""
    wire: Any = None
    try:
        wire = json.loads(content)
        choice = wire["choices"][0]
        message, usage = choice["message"], wire.get("usage") or {}
        reply = ChatCompletion(
            message=_message(message),
            finish_reason=choice.get("finish_reason") or "",
            refusal=message.get("refusal") or "",
            prompt_tokens=usage.get("prompt_tokens") or 0,
            completion_tokens=_completion_tokens(usage) or 0,
            failure=_failure(choice, message),
        )
        reply.model_dump_json()  # raises ValueError for a lone surrogate, which could not be written to disk
        return reply
    except IndexError as e:
        raise InvalidCompletionError("the response has no choice", _billed_tokens(wire)) from e
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        problem = f"the response is not a completion ({where}: {first['msg']})"
        raise InvalidCompletionError(problem, _billed_tokens(wire)) from e
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:  # not JSON, or another structure
        problem = f"the response is not a completion ({type(e).__name__})"
        raise InvalidCompletionError(problem, _billed_tokens(wire)) from e


def message_to_endpoint(message: Message) -> dict[str, Any]:
    """Return the message in the wire format, with what the endpoint that wrote it wants back.

    Gemini 3 refuses a conversation whose calls lack the thought signature in `extra_content`:
    https://ai.google.dev/gemini-api/docs/openai. DeepSeek refuses one in which a turn with calls lacks the thoughts in
    `reasoning_content`: https://api-docs.deepseek.com/guides/thinking_mode
    """
    wire = message_to_openai(message)
    if message.reasoning_content:
        wire["reasoning_content"] = message.reasoning_content
    for call, call_wire in zip(message.tool_calls, wire.get("tool_calls", ()), strict=True):
        if call.extra_content:
            call_wire["extra_content"] = call.extra_content
    return wire


def _message(wire: Mapping[str, Any]) -> Message:
    """Return a reply, with what its endpoint wants back."""
    message = message_from_openai({**wire, "role": "assistant", "content": _text(wire.get("content"))})
    if isinstance(thoughts := wire.get("reasoning_content"), str):
        message = message.replace(reasoning_content=thoughts)
    extras = [call.get("extra_content") for call in wire.get("tool_calls") or ()]
    if not any(extras):
        return message
    calls = zip(message.tool_calls, extras, strict=True)
    return message.replace(
        tool_calls=tuple(call.replace(extra_content=e) if isinstance(e, dict) else call for call, e in calls)
    )


def _text(content: Any) -> Any:
    """Return the text of a message's content, which some models give in parts. Parts without text are thoughts."""
    if not isinstance(content, list):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")


def _completion_tokens(usage: Mapping[str, Any]) -> Any:
    """Return the number of completion tokens that a response reports, with the model's thoughts.

    Some endpoints, such as xAI's and Google's, leave thoughts out of `completion_tokens` and bill them. They are in
    `total_tokens`. The value is not validated: it may have any type, and is None if the response reports none.
    """
    reported, prompt, total = (usage.get(f"{kind}_tokens") for kind in ("completion", "prompt", "total"))
    if isinstance(total, int) and isinstance(prompt, int) and isinstance(reported, int | None):
        return max(reported or 0, total - prompt)
    return reported


def _billed_tokens(wire: Any) -> ChatCompletion | None:
    """Return an empty reply with the tokens that a response reports; None if it reports none."""
    usage = wire.get("usage") if isinstance(wire, dict) else None
    if not isinstance(usage, dict):
        return None
    tokens = {"prompt_tokens": usage.get("prompt_tokens"), "completion_tokens": _completion_tokens(usage)}
    try:
        return ChatCompletion.model_validate({"message": {"role": "assistant"}, **tokens})
    except ValidationError:
        return None


def _failure(choice: Mapping[str, Any], message: Mapping[str, Any]) -> str:
    """Return what went wrong at the endpoint, or "".

    A reply without any content is not the model's, unless the token limit or the model's thoughts explain it.
    """
    reason = choice.get("finish_reason") or ""
    if reason in _FAILED:
        return f"{_FAILED[reason]} (finish_reason {reason})"
    is_null = message.get("content") is None and not message.get("tool_calls") and not message.get("refusal")
    if is_null and reason != "length" and not any(message.get(key) for key in _THOUGHTS):
        return "the reply has neither content nor calls (content is null)"
    return ""


def parse_text_calls(reply: ChatCompletion, tools: Sequence[ToolSpec], tool_format: str) -> ChatCompletion:
    """Return the reply with the calls parsed from its text in the given tool format; "" accepts any format."""
    parsed = parse_message(reply.message.content, tool_format, tools)
    message = mark_truncated_call(parsed, truncated=reply.finish_reason == "length")
    return reply.replace(
        message=message.replace(reasoning_content=reply.message.reasoning_content),
        repairs=dict(parsed.repairs),
        parse_errors=dict(parsed.parse_errors),
        hallucinated_turn=parsed.hallucinated_turn,
    )


def recover_unparsed_calls(reply: ChatCompletion, tools: Sequence[ToolSpec]) -> ChatCompletion:
    """Parse the calls and thoughts that an endpoint without a tool parser leaves in the text.

    A reply with native calls, or with neither calls nor thoughts in its text, is returned unchanged. Recovered calls
    count as the repair `tool_format`.
    """
    parsed = parse_reply(reply.message.content, "", tools)
    if reply.message.tool_calls or not (parsed.calls or parsed.has_thinking):
        return reply
    recovered = parse_text_calls(reply, tools, "")
    num_valid = sum(not call.parse_error for call in parsed.calls)
    return recovered.replace(repairs={**recovered.repairs, "tool_format": num_valid}) if num_valid else recovered


def read_cache_entry(entry: Path) -> ChatCompletion | None:
    """Return the reply in a cache file, or None if the file is missing or damaged, or the endpoint had failed."""
    try:
        digest, _, text = entry.read_text(encoding="utf-8").partition("\n")
        reply = ChatCompletion.model_validate_json(text) if digest == _digest(text) else None
    except (OSError, UnicodeDecodeError, ValidationError):
        return None
    return None if reply and reply.finish_reason in _FAILED else reply


def write_cache_entry(entry: Path, reply: ChatCompletion) -> None:
    """Write a reply to a cache file atomically. Raise ConfigError if that fails."""
    text = reply.model_dump_json()
    partial = entry.with_suffix(f".{os.getpid()}.part")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(f"{_digest(text)}\n{text}", encoding="utf-8")
        os.replace(partial, entry)
    except OSError as e:
        raise ConfigError(
            f"cannot write to the cache {entry.parent.parent}: {e.strerror}; fix that, or set another cache_dir"
        ) from e


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
