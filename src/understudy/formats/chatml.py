"""ChatML with Hermes tool calls: Qwen2.5, Qwen3, SmolLM2.

Tools are shown in one of two styles. `json` is exactly what Qwen's template renders. `signature` is one line a tool,
for models whose template has no tools.

This format is written by hand although `template.TemplateFormat` derives formats from templates, for two reasons:
- It renders no template, so it is faster: appending a tool result takes 16 µs instead of 430 µs (measured).
- It serves models whose template has no tools (SmolLM2).

Deviations from the models' own templates:
- Text in messages, calls and tools never becomes a control or markup token. With a template, `<|im_end|>` in a tool
  result becomes one. The exception are the tags of a thought at the start of a demonstration (`encode_reply`). In the
  history of a prompt (`encode`) they are text.
- If the tokenizer has no token `<tool_response>`, this text and its end tag are escaped in other messages and in the
  result itself (Qwen2.5). This needs tools or results in the conversation.
- Earlier tokens are never removed. Qwen3's template drops the thoughts of earlier turns, and the empty thought that
  opens a turn without thinking. Here both stay.
- A reply may end at the length limit or with a token other than `<|im_end|>`. It is then closed with `<|im_end|>`.

`<|im_start|>` ends a reply, because the model would speak for another role after it. A role marker in plain words
("User: …") cuts the parsed text; the sampled tokens stay in the sequence.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Literal

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall, ToolSpec, tool_to_openai
from understudy.formats.chat_format import ParsedMessage
from understudy.formats.control_text import escape_markers, escape_results
from understudy.formats.parsing.parse import parse_message
from understudy.formats.parsing.thoughts import split_thought
from understudy.formats.signature import example_call, tool_signature
from understudy.formats.tokenizer import FormatTokenizer
from understudy.formats.tool_parsers import hermes

ToolListStyle = Literal["json", "signature"]
TextOrToken = str | int

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
"""The text before and after the tools in Qwen's system message."""
SIGNATURES = ("# Tools\n", "\nTo use a tool, reply with only a line such as\n")
"""The text before and after the tools in the style `signature`. An example call follows."""


def tool_json(spec: ToolSpec) -> str:
    """Return the tool as templates show it: one line of JSON."""
    return json.dumps(tool_to_openai(spec), ensure_ascii=False)


