"""Tokens to text, one by one, and where a text has come to one of some strings."""

from collections.abc import Sequence

from understudy.formats.vocabulary import Vocabulary

_UNKNOWN = "\ufffd"
"""What decoding gives for bytes that are no character, or not yet one."""


class Decoding:
    """Tokens to text, one by one. What ends within a character waits for the rest of it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokens: list[int] = []
        self._start = self._end = 0  # decoded text depends on its neighbours: the window reaches one step back

    def add(self, token: int) -> str:
        """The text that is whole with this token and was not before."""
        self._tokens.append(token)
        text = self.rest()
        if not text or text.endswith(_UNKNOWN):
            return ""
        self._start, self._end = self._end, len(self._tokens)
        return text

    def rest(self) -> str:
        """What still waits."""
        before = self._vocabulary.decode(self._tokens[self._start : self._end])
        return self._vocabulary.decode(self._tokens[self._start :])[len(before) :]


class StopStrings:
    """Strings that end a reply, looked for while its tokens come. What comes before the reply does not count."""

    def __init__(self, vocabulary: Vocabulary, strings: Sequence[str]) -> None:
        self._decoding, self._strings = Decoding(vocabulary), tuple(strings)
        self._held = max(map(len, strings)) - 1
        self._tail = ""

    def feed(self, token: int) -> bool:
        """Take in the next token; whether one of the strings is complete with it."""
        text = self._tail + self._decoding.add(token)
        self._tail = text[-self._held :] if self._held else ""
        return any(string in text for string in self._strings)
