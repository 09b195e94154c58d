"""Repairs: what a reply really said, and what the tolerant parser made of it, side by side in one text.

What was read is written again in the model's own dialect; where that is not what the model wrote, it was repaired. So
what is marked is what a strict parser would have stumbled over, and also what writing anew always changes: thoughts,
which are not a part of the message, and the white space around calls.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Literal

from understudy.messages import Message, ToolSpec
from understudy.records import Record
from understudy.trajectory import Trajectory
from understudy.viewer.voice import Voice

LONGEST = 8_000
"""Characters of a reply that are compared; the time that this takes grows with their square."""
_WORD = re.compile(r"\w+|\s+|.", re.DOTALL)


class Piece(Record):
    """A piece of a reply: as it stands, only in what was written, or only in what was read."""

    kind: Literal["same", "written", "read"]
    text: str


class Reading(Record):
    """A reply before it was a message."""

    text: str
    """As it was sampled, with its control tokens."""
    status: str
    repairs: Mapping[str, int] = {}
    """What was repaired, by kind."""
    faults: Mapping[str, int] = {}
    """Calls that could not be read, by kind."""
    other_side: bool = False
    """It went on to speak for somebody else, and was cut there."""
    pieces: tuple[Piece, ...] = ()
    """Of a repaired reply, against what was read."""


def reading(sampled: Sequence[int], message: Message, tools: Sequence[ToolSpec], voice: Voice) -> Reading:
    """How the tokens of a reply were read; `message` is what became of them in the episode."""
    parsed, text = voice.format.parse(sampled, tools), voice.vocabulary.decode(sampled)
    whole = not any(call.malformed for call in message.tool_calls)
    compared = parsed.repairs and whole and len(text) <= LONGEST
    return Reading(
        text=text,
        status=parsed.status,
        repairs=dict(parsed.repairs),
        faults=dict(parsed.faults),
        other_side=parsed.other_side,
        pieces=pieces(text, voice.vocabulary.decode(voice.format.render(message))) if compared else (),
    )


def readings(episode: Trajectory, tools: Sequence[ToolSpec], voice: Voice) -> dict[int, Reading]:
    """How each reply of an episode was read, by its place; none where replies have no tokens of their own."""
    replies = [(place, message) for place, message in enumerate(episode.messages) if message.role == "assistant"]
    spans = list(episode.spans())
    if len(spans) != len(replies):
        return {}
    return {
        place: reading(episode.tokens[start:end], message, tools, voice)
        for (place, message), (start, end) in zip(replies, spans, strict=True)
    }


def pieces(written: str, read: str) -> tuple[Piece, ...]:
    """Two texts as one, word by word."""
    one, other = _WORD.findall(written), _WORD.findall(read)
    found: list[Piece] = []
    for kind, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if kind == "equal":
            found.append(Piece(kind="same", text="".join(one[a:b])))
            continue
        found += [Piece(kind="written", text="".join(one[a:b]))] if a < b else []
        found += [Piece(kind="read", text="".join(other[c:d]))] if c < d else []
    return tuple(found)
