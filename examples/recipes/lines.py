"""A chat format for a tokenizer of bytes: each message is a line. A recipe: see docs/extending.md.

    system: …  tools: …  user: …  assistant: …    and a byte 0 after each, which ends a reply too

Calls are written in a dialect that the package reads, so that neither writing nor reading them is repeated here. A
line's text is escaped as JSON, so that no text can end it or begin another one.
"""

import json
from collections.abc import Sequence

from understudy.formats.base import Parsed
from understudy.formats.parse import parsed, render
from understudy.messages import Message, ToolSpec, spec_to_wire

END = 0
OPENING = b"assistant: "


class Lines:
    """Fulfils `formats.ChatFormat`: what it appends never changes what is there, and parsing inverts rendering."""

    deviation = ""
    stop_tokens = frozenset({END})

    def encode(self, new: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[int]) -> list[int]:
        """The tokens that append `new`, and open the assistant's turn; a reply that was cut off is closed first."""
        closing = [] if not before or before[-1] == END else [END]
        shown = [f"tools: {json.dumps([spec_to_wire(tool) for tool in tools])}"] if tools and not before else []
        lines = [f"{message.role}: {json.dumps(_said(message))}" for message in new]
        first, rest = lines[:1], lines[1:]  # tools stand after the policy
        return [*closing, *(token for line in (*first, *shown, *rest) for token in _line(line)), *OPENING]

    def render(self, reply: Message) -> list[int]:
        """A reply as it would have been sampled."""
        return _line(_said(reply))

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Parsed:
        """Any tokens as a message; what is no byte, and no text, is replaced."""
        text = bytes(token for token in tokens if 0 < token < 256).decode(errors="replace")
        return parsed(text, "json", tools)


def _said(message: Message) -> str:
    return render(message.content, message.tool_calls, "json")


def _line(text: str) -> list[int]:
    return [*text.replace("\0", "").encode(), END]
