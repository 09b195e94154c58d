"""A chat format for a byte tokenizer, with one line per message. A recipe: see docs/extending.md.

    system: …  tools: …  user: …  assistant: …

A byte 0 ends each of these lines, and so it also ends a reply. Calls use the package's tool format `json`, so the
package writes and parses them. The text of a message from the environment is escaped as JSON, so it cannot end its line
or begin another one.
"""

import json
from collections.abc import Sequence

from understudy.core.messages import Message, ToolSpec, tool_to_openai
from understudy.formats.chat_format import ParsedMessage
from understudy.formats.parsing.parse import parse_message, render_reply

END = 0
OPENING = b"assistant: "


class LineFormat:
    """Implements `formats.ChatFormat`: conversations are append-only, and `parse` is the inverse of `encode_reply`."""

    template_deviation = ""
    stop_token_ids = frozenset({END})

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prefix: Sequence[int]) -> list[int]:
        """Return the tokens that append `messages` and open the assistant's turn. Add `END` after a truncated reply."""
        closing = [] if not prefix or prefix[-1] == END else [END]
        shown = [f"tools: {json.dumps([tool_to_openai(tool) for tool in tools])}"] if tools and not prefix else []
        lines = [f"{message.role}: {json.dumps(_said(message))}" for message in messages]
        first, rest = lines[:1], lines[1:]
        return [*closing, *(token for line in (*first, *shown, *rest) for token in _line(line)), *OPENING]

    def encode_reply(self, reply: Message) -> list[int]:
        """Return the tokens that the model would sample for a reply."""
        return _line(_said(reply))

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """Return any tokens as a message. Tokens that are not bytes are dropped, invalid UTF-8 is replaced."""
        text = bytes(token for token in tokens if 0 < token < 256).decode(errors="replace")
        return parse_message(text, "json", tools)


def _said(message: Message) -> str:
    return render_reply(message.content, message.tool_calls, "json")


def _line(text: str) -> list[int]:
    return [*text.replace("\0", "").encode(), END]
