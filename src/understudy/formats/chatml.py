"""ChatML with Hermes tool calls: Qwen2.5, Qwen3, SmolLM2.

Tools are shown in one of two ways: `json` is what Qwen's template renders, to the letter; `signature` is a line a tool,
for models whose template knows no tools. Deviations from the models' own templates:
- Text in messages never becomes a control or markup token; in a template it does (`<|im_end|>` in a tool result).
  Replies are the exception: `<think>` and `<tool_call>` in an assistant's text are the tokens that it would sample.
- What is in the sequence stays there. Qwen3's template drops the thoughts of earlier turns, and the empty thought that
  opens a turn without thinking; here both stay.
- A reply may end at the length limit, or with a token other than `<|im_end|>`; it is closed with `<|im_end|>` then.
`<|im_start|>` ends a reply: after it the model would speak for somebody else. The same in plain words ("User: …") cuts
it, where it is read tolerantly; what was sampled stays in the sequence all the same.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Literal

from understudy.errors import ConfigError
from understudy.formats import hermes
from understudy.formats.base import Parsed, ParseStatus
from understudy.formats.parse import parsed
from understudy.formats.signature import example, signature
from understudy.formats.vocabulary import Vocabulary
from understudy.messages import Message, ToolSpec, spec_to_wire

ToolStyle = Literal["json", "signature"]
Piece = str | int

START, END = "<|im_start|>", "<|im_end|>"
_MARKUP = (hermes.OPEN, hermes.CLOSE, hermes.THINK, hermes.THOUGHT, hermes.RESULT, hermes.RESULT_END)
_TOKENS = (START, END, *_MARKUP)
QWEN_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n",
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
)
"""What stands before and after the tools in Qwen's system message."""
_SIGNATURES = ("# Tools\n", "\nTo use a tool, reply with only a line such as\n")


def wire_text(spec: ToolSpec) -> str:
    """The tool as templates show it: one line of JSON."""
    return json.dumps(spec_to_wire(spec), ensure_ascii=False)


