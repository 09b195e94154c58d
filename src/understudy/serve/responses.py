"""Responses of the chat completions API, complete and streamed."""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from understudy.core.messages import Message, ToolCall
from understudy.formats import FormatTokenizer
from understudy.serve.generation import ReplyChunk
from understudy.serve.streaming_parser import ReplyEnd

_MIN_LOGPROB = -9999.0
"""The API's value for a log-probability of minus infinity."""


@dataclass
class ResponseBuilder:
    """Builder of the response to one request. It counts the tokens sampled so far."""

    name: str
    """The name of the model."""
    vocabulary: FormatTokenizer | None
    """None for a model whose tokens are unknown, which has no log-probabilities."""
    prompt_tokens: int
    completion_tokens: int = 0
    """Sampled tokens in all chunks so far."""
    response_id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def usage(self) -> dict[str, int]:
        """Token counts. Stop tokens count; the prompt counts once for all replies."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def response(self, parts: Sequence[ReplyChunk], logprobs: bool) -> dict[str, Any]:
        """Return the complete response from all chunks of all replies."""
        self.completion_tokens += sum(len(part.tokens) for part in parts)
        ends = sorted((part.index, part.reply_end) for part in parts if part.reply_end)
        choices = [_choice(index, end, "message", message_to_wire(end.message)) for index, end in ends]
        if logprobs:
            for choice in choices:
                own = [part for part in parts if part.index == choice["index"]]
                choice["logprobs"] = _logprobs(self.vocabulary, own)
        return {**self._head("chat.completion"), "choices": choices, "usage": self.usage}

    def first_chunk(self, index: int) -> dict[str, Any]:
        """Return the first streamed event of a reply."""
        return self._chunk([_choice(index, None, "delta", {"role": "assistant", "content": ""})])

    def chunks(self, part: ReplyChunk, logprobs: bool) -> Iterator[dict[str, Any]]:
        """Yield the streamed events of a chunk: its text, then each call, then the finish reason."""
        self.completion_tokens += len(part.tokens)
        if part.text or (logprobs and part.tokens):
            choice = _choice(part.index, None, "delta", {"content": part.text})
            yield self._chunk([choice | ({"logprobs": _logprobs(self.vocabulary, [part])} if logprobs else {})])
        if part.reply_end:
            for i, call in enumerate(part.reply_end.message.tool_calls):
                yield self._chunk([_choice(part.index, None, "delta", {"tool_calls": [{"index": i, **_call(call)}]})])
            yield self._chunk([_choice(part.index, part.reply_end, "delta", {})])

    def usage_chunk(self) -> dict[str, Any]:
        """Return the streamed event with the token counts."""
        return self._chunk([]) | {"usage": self.usage}

    def _chunk(self, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": choices}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.response_id, "object": kind, "created": self.created, "model": self.name}


def sse_event(value: Any) -> bytes:
    """Return a server-sent event as bytes."""
    return f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()


def _choice(index: int, end: ReplyEnd | None, key: str, said: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": index, key: said, "logprobs": None, "finish_reason": end.finish_reason if end else None}


def message_to_wire(message: Message) -> dict[str, Any]:
    """Return a reply in the wire format."""
    calls = {"tool_calls": [_call(call) for call in message.tool_calls]} if message.tool_calls else {}
    content = None if calls and not message.content else message.content
    return {"role": "assistant", "content": content, "refusal": None, **calls}


def _call(call: ToolCall) -> dict[str, Any]:
    """Return a call in the wire format.

    A malformed call has the parser's reason instead of arguments. The reason is not valid JSON, so no client runs it.
    """
    arguments = call.parse_error or json.dumps(call.arguments)
    wire = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
    return wire | ({"malformed": call.parse_error} if call.parse_error else {})


def _logprobs(vocabulary: FormatTokenizer | None, parts: Sequence[ReplyChunk]) -> dict[str, Any]:
    """Return every sampled token with its log-probability, including tokens of calls and the stop token."""
    assert vocabulary is not None
    sampled = [pair for part in parts for pair in zip(part.tokens, part.logprobs, strict=True)]
    return {"content": [_token(vocabulary.decode([token]), logprob) for token, logprob in sampled], "refusal": None}


def _token(text: str, logprob: float) -> dict[str, Any]:
    """Return a token. Its bytes are omitted if they are not complete characters."""
    own = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": max(logprob, _MIN_LOGPROB), "bytes": own, "top_logprobs": []}
