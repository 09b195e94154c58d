"""ChatFormat: tokens to messages and back. Rendering and parsing live in one object because they are inverses.

A conversation is only ever appended to: `encode` gives the tokens that come after those already there, and what was
sampled stays as it was sampled. `encode(first) + sampled + encode(next)` is what the model's own template would give.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from understudy.messages import Message, ToolCall, ToolSpec

ReplyStatus = Literal["text", "calls", "repaired", "malformed", "empty"]
ParseStatus = ReplyStatus | Literal["cut"]


@dataclass(frozen=True, slots=True)
class Parsed:
    """A reply as a message. `cut` is a reply that ended at the length limit, whatever it held."""

    message: Message
    status: ParseStatus
    other_side: bool = False
    """The reply went on to speak for another role; what followed the role marker is not in `message`."""
    repairs: Mapping[str, int] = field(default_factory=dict)
    """What had to be repaired to read the calls, by kind."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """Calls that cannot be read, by kind."""


def settled(parsed: Parsed, cut: bool) -> Message:
    """The reply that counts. A last call that is `cut` off may lack arguments that were to come, so it is not run."""
    message = parsed.message
    if not cut or not message.tool_calls or parsed.repairs.keys().isdisjoint(("truncated", "strings")):
        return message
    *calls, last = message.tool_calls
    reason = last.malformed or "the call is cut off at the length limit of a reply; write less before it"
    return message.replace(tool_calls=(*calls, ToolCall(name=last.name, malformed=reason)))


class ChatFormat(Protocol):
    """The dialect of one model family, bound to one tokenizer."""

    @property
    def deviation(self) -> str:
        """What it writes otherwise than the model's template, on purpose and at every turn; "" for nothing.

        Thoughts of earlier turns, and text that looks like control tokens, are kept by all formats.
        """

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end a reply."""

    def encode(self, new: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[int]) -> list[int]:
        """The tokens that append `new` after the tokens `before` and open the assistant's turn.

        `before` is empty at the start, and else ends with a reply. `tools` are shown at the start only.
        """

    def render(self, reply: Message) -> list[int]:
        """An assistant message as the model would have sampled it, the stop token included."""

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Parsed:
        """What was sampled, as a message. Total: any tokens give text, calls, or a malformed call with its reason.

        `tools` are those that may be called; they help to read names and arguments.
        """
