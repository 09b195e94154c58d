"""TemplateFormat: a format derived from a chat template, for any template that renders each turn independently.

To append messages, the template renders a short conversation: a user message, a reply and the new messages. The text
after the reply is appended. This is correct only if the template renders each turn independently. So it is checked
once, on a conversation with calls: the text appended turn by turn must equal what the template renders at every turn.
Templates that rewrite earlier turns are refused. The tool format is the one whose parser reads the template's calls.

Deviations from the model's own template:
- Text in messages, calls and tools never becomes a control token (`control_text`). The exception are the tags of a
  thought at the start of a demonstration (`encode_reply`). In the history of a prompt (`encode`) they are text.
- If the template marks a tool result only with text, such as a `<tool_response>` that is no token, this text is escaped
  in other messages and in the result itself. This needs tools or results in the conversation.
- A thought that a prompt opens, or opens and closes, stays where the template later drops it (Qwen3.6, Nemotron 3). The
  token that ended a reply stays where the template later writes another one (gpt-oss). If a prompt opens a thought,
  `encode_reply` closes it at once, so that the thought is empty.
- If a template opens a thought after a user message but not after results (DeepSeek), the model opens its own thought.
- If a template writes strings of calls between quotes without escapes (LFM2.5), they are escaped, so that a quote or a
  backslash in them is read back.
- With `allow_rewrites`, every turn keeps the text that it had as the last turn. `loading` lists the families whose
  templates rewrite more than the above.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.formats.chat_format import ParsedMessage
from understudy.formats.control_text import ControlText, escape_markers, escape_results
from understudy.formats.jinja import ChatTemplate
from understudy.formats.parsing.parse import TOOL_FORMATS, parse_message, parse_reply
from understudy.formats.parsing.thoughts import split_thought
from understudy.formats.tokenizer import FormatTokenizer

_PLACEHOLDER = "c9a40d77e1"  # a random string that marks a reply, a call or a result in rendered text
_USER = Message(role="user", content="hello")
_CALL = ToolCall(name="f", arguments={"n": [1, None], "x": _PLACEHOLDER}, id="call00000")
_REPLY = Message(role="assistant", content=_PLACEHOLDER)
_CALLED = Message(role="assistant", tool_calls=(_CALL,))
_RESULT = Message(role="tool", content="result", tool_call_id=_CALL.id)
_SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
_TOOLS = (ToolSpec(name="f", description="what f does", parameters=_SCHEMA),)
_THOUGHT = re.compile(r"(?:<think>\s*+(?>(?:</think>\s*+)?)|</think>\s*+)\Z")
_EMPTY_THOUGHT = re.compile(r"(?>(?:<think>\s*+)?)</think>\s*+|<think>\s*+")
_OPENING = re.compile(r"<think>\s*+|(?=</think>)")
_CLOSING = "\n</think>\n\n"
_NAME = re.compile(r"[\w.-]{1,64}")
_ID = re.compile(r"\"id\": ?\"([A-Za-z0-9]{9})\"|\[CALL_ID\]([A-Za-z0-9]{9})\b")


class TemplateFormat:
    """The format of one chat template and tokenizer.

    `render` takes messages, tools, and `prompt`, which opens the assistant's turn at the end. `tool_format` is the
    syntax of calls; "" detects it. `extra_stop_ids` are stop tokens besides the template's. `template_deviation`
    describes how `render` deviates from the model's template. Raise ConfigError with the reason if turns cannot be
    appended to what the template renders.
    """

    def __init__(
        self,
        tokenizer: FormatTokenizer,
        render: ChatTemplate,
        *,
        tool_format: str = "",
        extra_stop_ids: Iterable[int] = (),
        allow_rewrites: bool = False,
        template_deviation: str = "",
    ) -> None:
        self._tokenizer = tokenizer
        self._template_function = render
        self.template_deviation = template_deviation
        self._control = ControlText(tokenizer.added_tokens)
        self._added_token = self._control.find
        self._markers: list[str] = []
        self._unescaped_quote = ""
        self._prompt_text = self._render([_USER], _TOOLS)
        self._prompt_stem, self._prefill = _split_thought(self._prompt_text)
        self._short_stem = _split_thought(self._render([_USER]))[0]
        self._tail = self._find_tail()
        self._ends_at_next_turn = self._ends_with_next_turn()
        self._stops: dict[bool, str] = {}
        self._stops = {
            bool(reply.tool_calls): self._last_token(self._render_reply(reply)) for reply in (_REPLY, _CALLED)
        }
        self._num_ends = {
            calls: len(self._added_token.findall(text[text.rfind(_PLACEHOLDER) :]))
            for calls, text in ((False, self._render_reply(_REPLY)), (True, self._render_reply(_CALLED)))
        }
        self.tool_format = tool_format or self._find_tool_format()
        self.stop_token_ids = frozenset(
            {tokenizer.added_tokens[stop] for stop in self._stops.values()} | set(extra_stop_ids)
        )
        result_stem, result_thought = _split_thought(self._render_after(_CALLED, [_RESULT])[1])
        self._opens_thoughts = "</think>" in self._prefill or result_thought == self._prefill
        if not self._opens_thoughts:
            self._prompt_text, self._prefill = self._prompt_stem, ""
        if self._prefill and "</think>" not in self._prefill:
            self.template_deviation = (
                "a thought that the prompt opens stays, and the text after it is encoded separately"
            )
        self._unescaped_quote = self._find_unescaped_quote()
        self._headers = {
            tokenizer.added_tokens.get(self._last_token(stem)) for stem in (self._prompt_stem, result_stem)
        }
        self._allows_parallel_calls = self._renders_completely(
            _CALLED.replace(tool_calls=(_CALL, _CALL.replace(id=_call_id(1))))
        )
        said = _CALLED.replace(content="said")
        self._allows_text_with_calls = self._renders_completely(said) and (
            allow_rewrites or self._is_unchanged(said, _RESULT)
        )
        self._results_name_calls = self._find_results_name_calls()
        self._markers = self._find_result_markers()
        self._check_replies()
        if not allow_rewrites:
            return self._check()
        self.template_deviation = (
            self.template_deviation or "the template rewrites earlier turns; here they stay as they were"
        )

    @property
    def shows_tools(self) -> bool:
        """Whether the template lists the available tools."""
        return _TOOLS[0].description in self._prompt_text

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prefix: Sequence[int]) -> list[int]:
        """Return the tokens that append `messages` and open the assistant's turn. See `ChatFormat.encode`."""
        messages = escape_results(messages, tools, self._markers)
        if not prefix:
            return self._ids(self._prompt(self._render(messages, tools)))
        reply = _REPLY
        if messages and messages[0].role == "tool":
            reply, messages = self._with_calls(messages, prefix)
        stop_id = self._tokenizer.added_tokens[self._stops[bool(reply.tool_calls)]]
        last = prefix[-1]
        text = self._prompt(self._render_appended(reply, messages))
        if last == stop_id or (last in self.stop_token_ids and not self._ends_at_next_turn):
            return self._ids(text, last)
        return [stop_id, *self._ids(text, stop_id)]

    def encode_reply(self, reply: Message) -> list[int]:
        """Return the tokens that the model would sample for an assistant message.

        Call ids follow from the calls' positions.

        Raise ConfigError if the template cannot render the reply: several calls, or text beside calls.
        """
        if len(reply.tool_calls) > 1 and not self._allows_parallel_calls:
            raise ConfigError(f"a reply has {len(reply.tool_calls)} calls, but the chat template allows one")
        if reply.content and reply.tool_calls and not self._allows_text_with_calls:
            raise ConfigError(
                f"a reply has the text {reply.content[:40]!r} beside calls, which the chat template drops or moves"
            )
        opens = self._prefill and "</think>" not in self._prefill
        if opens and "</think>" in reply.content and not split_thought(reply.content)[0]:
            reply = reply.replace(
                content=self._prefill + reply.content
            )  # as in data of R1: the prompt opens the thought
        calls = tuple(call.replace(id=_call_id(i)) for i, call in enumerate(reply.tool_calls))
        return self._ids(self._render_reply(reply.replace(tool_calls=calls)))

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """Parse the sampled tokens up to the first stop token."""
        end = next((i for i, token in enumerate(tokens) if token in self.stop_token_ids), len(tokens))
        return parse_message(self._prefill + self._tokenizer.decode(tokens[:end]), self.tool_format, tools)

    def _prompt(self, text: str) -> str:
        """Return the prompt.

        Some templates open a thought only after some kinds of turns. Their prompts leave it out, and the model opens
        its own.
        """
        return text if self._opens_thoughts else _split_thought(text)[0]

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        prompt: bool = True,
        *,
        keep_thoughts: bool = False,
    ) -> str:
        """Return the template's text. The text of messages and tools is marked: see `ControlText`."""
        escaped = map(self._escape_calls, messages) if self._unescaped_quote else messages
        shown = [self._control.mark_message(message, keep_thought=keep_thoughts) for message in escaped]
        shown_tools = [self._control.mark_tool(self._escape_tool(tool)) for tool in tools]
        return self._template_function(shown, shown_tools, prompt=prompt)

    def _escape_tool(self, tool: ToolSpec) -> ToolSpec:
        text = tool.model_dump_json() if self._markers else ""
        escaped = escape_markers(text, self._markers)
        return tool if escaped == text else ToolSpec.model_validate_json(escaped)

    def _escape_calls(self, message: Message) -> Message:
        """Return the message with escapes in the strings of its calls, for a template that writes none.

        Strings inside of lists and objects are left out: templates write these as JSON or as Python literals.
        """
        pairs = (("\\", "\\\\"), (self._unescaped_quote, f"\\{self._unescaped_quote}"), ("\n", "\\n"), ("\r", "\\r"))

        def escape(value: Any) -> Any:
            return reduce(lambda text, pair: text.replace(*pair), pairs, value) if isinstance(value, str) else value

        return message.replace(
            tool_calls=tuple(
                call.replace(arguments={key: escape(value) for key, value in call.arguments.items()})
                for call in message.tool_calls
            )
        )

    def _ids(self, text: str, before: int | None = None) -> list[int]:
        """Return the ids of added tokens and of the text between them. `before` is the token before the text."""
        ids: list[int] = []
        parts = [*self._added_token.split(text), ""]  # texts and added tokens alternate, a text first
        for part, token in zip(parts[::2], parts[1::2], strict=True):
            after = self._tokenizer.added_tokens.get(token)
            ids += self._tokenizer.encode_between(before, self._control.remove_marks(part), after)
            if after is not None:
                ids.append(after)
            before = after
        return ids

    def _render_reply(self, reply: Message) -> str:
        """Return the text that the model would sample for a reply after its prompt, with the token that ends it."""
        after = self._render([_USER, reply], _TOOLS, prompt=False, keep_thoughts=True).removesuffix(self._tail)
        start, closing = len(self._prompt_text), ""
        if not after.startswith(self._prompt_text):
            start = len(self._prompt_stem)
            if "</think>" not in self._prefill:  # it opens a thought, which the reply goes on with, or else closes
                opening = _OPENING.match(after, start)
                start, closing = opening.end() if opening else start, "" if opening else _CLOSING
        if not (after.startswith(self._prompt_text) or (self._prefill and after.startswith(self._prompt_stem))):
            raise ConfigError(
                f"a chat template whose prompt ends with {self._prompt_text[-40:]!r}, but with a reply it renders "
                f"{after[-60:]!r}"
            )
        text = closing + after[start:]
        if self._ends_at_next_turn:
            return text + (self._stops.get(bool(reply.tool_calls)) or self._next_turn(reply, after))
        end = max((token.end() for token in self._added_token.finditer(text)), default=len(text))
        return text[:end]

    def _next_turn(self, reply: Message, after: str) -> str:
        """Return the token that begins the turn after a reply."""
        then = _RESULT if reply.tool_calls else _USER
        whole = self._render([_USER, reply, then], _TOOLS, keep_thoughts=True)
        token = self._added_token.match(whole, len(after))
        if token is None or not whole.startswith(after):
            raise ConfigError(f"a chat template that ends replies without an added token: {after[-40:]!r}")
        return token[0]

    def _ends_with_next_turn(self) -> bool:
        """Return whether only the first token of the next turn ends a reply (GLM)."""
        after = self._render([_USER, _REPLY], _TOOLS, prompt=False).removesuffix(self._tail)
        sign = after.find(_PLACEHOLDER)
        if sign < 0:
            raise ConfigError(f"a chat template that leaves out the text of a reply: {after[-60:]!r}")
        return not self._added_token.search(after, sign)

    def _find_tail(self) -> str:
        """Return the text that some templates (Phi 3) append to a conversation rendered without `prompt`; "" for
        others.
        """
        text = self._render([_USER], _TOOLS, prompt=False)
        if self._prompt_text.startswith(text):
            return ""
        last_token_start = max((token.start() for token in self._added_token.finditer(text)), default=len(text))
        return text[last_token_start:]

    def _last_token(self, text: str) -> str:
        return (self._added_token.findall(text) or [""])[-1]  # type: ignore[no-any-return]

    def _render_appended(self, reply: Message, new: Sequence[Message]) -> str:
        """Return the text after a reply.

        If turns must alternate (Mistral), a user message after results is rendered separately.
        """
        results = [message for message in new if message.role == "tool"]
        try:
            return self._render_after(reply, new)[1]
        except ConfigError:
            if not 0 < len(results) < len(new):
                raise
        rest = [message for message in new if message.role != "tool"]
        return self._render_after(reply, results, prompt=False)[1] + self._render_after(_REPLY, rest)[1]

    def _render_after(self, reply: Message, new: Sequence[Message], prompt: bool = True) -> tuple[str, str]:
        """Render a reply followed by the messages `new`. Return the reply's text, and the text after it.

        The reply, or each of its calls, contains the placeholder. The reply ends with its stop token after the last
        placeholder. If the stop token is missing, as many added tokens follow the placeholder as in a reply that is the
        last message, and the last of them ends the reply.
        """
        text = self._render([_USER, reply, *new], prompt=prompt)
        position = len(self._short_stem) - 1
        for _ in reply.tool_calls or [reply]:
            if position >= 0:
                position = text.find(_PLACEHOLDER, position + 1)
        stop = self._stops[bool(reply.tool_calls)]
        end = text.find(stop, position) + len(stop)
        if end < len(stop):
            tokens = itertools.islice(
                self._added_token.finditer(text, position), self._num_ends[bool(reply.tool_calls)]
            )
            end = max((token.end() for token in tokens), default=-1)
        if position < 0 or end < position or not text.startswith(self._short_stem):
            raise ConfigError(
                f"a chat template that renders a reply differently once messages follow it: {text[-60:]!r}"
            )
        return text[len(self._short_stem) : end], text[end:]

    def _with_calls(self, new: Sequence[Message], before: Sequence[int]) -> tuple[Message, list[Message]]:
        """Return a reply with the calls that the results in `new` answer, and `new` with the ids of these calls.

        Names and ids are those of the last reply in `before`. If it has none, ids follow from the calls' positions.
        """
        results = [m for m in new if m.role == "tool"]
        names, ids = self._last_call_names_and_ids(before, len(results)) if self._results_name_calls else ([], [])
        calls = [
            _CALL.replace(name=names[i] if names else _CALL.name, id=ids[i] if ids else _call_id(i))
            for i in range(len(results))
        ]
        order = iter(calls)
        answers = [m.replace(tool_call_id=next(order).id) if m.role == "tool" else m for m in new]
        return _CALLED.replace(tool_calls=tuple(calls[: None if self._allows_parallel_calls else 1])), answers

    def _last_call_names_and_ids(self, before: Sequence[int], count: int) -> tuple[list[str], list[str]]:
        """Return the names and ids of the calls in the last reply; empty lists if their number is not `count`."""
        header = next((i for i in range(len(before) - 1, -1, -1) if before[i] in self._headers), len(before))
        reply = before[header + 1 :]
        calls = self.parse(reply).message.tool_calls
        names = [call.name if _NAME.fullmatch(call.name) else _CALL.name for call in calls]
        ids = [one or other for one, other in _ID.findall(self._tokenizer.decode(reply))]
        return names if len(names) == count else [], ids if len(ids) == count else []

    def _find_results_name_calls(self) -> bool:
        """Return whether results are rendered with the names or ids of their calls (gpt-oss, Mistral)."""
        others = (_CALL.replace(name="g"), _CALL.replace(id=_call_id(7)))
        texts = {
            self._render_after(_CALLED.replace(tool_calls=(call,)), [_RESULT.replace(tool_call_id=call.id)])[1]
            for call in (_CALL, *others)
        }
        return len(texts) > 1

    def _find_unescaped_quote(self) -> str:
        """Return the quote between which the template writes a string of a call without escapes, or ""."""
        text = f"{_PLACEHOLDER}\\n"
        before, found, _ = self._render_reply(
            _CALLED.replace(tool_calls=(_CALL.replace(arguments={"x": text}),))
        ).partition(text)
        return before[-1:] if found and before[-1:] in ("'", '"') else ""

    def _find_result_markers(self) -> list[str]:
        """Return the texts before and after a tool result, if only they distinguish it from a user's message."""
        user, result = (
            self._render_after(reply, [new.replace(content=_PLACEHOLDER)])[1].partition(_PLACEHOLDER)
            for reply, new in ((_REPLY, _USER), (_CALLED, _RESULT))
        )
        before = result[0].removeprefix(user[0])
        if not result[0].startswith(user[0]) or not before.strip() or self._added_token.search(before):
            return []
        return [marker for marker in (before.strip(), self._added_token.split(result[2])[0].strip()) if marker]

    def _renders_completely(self, reply: Message) -> bool:
        """Return whether the template renders all calls and the text of a reply.

        Llama's template refuses a second call, and drops text beside calls.
        """
        try:
            text = self._control.remove_marks(self._render_reply(reply)).removesuffix(self._stops[True])
        except ConfigError:
            return False
        parsed = parse_reply(text, self.tool_format, _TOOLS)
        return len(parsed.calls) == len(reply.tool_calls) and parsed.text == reply.content

    def _find_tool_format(self) -> str:
        text = self._control.remove_marks(self._render_reply(_CALLED)).removesuffix(self._stops[True])
        bare = _CALL.replace(id="")
        for name in TOOL_FORMATS:
            parsed = parse_reply(text, name, _TOOLS)
            if parsed.calls == (bare,) and not parsed.text and not parsed.repairs:
                return name
        if _PLACEHOLDER not in text:
            raise ConfigError(f"a chat template without tool calls: it renders one as {text!r}")
        raise ConfigError(f"a chat template whose calls match no known tool format: {text!r}")

    def _check_replies(self) -> None:
        """Raise ConfigError if a reply changes once messages follow it.

        The deviations in the module docstring are allowed.
        """
        for reply, new in ((_REPLY, _USER), (_CALLED, _RESULT)):
            then, now = self._render_after(reply, [new])[0], self._prefill + self._render_reply(reply)
            if self._last_token(then) != self._last_token(now):
                self.template_deviation = (
                    "the stop token of a reply stays; the template writes another one in earlier turns"
                )
            if not self._is_unchanged(reply, new):
                raise ConfigError(
                    "a chat template that renders a reply differently once messages follow it: "
                    f"{now!r} becomes {then!r}"
                )

    def _is_unchanged(self, reply: Message, new: Message) -> bool:
        """Return whether a reply keeps its text once a message follows it. Gemma 4 moves text after the results."""
        then, now = self._render_after(reply, [new])[0], self._prefill + self._render_reply(reply)
        return _without_thought_and_end(then, self._added_token) == _without_thought_and_end(now, self._added_token)

    def _check(self) -> None:
        """Raise ConfigError if appending turn by turn gives another text than the template at any turn."""
        users = [_USER.replace(content=f"hello {i}") for i in range(4)]
        talk = [Message(role="system", content="policy"), users[0], _REPLY, users[1], _CALLED, _RESULT, _REPLY]
        talk += [users[2], _CALLED, _RESULT, _CALLED, _RESULT, _REPLY, users[3], _REPLY]
        past, start = "", 0
        for turn, message in enumerate(talk):
            if message.role != "assistant":
                continue
            new = talk[start:turn]
            ours = past + (self._render_after(talk[start - 1], new)[1] if start else self._render(new, _TOOLS))
            theirs = self._render(talk[:turn], _TOOLS)
            if (ours := _EMPTY_THOUGHT.sub("", ours)) != (theirs := _EMPTY_THOUGHT.sub("", theirs)):
                at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
                raise ConfigError(f"a chat template that rewrites earlier turns: {theirs[at : at + 40]!r}")
            past, start = ours + self._render_after(message, talk[turn + 1 : turn + 2] or users)[0], turn + 1


def _split_thought(prompt: str) -> tuple[str, str]:
    """Split a prompt into the text before the thought that it opens, or opens and closes, and that thought."""
    thought = _THOUGHT.search(prompt)
    at = thought.start() if thought else len(prompt)
    return prompt[:at], prompt[at:]


def _without_thought_and_end(reply: str, tokens: re.Pattern[str]) -> str:
    """Return a rendered reply without an empty thought and without its stop token."""
    end = max((token.start() for token in tokens.finditer(reply)), default=len(reply))
    return _EMPTY_THOUGHT.sub("", reply[:end]).strip()


def _call_id(place: int) -> str:
    """Return an id of nine letters and digits, which Mistral's templates require."""
    return f"call{place:05}"
