"""A format for any chat template to which conversations can be appended; one that rewrites what was said is refused.

What comes after a reply is what the template renders after one, with a short conversation before it. That is sound
only where a template renders each turn by itself, so it is checked once, on a conversation with calls: appended turn by
turn, it has to be what the template renders at every turn. The dialect of the calls is the one that reads them.

Deviations from the model's own template:
- Text in messages and tools never becomes a control token: it is rendered with a mark within each, and the mark is
  taken out when the rest has been split into tokens. Replies are the exception, as in `chatml`.
- A thought that a prompt opens, or opens and closes, stays where the template later drops it (Qwen3.6, Nemotron 3); so
  does the token that ended a reply where the template later writes another (gpt-oss). A reply that is written and not
  sampled has an empty thought.
- Where a template opens a thought after a user's message and none after results (DeepSeek), the model opens its own.
- With `kept`, all stays as it was when it was new: `find` names the families whose templates rewrite more than that.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from understudy.errors import ConfigError
from understudy.formats.base import Parsed
from understudy.formats.jinja import Template
from understudy.formats.parse import DIALECTS, parse, parsed
from understudy.formats.vocabulary import Vocabulary
from understudy.messages import Message, ToolCall, ToolSpec

_MARK, _SIGN = "~b5d1e07c42~", "c9a40d77e1"  # no text has them, and they are the same when quoted in any way
_USER = Message(role="user", content="hello")
_CALL = ToolCall(name="f", arguments={"n": [1, None], "x": _SIGN}, id="call00000")
_REPLY = Message(role="assistant", content=_SIGN)
_CALLED = Message(role="assistant", tool_calls=(_CALL,))
_RESULT = Message(role="tool", content="result", tool_call_id=_CALL.id)
_SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
_TOOLS = (ToolSpec(name="f", description="what f does", parameters=_SCHEMA),)
_THOUGHT = re.compile(r"(?:<think>\s*+(?:</think>\s*+)?+|</think>\s*+)\Z")
_EMPTY_THOUGHT = re.compile(r"(?:<think>\s*+)?+</think>\s*+|<think>\s*+")
_CLOSING = "\n</think>\n\n"
_NAME = re.compile(r"[\w.-]{1,64}")
_ID = re.compile(r"\"id\": ?\"([A-Za-z0-9]{9})\"|\[CALL_ID\]([A-Za-z0-9]{9})\b")


class TemplateFormat:
    """The format of one template and tokenizer. `render` takes messages, tools, and `prompt`: if a reply follows.

    `dialect` is how calls are written, "" to find out; `ends` are tokens that end replies beside the template's own;
    `deviation` says what `render` does otherwise than the model's template.
    Raises ConfigError with the reason where nothing can be appended to what the template renders.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        render: Template,
        *,
        dialect: str = "",
        ends: Iterable[int] = (),
        kept: bool = False,
        deviation: str = "",
    ) -> None:
        self._vocabulary, self._template, self.deviation = vocabulary, render, deviation
        added = sorted(vocabulary.added, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, added)) + ")") if added else re.compile("(?!)")
        self._opened = self._rendered([_USER], _TOOLS)
        self._stem, self._prefill = _parted(self._opened)
        self._short = _parted(self._rendered([_USER]))[0]
        self._tail = self._find_tail()
        self._shares_ends = self._ends_with_next_turn()
        self._stops: dict[bool, str] = {}
        self._stops = {bool(reply.tool_calls): self._last_token(self._reply(reply)) for reply in (_REPLY, _CALLED)}
        self.dialect = dialect or self._find_dialect()
        self.stop_tokens = frozenset({vocabulary.added[stop] for stop in self._stops.values()} | set(ends))
        answered, thought = _parted(self._following(_CALLED, [_RESULT])[1])
        self._opens_thoughts = "</think>" in self._prefill or thought == self._prefill
        if not self._opens_thoughts:
            self._opened, self._prefill = self._stem, ""
        if self._prefill and "</think>" not in self._prefill:
            self.deviation = "a thought that the prompt opens stays, and what follows has tokens of its own"
        self._headers = {vocabulary.added.get(self._last_token(stem)) for stem in (self._stem, answered)}
        self._several = self._renders(_CALLED.replace(tool_calls=(_CALL, _CALL.replace(id=_id(1)))))
        self._says_beside_calls = self._renders(_CALLED.replace(content="said"))
        self._recalls = self._says_what_was_called()
        self._check_replies()
        if not kept:
            return self._check()
        self.deviation = self.deviation or "the template rewrites earlier turns, and here they stay as they were"

    @property
    def shows_tools(self) -> bool:
        """Whether the template tells the model which tools there are."""
        return _TOOLS[0].description in self._opened

    def encode(self, new: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[int]) -> list[int]:
        """The tokens that append `new` and open the assistant's turn."""
        if not before:
            return self._ids(self._prompt(self._rendered(new, tools)))
        reply, new = self._answered(new, before) if new and new[0].role == "tool" else (_REPLY, new)
        own, last = self._vocabulary.added[self._stops[bool(reply.tool_calls)]], before[-1]
        closed = last == own or (last in self.stop_tokens and not self._shares_ends)
        shown = self._ids(self._prompt(self._appended(reply, new)), last if closed else own)
        return [*([] if closed else [own]), *shown]

    def render(self, reply: Message) -> list[int]:
        """An assistant message as the model would have sampled it. Ids of calls are those of their places."""
        if len(reply.tool_calls) > 1 and not self._several:
            raise ConfigError(f"a reply with {len(reply.tool_calls)} calls, where the chat template takes one")
        if reply.content and reply.tool_calls and not self._says_beside_calls:
            raise ConfigError(f"a reply with calls says {reply.content[:40]!r}, which the chat template leaves out")
        calls = tuple(call.replace(id=_id(i)) for i, call in enumerate(reply.tool_calls))
        return self._ids(self._reply(reply.replace(tool_calls=calls)), own=True)

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Parsed:
        """What was sampled up to its first stop token."""
        end = next((i for i, token in enumerate(tokens) if token in self.stop_tokens), len(tokens))
        return parsed(self._prefill + self._vocabulary.decode(tokens[:end]), self.dialect, tools)

    def _prompt(self, text: str) -> str:
        """A prompt as it is given: one that opens thoughts after some turns only leaves that to the model."""
        return text if self._opens_thoughts else _parted(text)[0]

    def _rendered(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), prompt: bool = True) -> str:
        """The template's text; in all that is not an assistant's, added tokens are broken by a mark."""
        kept = [m if m.role == "assistant" else m.replace(content=self._broken(m.content)) for m in messages]
        shown = [ToolSpec.model_validate(self._broken(tool.model_dump())) for tool in tools]
        return self._template(kept, shown, prompt=prompt)

    def _broken(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._split.sub(lambda token: token[0][0] + _MARK + token[0][1:], value.replace(_MARK, ""))
        if isinstance(value, dict):
            return {self._broken(key): self._broken(part) for key, part in value.items()}
        return [self._broken(part) for part in value] if isinstance(value, list | tuple) else value

    def _ids(self, text: str, before: int | None = None, own: bool = False) -> list[int]:
        """Added tokens by their ids, and the text between them; `before` is the token that all of it follows."""
        ids: list[int] = []
        parts = [*self._split.split(text), ""]  # a text, then a token and a text, again and again
        for said, token in zip(parts[::2], parts[1::2], strict=True):
            after = self._vocabulary.added.get(token)
            ids += self._vocabulary.between(before, said if own else said.replace(_MARK, ""), after)
            ids += [] if after is None else [after]
            before = after
        return ids

    def _reply(self, reply: Message) -> str:
        """What the model would sample for a reply after its prompt, up to the token that ends it."""
        after = self._rendered([_USER, reply], _TOOLS, prompt=False).removesuffix(self._tail)
        start, closing = len(self._opened), ""
        if not after.startswith(self._opened):
            start, closing = len(self._stem), "" if "</think>" in self._prefill else _CLOSING
        if not (after.startswith(self._opened) or (self._prefill and after.startswith(self._stem))):
            raise ConfigError(f"a chat template that begins a reply with {self._opened[-40:]!r}, then {after[-60:]!r}")
        text = closing + after[start:]
        if self._shares_ends:
            return text + (self._stops.get(bool(reply.tool_calls)) or self._next_turn(reply, after))
        end = max((token.end() for token in self._split.finditer(text)), default=len(text))
        return text[:end]

    def _next_turn(self, reply: Message, after: str) -> str:
        """The token that begins the turn after a reply."""
        whole = self._rendered([_USER, reply, _RESULT if reply.tool_calls else _USER], _TOOLS)
        token = self._split.match(whole, len(after))
        if token is None or not whole.startswith(after):
            raise ConfigError(f"a chat template that ends replies with no token of the tokenizer: {after[-40:]!r}")
        return token[0]

    def _ends_with_next_turn(self) -> bool:
        """Whether replies end with nothing but the token that begins the next turn (GLM)."""
        after = self._rendered([_USER, _REPLY], _TOOLS, prompt=False).removesuffix(self._tail)
        sign = after.find(_SIGN)
        if sign < 0:
            raise ConfigError(f"a chat template that leaves out what a reply says: {after[-60:]!r}")
        return not self._split.search(after, sign)

    def _find_tail(self) -> str:
        """What some templates put after a conversation that no reply follows (Phi 3)."""
        said = self._rendered([_USER], _TOOLS, prompt=False)
        last = max((token.start() for token in self._split.finditer(said)), default=len(said))
        return "" if self._opened.startswith(said) else said[last:]

    def _last_token(self, text: str) -> str:
        return (self._split.findall(text) or [""])[-1]  # type: ignore[no-any-return]

    def _appended(self, reply: Message, new: Sequence[Message]) -> str:
        """What comes after a reply; where turns have to alternate (Mistral), a user's message apart from results."""
        results = [message for message in new if message.role == "tool"]
        try:
            return self._following(reply, new)[1]
        except ConfigError:
            if not 0 < len(results) < len(new):
                raise
        rest = [message for message in new if message.role != "tool"]
        return self._following(reply, results, prompt=False)[1] + self._following(_REPLY, rest)[1]

    def _following(self, reply: Message, new: Sequence[Message], prompt: bool = True) -> tuple[str, str]:
        """What the template renders of a reply once `new` follows it, and what it renders after that.

        The reply has a sign in it, or one in each call; it ends at its own token after that, or at the first one there.
        """
        whole, sign = self._rendered([_USER, reply, *new], prompt=prompt), len(self._short) - 1
        for _ in reply.tool_calls or [reply]:
            sign = whole.find(_SIGN, sign + 1) if sign >= 0 else sign
        stop = self._stops[bool(reply.tool_calls)]
        end = whole.find(stop, sign) + len(stop)
        if end < len(stop) and (token := self._split.search(whole, sign)):
            end = token.end()
        if sign < 0 or end < sign or not whole.startswith(self._short):
            raise ConfigError(f"a chat template that renders a reply otherwise once more follows it: {whole[-60:]!r}")
        return whole[len(self._short) : end], whole[end:]

    def _answered(self, new: Sequence[Message], before: Sequence[int]) -> tuple[Message, list[Message]]:
        """A reply with the calls that the results in `new` answer, and `new` with the ids of these calls.

        Names and ids are those that the last reply in `before` has; without any, ids go by place.
        """
        results = [m for m in new if m.role == "tool"]
        names, ids = self._recalled(before, len(results)) if self._recalls else ([], [])
        calls = [
            _CALL.replace(name=names[i] if names else _CALL.name, id=ids[i] if ids else _id(i))
            for i in range(len(results))
        ]
        order = iter(calls)
        answers = [m.replace(tool_call_id=next(order).id) if m.role == "tool" else m for m in new]
        return _CALLED.replace(tool_calls=tuple(calls[: None if self._several else 1])), answers

    def _recalled(self, before: Sequence[int], count: int) -> tuple[list[str], list[str]]:
        """The names and ids of the calls in the last reply; none where there are not just as many as results."""
        at = next((i for i in range(len(before) - 1, -1, -1) if before[i] in self._headers), len(before))
        reply = before[at + 1 :]
        calls = self.parse(reply).message.tool_calls
        names = [call.name if _NAME.fullmatch(call.name) else _CALL.name for call in calls]
        ids = [one or other for one, other in _ID.findall(self._vocabulary.decode(reply))]
        return names if len(names) == count else [], ids if len(ids) == count else []

    def _says_what_was_called(self) -> bool:
        """Whether results are rendered with the names or ids of their calls (gpt-oss, Mistral)."""
        others = (_CALL.replace(name="g"), _CALL.replace(id=_id(7)))
        texts = {
            self._following(_CALLED.replace(tool_calls=(call,)), [_RESULT.replace(tool_call_id=call.id)])[1]
            for call in (_CALL, *others)
        }
        return len(texts) > 1

    def _renders(self, reply: Message) -> bool:
        """Whether all of a reply with calls is in what is rendered. Llama's refuses a second one, and drops text."""
        try:
            text = self._reply(reply).removesuffix(self._stops[True])
        except ConfigError:
            return False
        reading = parse(text, self.dialect, _TOOLS)
        return len(reading.calls) == len(reply.tool_calls) and reading.text == reply.content

    def _find_dialect(self) -> str:
        text = self._reply(_CALLED).removesuffix(self._stops[True])
        bare = _CALL.replace(id="")
        for name in DIALECTS:
            reading = parse(text, name, _TOOLS)
            if reading.calls == (bare,) and not reading.text and not reading.repairs:
                return name
        if _SIGN not in text:
            raise ConfigError(f"a chat template without calls: it renders one as {text!r}")
        raise ConfigError(f"a chat template whose calls are of no known dialect: {text!r}")

    def _check_replies(self) -> None:
        """A reply has to stay as it was sampled, but for what the module's docstring says."""
        for reply, new in ((_REPLY, _USER), (_CALLED, _RESULT)):
            then, now = self._following(reply, [new])[0], self._prefill + self._reply(reply)
            if self._last_token(then) != self._last_token(now):
                self.deviation = "the token that ended a reply stays; the template writes another one in earlier turns"
            if _bare(then, self._split) != _bare(now, self._split):
                raise ConfigError(
                    f"a chat template that renders a reply otherwise once more follows it: {now!r} becomes {then!r}"
                )

    def _check(self) -> None:
        """Turns, appended one by one, have to be what the template renders at every turn."""
        users = [_USER.replace(content=f"hello {i}") for i in range(4)]
        talk = [Message(role="system", content="policy"), users[0], _REPLY, users[1], _CALLED, _RESULT, _REPLY]
        talk += [users[2], _CALLED, _RESULT, _CALLED, _RESULT, _REPLY, users[3], _REPLY]
        past, start = "", 0
        for turn, message in enumerate(talk):
            if message.role != "assistant":
                continue
            new = talk[start:turn]
            ours = past + (self._following(talk[start - 1], new)[1] if start else self._rendered(new, _TOOLS))
            theirs = self._rendered(talk[:turn], _TOOLS)
            if (ours := _EMPTY_THOUGHT.sub("", ours)) != (theirs := _EMPTY_THOUGHT.sub("", theirs)):
                at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
                raise ConfigError(f"a chat template that rewrites earlier turns: {theirs[at : at + 40]!r}")
            past, start = ours + self._following(message, talk[turn + 1 : turn + 2] or users)[0], turn + 1


def _parted(prompt: str) -> tuple[str, str]:
    """A prompt without the thought that it opens, or opens and closes, and that."""
    thought = _THOUGHT.search(prompt)
    at = thought.start() if thought else len(prompt)
    return prompt[:at], prompt[at:]


def _bare(reply: str, tokens: re.Pattern[str]) -> str:
    """A rendered reply without an empty thought and the token that ends it."""
    end = max((token.start() for token in tokens.finditer(reply)), default=len(reply))
    return _EMPTY_THOUGHT.sub("", reply[:end]).strip()


def _id(place: int) -> str:
    """Nine letters and digits, as Mistral's templates want them."""
    return f"call{place:05}"
