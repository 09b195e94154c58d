"""A reply while it is sampled: what it says is told as soon as that is certain.

What a reply says is what its format reads in all of its tokens. Until they are all there, text is told up to the first
character at which a call, a thought or another speaker may begin; from there on it waits for the end. So what was told,
put together, is what the whole reply says, and a reply is the same whether it is streamed or not. One thing would break
that: a reply that calls what it said before a thought (`</think>` that nothing opened). Then what was told stays said.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from understudy.formats import ChatFormat, Vocabulary
from understudy.formats.base import settled
from understudy.formats.decoding import Decoding
from understudy.formats.hermes import THINK, THOUGHT
from understudy.messages import Message, ToolSpec

_MERE = " \t\r\n{}[](),:;\"'`*"
"""What the parser may drop beside a broken call."""
_SPEAKERS = ("User", "USER", "Human", "HUMAN", "Observation", "System", "SYSTEM", "Tool", "user", "system")
_KEYS = ("tool_calls", "function", "name")


def _begun(words: Iterable[str]) -> str:
    """A pattern for any of the words, and for as much of one as there is at the end of the text."""
    return "|".join(
        functools.reduce(lambda rest, c: rf"(?:\Z|{re.escape(c)}{rest})", reversed(word), "") for word in words
    )


def _openings(marks: str, line_starts: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"{marks}|(?:\A|\n)[ \t*#]*+(?:{_begun(line_starts)})")


_WITH_CALLS = _openings(rf'[<\[{{`]|"(?:{_begun(_KEYS)})', (*_SPEAKERS, "Action"))
_WITHOUT = _openings(rf"<|\[(?:{_begun(('THINK', 'INST', 'TOOL_RESULTS'))})", _SPEAKERS)


@dataclass(frozen=True, slots=True)
class Ending:
    """A reply that is whole: `rest` is what of its text was not told before."""

    message: Message
    rest: str
    finish: Literal["stop", "length", "tool_calls"]
    entire: bool
    """The message is all that was sampled: nothing was cut off it."""


class Reading:
    """One reply, token by token. `several` allows more than one call; `stop` are strings that end the reply."""

    def __init__(
        self,
        format: ChatFormat,
        vocabulary: Vocabulary,
        tools: Sequence[ToolSpec],
        stop: Sequence[str] = (),
        several: bool = True,
    ) -> None:
        self._format, self._tools, self._stop, self._several = format, tools, stop, several
        self._decoding = Decoding(vocabulary)
        self._openings = _WITH_CALLS if tools else _WITHOUT
        self._held = max(map(len, stop), default=1) - 1
        self._text = self._told = ""
        self._begin = self._certain = 0  # where what is said begins, and how far it is certain
        # Some prompts end within a thought, which only the format knows: it reads no text there.
        self._thinking = not format.parse(vocabulary.encode("x")).message.content
        self.tokens: list[int] = []
        self.stopped = ""
        """The stop string that has ended the reply."""

    def feed(self, token: int) -> str:
        """Take in one token; what is certain to be said now, and was not before."""
        self.tokens.append(token)
        if token in self._format.stop_tokens:
            return ""
        before = len(self._text)
        self._text += self._decoding.add(token)
        self.stopped = self._first_stop(max(0, before - self._held))
        return self._tell()

    def end(self, cut: bool) -> Ending:
        """The reply as its format reads it; `cut` where it ended at the limit of its length, and at no stop string."""
        parsed = self._format.parse(self.tokens, self._tools)
        message, entire = settled(parsed, cut), not self.stopped
        if not self._tools and (message.tool_calls or parsed.repairs):  # nothing could be called: it is text
            message = Message(role="assistant", content=(self._text + self._decoding.rest()).strip())
        if self.stopped:
            message = message.replace(content=message.content.partition(self.stopped)[0].rstrip())
        if not self._several and len(message.tool_calls) > 1:
            message, entire = message.replace(tool_calls=message.tool_calls[:1]), False
        if not message.content.startswith(self._told):
            message = message.replace(content="\n".join(filter(None, (self._told, message.content))))
        finish: Literal["stop", "tool_calls"] = "tool_calls" if message.tool_calls else "stop"
        return Ending(message, message.content[len(self._told) :], "length" if cut else finish, entire)

    def _first_stop(self, start: int) -> str:
        found = [(place, stop) for stop in self._stop if (place := self._text.find(stop, start)) >= 0]
        return min(found)[1] if found else ""

    def _tell(self) -> str:
        """Move on to the first character that may be no text, and give what stands before it."""
        if not self._certain and (self._thinking or self._text.lstrip().startswith(THINK)):
            end = self._text.find(THOUGHT)
            if end < 0:
                return ""
            self._begin = self._certain = end + len(THOUGHT)
        limit = self._text.find(self.stopped) if self.stopped else max(0, len(self._text) - self._held)
        opening = self._openings.search(self._text, self._certain)
        self._certain = max(self._certain, min(limit, opening.start() if opening else len(self._text)))
        said = self._text[self._begin : self._certain].strip()
        if not said.strip(_MERE) or len(said) <= len(self._told):
            return ""
        new, self._told = said[len(self._told) :], said
        return new
