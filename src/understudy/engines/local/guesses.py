"""Guesses: what a reply will go on with, by what followed the same tokens before.

Tool calls repeat what stands in the conversation, and the replies of one policy repeat each other. The sampler lets the
model check some guesses in the pass that computes the next token anyway. Each token is sampled by its own random number
whether it was guessed or not, so guesses save passes and change no reply. This is prompt lookup decoding (Saxena 2023)
with the replies of other episodes as a second source, and with coupled sampling in place of the rejection sampling of
Leviathan et al. 2023 (arXiv:2211.17192), since a guess has no distribution.
"""

from array import array
from collections.abc import Sequence

ORDER = 3  # tokens that have to be the same
SHORT_ORDER = 2  # enough within one conversation
WORD = "I"  # a sequence is kept in machine words, so that looking for tokens is looking for bytes
MOST_REMEMBERED = 1 << 18  # three tokens and what followed, over all replies


class Replies:
    """What followed the last tokens most recently, in the replies of all sequences."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}

    def learn(self, sequence: Sequence[int], first: int) -> None:
        """Take in the tokens of a sequence from position `first` on."""
        if len(self._next) > MOST_REMEMBERED:
            self._next.clear()
        for i in range(max(first, ORDER), len(sequence)):
            self._next[tuple(sequence[i - ORDER : i])] = sequence[i]

    def after(self, tail: Sequence[int]) -> int | None:
        """What followed the tokens that `tail` ends with."""
        return self._next.get(tuple(tail[-ORDER:]))


def guess(sequence: "array[int]", replies: Replies, count: int) -> list[int]:
    """At most `count` tokens that may follow the sequence; fewer, or none, where nothing like its end was seen."""
    guesses: list[int] = []
    text, tail = sequence.tobytes(), sequence[-ORDER:].tolist()
    while len(guesses) < count:
        token = replies.after(tail)
        if token is None:
            place = _earlier(text, tail, sequence.itemsize)
            if place is None:
                break
            token = sequence[place]
        guesses.append(token)
        tail.append(token)
    return guesses


def _earlier(text: bytes, tail: Sequence[int], size: int) -> int | None:
    """The position after the last place where `text`, words of `size` bytes, goes on after the end of `tail`."""
    for order in (ORDER, SHORT_ORDER):
        wanted = tail[-order:]
        needle, found, end = array(WORD, wanted).tobytes(), 0, len(text) - size
        while (found := text.rfind(needle, 0, end)) % size and found > 0:
            end = found + len(needle) - 1
        if wanted and found >= 0 and found % size == 0:
            return found // size + len(wanted)
    return None
