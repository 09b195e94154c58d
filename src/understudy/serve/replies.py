"""Replies as the chat completions API words them, whole and in pieces."""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from understudy.formats import Vocabulary
from understudy.messages import Message, ToolCall
from understudy.serve.choice import Model, Part
from understudy.serve.reading import Ending

_LEAST = -9999.0
"""What the API says for a log-probability of minus infinity."""


@dataclass
class Reply:
    """What a request came to so far."""

    model: Model
    prompt_tokens: int
    completion_tokens: int = 0
    """What was sampled for the parts that were worded."""
    identity: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def usage(self) -> dict[str, int]:
        """Tokens, as they were: a stop token counts, a prompt once for all its replies."""
        both = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": both,
        }

    def whole(self, parts: Sequence[Part], logprobs: bool) -> dict[str, Any]:
        """The response, of all parts of all replies."""
        self.completion_tokens += sum(len(part.tokens) for part in parts)
        endings = sorted((part.index, part.ending) for part in parts if part.ending)
        choices = [_choice(index, ending, "message", _said(ending.message)) for index, ending in endings]
        if logprobs:
            for choice in choices:
                own = [part for part in parts if part.index == choice["index"]]
                choice["logprobs"] = _logprobs(self.model.vocabulary, own)
        return {**self._head("chat.completion"), "choices": choices, "usage": self.usage}

    def opening(self, index: int) -> dict[str, Any]:
        """The first piece of a reply."""
        return self._piece([_choice(index, None, "delta", {"role": "assistant", "content": ""})])

    def pieces(self, part: Part, logprobs: bool) -> Iterator[dict[str, Any]]:
        """A part in pieces: its text, then each call, then why the reply ended."""
        self.completion_tokens += len(part.tokens)
        if part.text or (logprobs and part.tokens):
            choice = _choice(part.index, None, "delta", {"content": part.text})
            yield self._piece([choice | ({"logprobs": _logprobs(self.model.vocabulary, [part])} if logprobs else {})])
        if part.ending:
            for i, call in enumerate(part.ending.message.tool_calls):
                yield self._piece([_choice(part.index, None, "delta", {"tool_calls": [{"index": i, **_call(call)}]})])
            yield self._piece([_choice(part.index, part.ending, "delta", {})])

    def total(self) -> dict[str, Any]:
        """The piece that holds nothing but the usage."""
        return self._piece([]) | {"usage": self.usage}

    def _piece(self, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": choices}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.identity, "object": kind, "created": self.created, "model": self.model.name}


def event(value: Any) -> bytes:
    """A server-sent event."""
    return f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()


def _choice(index: int, ending: Ending | None, key: str, said: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": index, key: said, "logprobs": None, "finish_reason": ending.finish if ending else None}


def _said(message: Message) -> dict[str, Any]:
    calls = {"tool_calls": [_call(call) for call in message.tool_calls]} if message.tool_calls else {}
    content = None if calls and not message.content else message.content
    return {"role": "assistant", "content": content, "refusal": None, **calls}


def _call(call: ToolCall) -> dict[str, Any]:
    """A call. One that cannot be read has the reason in place of arguments, which no client takes for JSON."""
    arguments = call.malformed or json.dumps(call.arguments)
    wire = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
    return wire | ({"malformed": call.malformed} if call.malformed else {})


def _logprobs(vocabulary: Vocabulary, parts: Sequence[Part]) -> dict[str, Any]:
    """Every token that was sampled, those of calls and the stop token too, with its log-probability."""
    sampled = [pair for part in parts for pair in zip(part.tokens, part.logprobs, strict=True)]
    return {"content": [_token(vocabulary.decode([token]), logprob) for token, logprob in sampled], "refusal": None}


def _token(text: str, logprob: float) -> dict[str, Any]:
    """A token; bytes are left out where they are no whole character."""
    own = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": max(logprob, _LEAST), "bytes": own, "top_logprobs": []}