class ChatML:
    """The format for one tokenizer. `find` makes it from a model folder.

    `system` is what the template says where a conversation has no system message, None for nothing; `prefill` what it
    puts at the start of the assistant's turn (an empty thought, to turn thinking off), `around` what it puts before and
    after tools that are shown as JSON. A format that is not `tolerant` repairs nothing, and reads no other dialect.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        tools: ToolStyle = "json",
        *,
        system: str | None = None,
        prefill: str = "",
        around: tuple[str, str] = QWEN_TOOLS,
        tolerant: bool = True,
    ) -> None:
        if missing := {START, END} - vocabulary.added.keys():
            raise ConfigError(f"the tokenizer has no token {min(missing)}, so it is not one for ChatML")
        takes = {*vocabulary.takes_after, *vocabulary.takes_before}
        if taker := next((text for text in _TOKENS if vocabulary.added.get(text) in takes), ""):
            raise ConfigError(f"the tokenizer's {taker} takes the white space beside it, and ChatML's tokens take none")
        self._vocabulary, self._style, self._system, self._prefill = vocabulary, tools, system, prefill
        self._tolerant = tolerant
        self._around = around if tools == "json" else _SIGNATURES
        self._marks = {text: vocabulary.added[text] for text in _MARKUP if text in vocabulary.added}
        self._split = re.compile("(" + "|".join(map(re.escape, self._marks)) + ")") if self._marks else None
        self._start, self._end = vocabulary.added[START], vocabulary.added[END]
        self.stop_tokens = frozenset(
            vocabulary.added[text] for text in (START, END, "<|endoftext|>") if text in vocabulary.added
        )
        self.deviation = ""
        self._newline = vocabulary.encode("\n")
        self._open = self._ids([self._start, "assistant\n", *self._marked(prefill)])
        self._opening = lru_cache(maxsize=256)(self._encoded_opening)

    def encode(self, new: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[int]) -> list[int]:
        """The tokens that append `new` and open the assistant's turn; the system message and the tools come first."""
        if before:
            ids = [*([] if before[-1] == self._end else [self._end]), *self._newline]
        else:
            own = bool(new) and new[0].role == "system"
            shown = tuple(map(wire_text, tools))
            ids = list(self._opening(new[0].content if own else self._system, shown))
            new = new[own:]
        return [*ids, *self._ids(self._turns(new)), *self._open]

    def render(self, reply: Message) -> list[int]:
        """An assistant message as the model would have sampled it. Ids of calls are not written."""
        return self._ids([*self._reply(reply), self._end])

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Parsed:
        """What was sampled up to its first stop token, as `parse` reads it, or as `hermes.read` does."""
        end = next((i for i, token in enumerate(tokens) if token in self.stop_tokens), len(tokens))
        text = self._prefill + self._vocabulary.decode(tokens[:end])
        other_side = end < len(tokens) and tokens[end] == self._start
        return (_tolerantly if self._tolerant else _strictly)(text, tools, other_side)

    def _encoded_opening(self, system: str | None, tools: tuple[str, ...]) -> tuple[int, ...]:
        """The system turn; there is none where there is nothing to say. Tools come as JSON: a key for the cache."""
        if system is None and not tools:
            return ()
        said: list[Piece] = [] if system is None else [system, "\n\n"] if tools else [system]
        return tuple(self._ids(self._turn("system", [*said, *(self._shown(tools) if tools else [])])))

    def _shown(self, tools: Sequence[str]) -> list[Piece]:
        before, after = self._around
        if self._style == "signature":
            specs = [ToolSpec(**json.loads(tool)["function"]) for tool in tools]
            tools, after = (
                [signature(spec) for spec in specs],
                after + hermes.write("", (example(specs[0]),), margin=""),
            )
        return [*self._marked(before), "\n".join(tools), *self._marked(after)]

    def _turns(self, messages: Iterable[Message]) -> Iterator[Piece]:
        for role, group in groupby(messages, key=lambda message: message.role):
            if role == "tool" and self._style == "json":
                yield from self._results(group)
                continue
            for message in group:
                yield from self._turn(role, self._reply(message) if role == "assistant" else [message.content])

    def _turn(self, role: str, body: Iterable[Piece]) -> list[Piece]:
        return [self._start, f"{role}\n", *body, self._end, *self._newline]

    def _results(self, messages: Iterable[Message]) -> Iterator[Piece]:
        """Results that follow each other are one turn of the user."""
        yield from (self._start, "user")
        for message in messages:
            yield from self._marked(f"\n{hermes.RESULT}\n")
            yield message.content
            yield from self._marked(f"\n{hermes.RESULT_END}")
        yield from (self._end, *self._newline)

    def _reply(self, message: Message) -> list[Piece]:
        margin = "\n" if self._style == "json" else ""
        return self._marked(hermes.write(message.content, message.tool_calls, margin))

    def _marked(self, text: str) -> list[Piece]:
        """Our own or the model's text: markup that is a token of this tokenizer becomes that token."""
        return [self._marks.get(part, part) for part in self._split.split(text)] if self._split else [text]

    def _ids(self, pieces: Iterable[Piece]) -> list[int]:
        """Texts that touch are encoded as one: tokens reach across the seams between them, but never across a token."""
        ids: list[int] = []
        for kind, group in groupby(pieces, key=type):
            if kind is int:
                ids += group  # type: ignore[arg-type]
            elif text := "".join(group):  # type: ignore[arg-type]
                ids += self._vocabulary.encode(text)
        return ids


def _tolerantly(text: str, tools: Sequence[ToolSpec], other_side: bool) -> Parsed:
    found = parsed(text, "hermes", tools)
    return replace(found, other_side=other_side or found.other_side)


def _strictly(text: str, tools: Sequence[ToolSpec], other_side: bool) -> Parsed:
    reply = hermes.read(text)
    message = Message(role="assistant", content=reply.content, tool_calls=reply.calls)
    faults = sum(bool(call.malformed) for call in reply.calls)
    return Parsed(message, _status(message), other_side or reply.other_side, {}, {"strict": faults} if faults else {})


def _status(message: Message) -> ParseStatus:
    if any(call.malformed for call in message.tool_calls):
        return "malformed"
    return "calls" if message.tool_calls else "text" if message.content else "empty"
