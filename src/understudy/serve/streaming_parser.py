"""StreamingParser: parses a reply while it is sampled, and emits text as soon as it is final.

The text of a reply is what its format parses from all its tokens; without tools, calls in it are text. Until the reply
is complete, text is emitted up to the first character at which a call, a thought or another role's turn may begin. The
rest is emitted at the end. So the emitted text equals the text of the complete reply, and a reply is the same whether
it is streamed or not.

There is one exception: a reply with a `</think>` that nothing opened declares earlier text a thought. If that text was
already emitted, it stays in the reply.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from understudy.core.messages import Message, ToolSpec
from understudy.formats import ChatFormat, FormatTokenizer
from understudy.formats.chat_format import mark_truncated_call
from understudy.formats.detokenizer import IncrementalDetokenizer
from understudy.formats.parsing.parse import parse_text
from understudy.formats.tool_parsers.hermes import THINK, THOUGHT

_PUNCTUATION = " \t\r\n{}[](),:;\"'`*"
"""Characters that the parser may drop beside a malformed call."""
_ROLES = ("User", "USER", "Human", "HUMAN", "Observation", "Tool Res", "Tool res", "user", "system")
_THOUGHT_SENTENCES = ("Here is my", "Here's my")
_KEYS = ("tool_calls", "function", "name")


def _prefix_pattern(words: Iterable[str]) -> str:
    """Return a pattern that matches any of the words, or the beginning of one at the end of the text."""
    return "|".join(
        functools.reduce(lambda rest, c: rf"(?:\Z|{re.escape(c)}{rest})", reversed(word), "") for word in words
    )


def _mark_pattern(marks: Iterable[str]) -> str:
    """Return a pattern that matches any of the marks, or the beginning of one at the end, at least one character."""
    return "|".join(f"{re.escape(mark[0])}(?:{_prefix_pattern([mark[1:]])})" for mark in marks)


def _openings(marks: str, line_starts: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"{marks}|(?:\A|\n)[ \t*#]*+(?:{_prefix_pattern(line_starts)})")


_THOUGHT_MARKS = ("◁think", "◁/think")
_WITH_CALLS = _openings(
    rf'[<\[{{`]|"(?:{_prefix_pattern(_KEYS)})|{_mark_pattern((*_THOUGHT_MARKS, "]<]minimax", "functools["))}',
    (*_ROLES, *_THOUGHT_SENTENCES, "Action"),
)
_WITHOUT = _openings(
    rf"<|\[(?:{_prefix_pattern(('THINK', 'INST', 'TOOL_RESULTS'))})|{_mark_pattern(_THOUGHT_MARKS)}",
    _THOUGHT_SENTENCES,
)


@dataclass(frozen=True, slots=True)
class ReplyEnd:
    """The end of a reply. `remaining_text` is the part of its text that was not emitted before."""

    message: Message
    remaining_text: str
    finish_reason: Literal["stop", "length", "tool_calls"]
    is_complete: bool
    """Whether the message contains all that was sampled: no stop string cut it, and no further call was removed."""
    is_json: bool = False
    """Whether the message is JSON as the request asked, in which nothing was parsed."""


@dataclass(frozen=True, slots=True)
class JsonForm:
    """How a reply that must be JSON is written: between two texts, or as a call that begins with one of `openings`."""

    before: str
    after: str
    openings: tuple[str, ...] = ()

    def may_be_call(self, text: str) -> bool:
        """Return whether the text begins a call, or may still do so."""
        return any(text.startswith(opening) or opening.startswith(text) for opening in self.openings)

    def json_text(self, text: str) -> str:
        """Return the JSON in a reply or in its beginning."""
        return text[len(self.before) :].removesuffix(self.after)


class StreamingParser:
    """Parser of one reply, token by token.

    `stop` are strings that end the reply. Without `parallel_tool_calls`, only the first call is returned. With
    `raw_malformed`, a reply with a malformed call is returned as text without calls, as vLLM does. With
    `json_form`, the text is JSON, in which nothing is parsed.
    """

    def __init__(
        self,
        format: ChatFormat,
        vocabulary: FormatTokenizer,
        tools: Sequence[ToolSpec],
        stop: Sequence[str] = (),
        parallel_tool_calls: bool = True,
        raw_malformed: bool = False,
        json_form: JsonForm | None = None,
    ) -> None:
        self._format = format
        self._tools = tools
        self._stop = stop
        self._parallel_tool_calls, self._raw_malformed = parallel_tool_calls, raw_malformed
        self._json_form = json_form
        self._vocabulary = vocabulary
        self._detokenizer = IncrementalDetokenizer(vocabulary)
        self._openings = _WITH_CALLS if tools else _WITHOUT
        self._held_back = max(map(len, stop), default=1) - 1  # characters that may begin a stop string
        self._text = self._emitted = ""
        self._begin = self._final = 0  # where the visible text begins, and up to where it is final
        # The format parses any text as a thought if the prompt has opened one.
        self._thinking = not format.parse(vocabulary.encode("x")).message.content
        self.tokens: list[int] = []
        self.stopped = ""
        """The stop string that ended the reply, or ""."""

    def feed(self, token: int) -> str:
        """Add a token, and return the text that became final with it."""
        self.tokens.append(token)
        if token in self._format.stop_token_ids:
            return ""
        before = len(self._text)
        self._text += self._detokenizer.add(token)
        self.stopped = self._first_stop(max(0, before - self._held_back))
        return self._flush()

    def finish(self, truncated: bool) -> ReplyEnd:
        """Return the end of the reply. `truncated` means that it ended at its length limit and not at a stop string."""
        text = self._text + self._detokenizer.pending_text()
        tokens = self.tokens
        if self.stopped:
            text = text.partition(self.stopped)[0]
            tokens = self._vocabulary.encode(text)
        is_complete = not self.stopped
        is_json = self._json_form is not None and not self._json_form.may_be_call(text)
        if self._json_form and is_json:
            message = Message(role="assistant", content=self._json_form.json_text(text))
        elif self._tools:
            message = mark_truncated_call(self._format.parse(tokens, self._tools), truncated or bool(self.stopped))
        else:
            visible = parse_text((THINK if self._thinking else "") + text).text
            message = Message(role="assistant", content=visible)
        if self._raw_malformed and any(call.parse_error for call in message.tool_calls):
            message = Message(role="assistant", content=text[self._begin :].strip())
        if not self._parallel_tool_calls and len(message.tool_calls) > 1:
            message = message.replace(tool_calls=message.tool_calls[:1])
            is_complete = False
        if not message.content.startswith(self._emitted):
            message = message.replace(content="\n".join(filter(None, (self._emitted, message.content))))
        finish_reason: Literal["stop", "length", "tool_calls"] = "tool_calls" if message.tool_calls else "stop"
        if truncated:
            finish_reason = "length"
        return ReplyEnd(message, message.content[len(self._emitted) :], finish_reason, is_complete, is_json)

    def _first_stop(self, start: int) -> str:
        matches = [(position, stop) for stop in self._stop if (position := self._text.find(stop, start)) >= 0]
        return min(matches)[1] if matches else ""

    def _flush(self) -> str:
        """Return the new final text, which ends where a call, a thought or another role's turn may begin."""
        if self._json_form:
            return self._flush_json(self._json_form)
        if not self._final and (self._thinking or self._text.lstrip().startswith(THINK)):
            end = self._text.find(THOUGHT)
            if end < 0:
                return ""
            self._begin = self._final = end + len(THOUGHT)
        limit = self._text.find(self.stopped) if self.stopped else max(0, len(self._text) - self._held_back)
        opening = self._openings.search(self._text, self._final)
        self._final = max(self._final, min(limit, opening.start() if opening else len(self._text)))
        visible = self._text[self._begin : self._final].strip()
        if not visible.strip(_PUNCTUATION) or len(visible) <= len(self._emitted):
            return ""
        new = visible[len(self._emitted) :]
        self._emitted = visible
        return new

    def _flush_json(self, form: JsonForm) -> str:
        """Return the new text of JSON, which ends where a stop string or what follows JSON may begin."""
        held_back = max(self._held_back, len(form.after))
        text = self._text.partition(self.stopped)[0] if self.stopped else self._text[: len(self._text) - held_back]
        if form.may_be_call(self._text):
            return ""
        new = form.json_text(text)[len(self._emitted) :]
        self._emitted += new
        return new
