"""A format for any chat template to which conversations can be appended; one that rewrites what was said is refused.

What comes after a reply is what the template renders after one, with a short conversation before it. That is sound
only where a template renders each turn by itself, so it is checked once, on a conversation with calls: appended turn by
turn, it has to be what the template renders at every turn. The dialect of the calls is the one that reads them.

Text in messages and tools never becomes a control token: it is rendered with a mark within each, and the mark is taken
out when the rest has been split into tokens. Replies are the exception, as in `chatml`.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from understudy.errors import ConfigError
from understudy.formats.base import Parsed
from understudy.formats.parse import DIALECTS, parse
from understudy.formats.vocabulary import Vocabulary
from understudy.messages import Message, ToolCall, ToolSpec

Template = Callable[..., str]

_MARK = "\ue002"
_USER = Message(role="user", content="hello")
_CALL = ToolCall(name="f", arguments={"x": "y", "n": [1, None]}, id="call00001")
_REPLY = Message(role="assistant", content="reply")
_CALLED = Message(role="assistant", tool_calls=(_CALL,))
_RESULT = Message(role="tool", content="result", tool_call_id=_CALL.id)
_SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
_TOOLS = (ToolSpec(name="f", description="d", parameters=_SCHEMA),)


class TemplateFormat:
    """The format of one template and tokenizer. `render` takes messages, tools, and `prompt`: if a reply follows."""

    def __init__(self, vocabulary: Vocabulary, render: Template) -> None:
        self._vocabulary, self._template = vocabulary, render
        added = sorted(vocabulary.added, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, added)) + ")") if added else re.compile("(?!)")
        self._ends = {self._stop(_REPLY), self._stop(_CALLED)}
        self.stop_tokens = frozenset(vocabulary.added[end] for end in self._ends)
        self._dialect = self._find_dialect()
        self._several = self._takes_several_calls()
        self._check()

    def encode(self, new: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[int]) -> list[int]:
        """The tokens that append `new` and open the assistant's turn."""
        if not before:
            return self._ids(self._rendered(new, tools))
        reply = _REPLY if not new or new[0].role != "tool" else self._called(new)
        closed = before[-1] in self.stop_tokens
        return [*([] if closed else self._ids(self._stop(reply))), *self._ids(self._following(reply, new))]

    def render(self, reply: Message) -> list[int]:
        """An assistant message as the model would have sampled it."""
        return self._ids(self._reply(reply), own=True)

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Parsed:
        """What was sampled up to its first stop token."""
        end = next((i for i, token in enumerate(tokens) if token in self.stop_tokens), len(tokens))
        reading = parse(self._vocabulary.decode(tokens[:end]), self._dialect, tools)
        message = Message(role="assistant", content=reading.text, tool_calls=reading.calls)
        return Parsed(message, reading.status, reading.other_side, reading.repairs, reading.faults)

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

    def _ids(self, text: str, own: bool = False) -> list[int]:
        """Added tokens by their ids, and the text between them."""
        ids: list[int] = []
        for part in self._split.split(text):
            if part in self._vocabulary.added:
                ids.append(self._vocabulary.added[part])
            elif part:
                ids += self._vocabulary.encode(part if own else part.replace(_MARK, ""))
        return ids

    def _reply(self, reply: Message) -> str:
        """What the template renders for a reply after its prompt, up to the token that ends it."""
        before, after = self._rendered([_USER], _TOOLS), self._rendered([_USER, reply], _TOOLS, prompt=False)
        if not after.startswith(before):
            raise ConfigError(
                f"a chat template that begins a reply with {before[-40:]!r} and then renders {after[-60:]!r}"
            )
        ends = [token.end() for token in self._split.finditer(after, len(before))]
        if not ends:
            raise ConfigError(f"a chat template that ends replies with no token of the tokenizer: {after[-40:]!r}")
        return after[len(before) : ends[-1]]

    def _stop(self, reply: Message) -> str:
        return self._split.findall(self._reply(reply))[-1]  # type: ignore[no-any-return]

    def _following(self, reply: Message, new: Sequence[Message]) -> str:
        said = self._rendered([_USER], _TOOLS) + self._reply(reply)
        whole = self._rendered([_USER, reply, *new], _TOOLS)
        if not whole.startswith(said):
            raise ConfigError(f"a chat template that renders a reply otherwise once {new[0].role} text follows it")
        return whole[len(said) :]

    def _called(self, new: Sequence[Message]) -> Message:
        """A reply whose calls the results in `new` answer."""
        results = [m for m in new if m.role == "tool"][: None if self._several else 1]
        return _CALLED.replace(tool_calls=tuple(_CALL.replace(id=m.tool_call_id or _CALL.id) for m in results))

    def _takes_several_calls(self) -> bool:
        """Llama's template refuses a second call; the results of what the model called all the same are rendered."""
        try:
            self._reply(_CALLED.replace(tool_calls=(_CALL, _CALL)))
        except ConfigError:
            return False
        return True

    def _find_dialect(self) -> str:
        text = self._reply(_CALLED).removesuffix(self._stop(_CALLED))
        bare = _CALL.replace(id="")
        for name in DIALECTS:
            reading = parse(text, name, _TOOLS)
            if reading.calls == (bare,) and not reading.text and not reading.repairs:
                return name
        if _CALL.name not in text:
            raise ConfigError(f"a chat template without calls: it renders one as {text!r}")
        raise ConfigError(f"a chat template whose calls are of no known dialect: {text!r}")

    def _check(self) -> None:
        """Turns, appended one by one, have to be what the template renders at every turn."""
        talk = [Message(role="system", content="policy"), _USER, _REPLY, _USER, _CALLED, _RESULT, _REPLY, _USER]
        ours, start = "", 0
        for turn, message in enumerate(talk):
            if message.role != "assistant":
                continue
            new = talk[start:turn]
            ours += self._following(talk[start - 1], new) if start else self._rendered(new, _TOOLS)
            theirs = self._rendered(talk[:turn], _TOOLS)
            if ours != theirs:
                at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
                raise ConfigError(f"a chat template that rewrites earlier turns: {theirs[at : at + 40]!r}")
            ours += self._reply(message)
            start = turn + 1