class ChatML:
    """The ChatML format for one tokenizer. `load_chat_format` creates it from a model folder.

    `default_system` is the system message of a conversation without one, or None if the template adds none. `prefill`
    is the template's text at the start of the assistant's turn, such as an empty thought that turns thinking off.
    `tool_block` is the text before and after tools in the style `json`. Raise ConfigError if the tokenizer lacks
    ChatML's tokens, or if one of them absorbs white space.
    """

    def __init__(
        self,
        tokenizer: FormatTokenizer,
        tool_style: ToolListStyle = "json",
        *,
        default_system: str | None = None,
        prefill: str = "",
        tool_block: tuple[str, str] = QWEN_TOOLS,
    ) -> None:
        if missing := {START, END} - tokenizer.added_tokens.keys():
            raise ConfigError(f"the tokenizer has no token {min(missing)}, so it is not a ChatML tokenizer")
        stripping_ids = {*tokenizer.rstrip_ids, *tokenizer.lstrip_ids}
        for text in _TOKENS:
            if tokenizer.added_tokens.get(text) in stripping_ids:
                raise ConfigError(f"the tokenizer's {text} absorbs white space beside it; in ChatML no token does")
        self._tokenizer = tokenizer
        self._style = tool_style
        self._system = default_system
        self._prefill = prefill
        self._opens_thought = hermes.THINK in prefill and hermes.THOUGHT not in prefill
        self._tool_block = tool_block if tool_style == "json" else SIGNATURES
        self._markup_ids = {text: tokenizer.added_tokens[text] for text in _MARKUP if text in tokenizer.added_tokens}
        markup = "|".join(map(re.escape, self._markup_ids))
        self._markup_pattern = re.compile(f"({markup})") if markup else None
        results_as_text = [text for text in (hermes.RESULT, hermes.RESULT_END) if text not in self._markup_ids]
        self._result_markers = results_as_text if tool_style == "json" else []
        self._start = tokenizer.added_tokens[START]
        self._end = tokenizer.added_tokens[END]
        self.stop_token_ids = frozenset(
            tokenizer.added_tokens[text] for text in (START, END, "<|endoftext|>") if text in tokenizer.added_tokens
        )
        self.template_deviation = ""
        self._newline = tokenizer.encode("\n")
        self._reply_start = self._ids([self._start, "assistant\n", *self._with_markup(prefill)])
        self._cached_opening = lru_cache(maxsize=256)(self._encode_opening)

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prefix: Sequence[int]) -> list[int]:
        """Return the tokens that append `messages` and open the assistant's turn. See `ChatFormat.encode`."""
        messages = escape_results(messages, tools, self._result_markers)
        if prefix:
            ids = list(self._newline) if prefix[-1] == self._end else [self._end, *self._newline]
        else:
            system = self._system
            if messages and messages[0].role == "system":
                system, messages = messages[0].content, messages[1:]
            shown = tuple(escape_markers(tool_json(tool), self._result_markers) for tool in tools)
            ids = list(self._cached_opening(system, shown))
        return [*ids, *self._ids(self._turns(messages)), *self._reply_start]

    def encode_reply(self, reply: Message) -> list[int]:
        """Return the tokens that the model would sample for an assistant message. Ids of calls are not written."""
        opening, thought, closing, text = split_thought(reply.content)
        if self._opens_thought:
            return self._ids([*self._after_open_thought(reply, thought, text), self._end])
        content = [*self._with_markup(opening), thought, *self._with_markup(closing), text]
        return self._ids([*self._with_calls(content if reply.content else [], reply), self._end])

    def _after_open_thought(self, reply: Message, thought: str, text: str) -> list[TextOrToken]:
        """Return a reply after a prompt that opens a thought: the rest of the thought, its end, and what follows."""
        if not thought and hermes.THOUGHT in reply.content:  # as in data of R1, which leaves out the opening tag
            thought, _, text = reply.content.partition(hermes.THOUGHT)
        if not thought:
            return [*self._with_markup(f"\n{hermes.THOUGHT}\n\n"), *self._with_calls([text] if text else [], reply)]
        return self._with_calls([thought.removeprefix("\n"), *self._with_markup(hermes.THOUGHT), text], reply)

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """Parse the sampled tokens up to the first stop token with `parse_message`."""
        end = next((i for i, token in enumerate(tokens) if token in self.stop_token_ids), len(tokens))
        text = self._prefill + self._tokenizer.decode(tokens[:end])
        next_turn = end < len(tokens) and tokens[end] == self._start
        parsed = parse_message(text, "hermes", tools)
        return replace(parsed, hallucinated_turn=next_turn or parsed.hallucinated_turn)

    def _encode_opening(self, system: str | None, tools: tuple[str, ...]) -> tuple[int, ...]:
        """Return the tokens of the system turn, or none without a system message and tools.

        The tools are JSON texts, so that they can be a key of the cache.
        """
        if system is None and not tools:
            return ()
        body: list[TextOrToken] = []
        if system is not None:
            body.append(system)
        if system is not None and tools:
            body.append("\n\n")
        if tools:
            body += self._tool_list(tools)
        return tuple(self._ids(self._turn("system", body)))

    def _tool_list(self, tools: Sequence[str]) -> list[TextOrToken]:
        before, after = self._tool_block
        example: list[TextOrToken] = []
        if self._style == "signature":
            specs = [ToolSpec(**json.loads(tool)["function"]) for tool in tools]
            tools = [tool_signature(spec) for spec in specs]
            example = self._call(example_call(specs[0]))
        return [*self._with_markup(before), "\n".join(tools), *self._with_markup(after), *example]

    def _turns(self, messages: Iterable[Message]) -> Iterator[TextOrToken]:
        for role, group in groupby(messages, key=lambda message: message.role):
            if role == "tool" and self._style == "json":
                yield from self._results(group)
                continue
            for message in group:
                content: list[TextOrToken] = [message.content] if message.content or role != "assistant" else []
                yield from self._turn(role, self._with_calls(content, message))

    def _turn(self, role: str, body: Iterable[TextOrToken]) -> list[TextOrToken]:
        return [self._start, f"{role}\n", *body, self._end, *self._newline]

    def _results(self, messages: Iterable[Message]) -> Iterator[TextOrToken]:
        """Yield consecutive tool results as one turn of the user."""
        yield from (self._start, "user")
        for message in messages:
            yield from self._with_markup(f"\n{hermes.RESULT}\n")
            yield message.content
            yield from self._with_markup(f"\n{hermes.RESULT_END}")
        yield from (self._end, *self._newline)

    def _with_calls(self, content: list[TextOrToken], reply: Message) -> list[TextOrToken]:
        """Return the content of a reply and its calls, each on its own line."""
        pieces = list(content)
        for call in reply.tool_calls:
            pieces += ["\n", *self._call(call)] if pieces else self._call(call)
        return pieces

    def _call(self, call: ToolCall) -> list[TextOrToken]:
        margin = "\n" if self._style == "json" else ""
        body = f"{margin}{hermes.render_call_json(call)}{margin}"
        return [*self._with_markup(hermes.OPEN), body, *self._with_markup(hermes.CLOSE)]

    def _with_markup(self, text: str) -> list[TextOrToken]:
        """Split text into plain text and the ids of markup tokens.

        Use it only for text of the format.
        """
        if self._markup_pattern is None:
            return [text]
        return [self._markup_ids.get(part, part) for part in self._markup_pattern.split(text)]

    def _ids(self, pieces: Iterable[TextOrToken]) -> list[int]:
        """Return token ids.

        Adjacent texts are joined before encoding, because one token may cover the end of a text and the beginning of
        the next.
        """
        ids: list[int] = []
        for kind, group in groupby(pieces, key=type):
            if kind is int:
                ids += group  # type: ignore[arg-type]
            elif text := "".join(group):  # type: ignore[arg-type]
                ids += self._tokenizer.encode(text)
        return ids
