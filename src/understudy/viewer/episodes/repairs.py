"""Repairs of replies: the sampled text compared with what the tolerant parser read.

The parsed reply is encoded again in the model's own format. The page marks the differences from the sampled text. They
show what a strict parser would reject. Two differences are no repairs: thoughts, which are not part of the parsed
message, and white space around calls.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Literal

from understudy.core.messages import Message, ToolSpec
from understudy.core.records import Record
from understudy.core.trajectory import TokenSequence
from understudy.viewer.episodes.decoder import TokenDecoder

MAX_DIFF_CHARS = 8_000
"""Longest reply that is compared, in characters. The time grows with the square of the length."""
_WORD = re.compile(r"\w+|\s+|.", re.DOTALL)


class DiffPiece(Record):
    """A piece of a compared reply: in both texts (same), only in the sampled one (removed), or only in the parsed one
    (added).
    """

    kind: Literal["same", "removed", "added"]
    text: str


class ReplyParse(Record):
    """One sampled reply, and how it was parsed."""

    text: str
    """The sampled text, with control tokens."""
    status: str
    repairs: Mapping[str, int] = {}
    """The number of repairs by kind."""
    faults: Mapping[str, int] = {}
    """The number of calls that could not be parsed, by kind."""
    spoke_for_user: bool = False
    """Whether the reply continues with a turn of another role. The parsed message ends before that turn."""
    pieces: tuple[DiffPiece, ...] = ()
    """The comparison of the sampled and the parsed text. Empty if nothing was repaired, a call could not be parsed,
    or the reply is longer than MAX_DIFF_CHARS.
    """


def explain_parse(
    sampled: Sequence[int], message: Message, tools: Sequence[ToolSpec], decoder: TokenDecoder
) -> ReplyParse:
    """Return how a reply's tokens were parsed. `message` is the reply in the episode."""
    parsed, text = decoder.format.parse(sampled, tools), decoder.vocabulary.decode(sampled)
    whole = not any(call.parse_error for call in message.tool_calls)
    compared = parsed.repairs and whole and len(text) <= MAX_DIFF_CHARS
    return ReplyParse(
        text=text,
        status=parsed.status,
        repairs=dict(parsed.repairs),
        faults=dict(parsed.parse_errors),
        spoke_for_user=parsed.hallucinated_turn,
        pieces=diff_words(text, decoder.vocabulary.decode(decoder.format.encode_reply(message))) if compared else (),
    )


def explain_parses(sequence: TokenSequence, tools: Sequence[ToolSpec], decoder: TokenDecoder) -> dict[int, ReplyParse]:
    """Return how each reply of a sequence was parsed, by message index; {} if not every reply has tokens.

    `tools` are those of the environment.
    """
    replies = [(place, sequence.messages[place]) for place in sequence.reply_indices]
    spans = list(sequence.reply_spans())
    if len(spans) != len(replies):
        return {}
    return {
        place: explain_parse(sequence.tokens[start:end], message, sequence.shown_tools(tools), decoder)
        for (place, message), (start, end) in zip(replies, spans, strict=True)
    }


def diff_words(sampled: str, parsed: str) -> tuple[DiffPiece, ...]:
    """Return the differences between two texts, word by word."""
    one, other = _WORD.findall(sampled), _WORD.findall(parsed)
    found: list[DiffPiece] = []
    for kind, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if kind == "equal":
            found.append(DiffPiece(kind="same", text="".join(one[a:b])))
            continue
        found += [DiffPiece(kind="removed", text="".join(one[a:b]))] if a < b else []
        found += [DiffPiece(kind="added", text="".join(other[c:d]))] if c < d else []
    return tuple(found)
