"""N-gram speculation: drafts tokens from what followed the same tokens before.

Tool calls repeat parts of the conversation, and replies of one policy repeat each other. The pass that computes the
next token also checks some draft tokens. Every token has its own random number, whether it was drafted or not, so
drafts save passes and change no reply. This is prompt lookup decoding (Saxena 2023) with two changes: replies of other
episodes are a second source, and coupled sampling replaces the rejection sampling of Leviathan et al. 2023
(arXiv:2211.17192), because drafts have no distribution.
"""

from array import array
from collections.abc import Sequence

NGRAM_SIZE = 3  # tokens
SHORT_NGRAM_SIZE = 2  # tokens; used within one conversation only
ARRAY_TYPECODE = "I"  # 4 bytes per token, so that bytes.rfind can search for tokens
MAX_NGRAMS = 1 << 18  # n-grams in the cache before it is cleared


class NgramCache:
    """The token that most recently followed each n-gram, over all sequences."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}

    def add(self, sequence: Sequence[int], start: int) -> None:
        """Add the tokens of a sequence from position `start` on."""
        if len(self._next) > MAX_NGRAMS:
            self._next.clear()
        for i in range(max(start, NGRAM_SIZE), len(sequence)):
            self._next[tuple(sequence[i - NGRAM_SIZE : i])] = sequence[i]

    def lookup(self, tail: Sequence[int]) -> int | None:
        """Return the token that followed the last n-gram of `tail`, or None."""
        return self._next.get(tuple(tail[-NGRAM_SIZE:]))


def propose_tokens(sequence: "array[int]", cache: NgramCache, max_tokens: int) -> list[int]:
    """Return at most `max_tokens` draft tokens to continue the sequence. It may be fewer or none."""
    draft: list[int] = []
    text, tail = sequence.tobytes(), sequence[-NGRAM_SIZE:].tolist()
    while len(draft) < max_tokens:
        token = cache.lookup(tail)
        if token is None:
            place = _earlier(text, tail, sequence.itemsize)
            if place is None:
                break
            token = sequence[place]
        draft.append(token)
        tail.append(token)
    return draft


def _earlier(text: bytes, tail: Sequence[int], size: int) -> int | None:
    """Return the position after the last earlier occurrence of the end of `tail` in `text`, or None.

    `text` holds tokens of `size` bytes.
    """
    for order in (NGRAM_SIZE, SHORT_NGRAM_SIZE):
        wanted = tail[-order:]
        needle, place, end = array(ARRAY_TYPECODE, wanted).tobytes(), 0, len(text) - size
        while (place := text.rfind(needle, 0, end)) % size and place > 0:
            end = place + len(needle) - 1
        if wanted and place >= 0 and place % size == 0:
            return place // size + len(wanted)
    return None
