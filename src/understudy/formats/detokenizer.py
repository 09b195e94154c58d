"""Incremental detokenization, and stop strings."""

from collections.abc import Callable, Sequence

from understudy.formats.tokenizer import FormatTokenizer

_UNKNOWN = "\ufffd"
"""The text that decoding returns for invalid bytes, and for the bytes of an incomplete character."""


class IncrementalDetokenizer:
    """Turn tokens into text one by one. Bytes of an incomplete character are held back until it is complete."""

    def __init__(self, vocabulary: FormatTokenizer) -> None:
        self._tokenizer = vocabulary
        self._tokens: list[int] = []
        self._start = self._end = 0  # decoded text depends on its neighbours, so the window begins one step earlier

    def add(self, token: int) -> str:
        """Add a token, and return the text that became complete with it."""
        self._tokens.append(token)
        text = self.pending_text()
        if not text or text.endswith(_UNKNOWN):
            return ""
        self._start, self._end = self._end, len(self._tokens)
        return text

    def pending_text(self) -> str:
        """Return the text that is still held back."""
        before = self._tokenizer.decode(self._tokens[self._start : self._end])
        return self._tokenizer.decode(self._tokens[self._start :])[len(before) :]


class StopStrings:
    """Detect stop strings while the tokens of a reply arrive. Text before the reply does not count."""

    def __init__(self, vocabulary: FormatTokenizer, strings: Sequence[str]) -> None:
        self._detokenizer = IncrementalDetokenizer(vocabulary)
        self._strings = tuple(strings)
        self._tail_length = max(map(len, strings)) - 1
        self._tail = ""

    def feed(self, token: int) -> bool:
        """Add the next token. Return True if it completes a stop string."""
        text = self._tail + self._detokenizer.add(token)
        self._tail = text[-self._tail_length :] if self._tail_length else ""
        return any(string in text for string in self._strings)


def find_stop_string(
    tokens: Sequence[int], strings: Sequence[str], vocabulary: Callable[[], FormatTokenizer]
) -> int | None:
    """Return the number of tokens up to the one that completes the first stop string, or None if none occurs.

    `vocabulary` is called only if there are stop strings.
    """
    if not strings:
        return None
    stops = StopStrings(vocabulary(), strings)
    return next((count for count, token in enumerate(tokens, 1) if stops.feed(token)), None)
