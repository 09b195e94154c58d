"""ChatFormat: the interface that turns messages into tokens and tokens into messages.

Conversations are append-only. `encode` returns the tokens that follow the existing ones, and sampled tokens are never
changed. `encode(first) + sampled + encode(next)` equals what the model's own template renders, except for the
deviations that a format documents.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from understudy.core.messages import Message, ToolCall, ToolSpec

ReplyStatus = Literal["text", "tool_calls", "repaired", "malformed", "empty"]
ParseStatus = ReplyStatus | Literal["truncated"]


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """A parsed reply. The status `truncated` means that the reply ended at its length limit, whatever it contains."""

    message: Message
    status: ParseStatus
    hallucinated_turn: bool = False
    """Whether the reply continued with a turn of another role. `message` ends before that role's marker."""
    repairs: Mapping[str, int] = field(default_factory=dict)
    """Repairs made to parse the calls, counted by kind."""
    parse_errors: Mapping[str, int] = field(default_factory=dict)
    """Malformed calls, counted by kind."""


def mark_truncated_call(parsed: ParsedMessage, truncated: bool) -> Message:
    """Return the parsed message; if the reply was truncated within its last call, that call becomes malformed.

    Such a call may lack arguments, so it must not be executed. A reply is truncated by its length limit, or by a stop
    string.
    """
    message = parsed.message
    if not truncated or not message.tool_calls or parsed.repairs.keys().isdisjoint(("truncated", "strings")):
        return message
    *calls, last = message.tool_calls
    reason = last.parse_error or "the call is cut off where the reply ended; write less before it"
    return message.replace(tool_calls=(*calls, ToolCall(name=last.name, parse_error=reason)))


def reply_status(message: Message, repairs: Mapping[str, int]) -> ParseStatus:
    """Return the status of a reply that an endpoint has parsed."""
    if any(call.parse_error for call in message.tool_calls):
        return "malformed"
    if message.tool_calls:
        return "repaired" if repairs else "tool_calls"
    return "text" if message.content.strip() else "empty"


def reply_events(parsed: ParsedMessage, truncated: bool) -> Iterator[tuple[str, int]]:
    """Yield the events to count for a reply: its status, and its repairs and malformed calls by kind."""
    yield "truncated" if truncated else parsed.status, 1
    if parsed.hallucinated_turn:
        yield "hallucinated_turn", 1
    yield from ((f"repaired/{kind}", count) for kind, count in parsed.repairs.items())
    yield from ((f"malformed/{kind}", count) for kind, count in parsed.parse_errors.items())


class ChatFormat(Protocol):
    """The chat format of one model family, bound to one tokenizer."""

    @property
    def template_deviation(self) -> str:
        """How the format deliberately deviates from the model's template at every turn; "" if it does not.

        Two deviations are common to all formats and not listed: thoughts of earlier turns are kept, and text that looks
        like control tokens stays text.
        """

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids of the tokens that end a reply."""

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prefix: Sequence[int]) -> list[int]:
        """Return the tokens that append `messages` after the tokens `prefix` and open the assistant's turn.

        `prefix` is empty at the start of a conversation and otherwise ends with a reply. `tools` are shown only at the
        start.
        """

    def encode_reply(self, reply: Message) -> list[int]:
        """Return the tokens that the model would sample for an assistant message, including the stop token."""

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """Parse sampled tokens. Raise nothing: tokens that are not a valid call become text or a malformed call with
        its reason.

        `tools` are the callable tools; they help to resolve names and argument types.
        """
