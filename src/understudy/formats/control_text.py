"""Text of other people, kept apart from the text that a chat format writes.

A chat template joins its own text with text of users, tools and models, and the joined text is split at control tokens.
So a mark is put into the text of others first: inside each control token, and at an end that the template's text may
complete to one. After the split, the marks are removed.

Where a tool result is no control token but only text, such as `<tool_response>`, a person could write one.
`escape_markers` replaces its brackets and colons with characters that look alike. A conversation without tools is not
escaped: its client may write results itself.

Where another program tokenizes the text, marks cannot be removed after the split. `escape_control_text` then replaces
the brackets of all text that looks like a control token of a known family.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.formats.parsing.thoughts import split_thought

_MARK = "~b5d1e07c42~"  # a random string, which JSON quoting does not change
_LOOKALIKES = str.maketrans("<>[]:", "\u2039\u203a\u27e6\u27e7\uff1a")
_NAMED = (
    "s|bos|eos|unk|pad|mask|sop|eop|think|tool_call|tool_response|tool_calls|tools|arg_key|arg_value|start_of_turn|end_of_turn|"
    "start_function_(?:call|response|declaration)|end_function_(?:call|response|declaration)|escape|function_call"
)
# such as: <|im_start|>
_LOOKS_LIKE_CONTROL = re.compile(
    rf"<(?:[|｜][^<>\n]{{1,64}}|[^<>\n]{{1,64}}[|｜]|/?(?:{_NAMED}))>"
    r"|\[/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|SYSTEM_PROMPT|THINK|ARGS|CALL_ID|gMASK|sMASK)\]"
)
# such as: <|im_start|>
_INSIDE = re.compile(r"\A([^\w\s]++)(.*\w)([^\w\s]++)\Z", re.DOTALL)


class ControlText:
    """The control tokens of a tokenizer, as text. `find` matches one of them in text, in a group."""

    def __init__(self, tokens: Iterable[str]) -> None:
        texts = sorted(tokens, key=len, reverse=True)
        self.find = re.compile("(" + "|".join(map(re.escape, texts)) + ")") if texts else re.compile("(?!)")
        self._beginnings = {text[:end] for text in texts for end in range(1, len(text))}
        self._endings = {text[start:] for text in texts for start in range(1, len(text))}
        self._insides = {inside for text in texts for inside in _insides(text)}
        self._first = {text[0] for text in texts}
        self._last = {text[-1] for text in texts}
        self._longest = max(map(len, texts), default=0)

    def mark(self, value: Any) -> Any:
        """Return a JSON value whose strings, keys included, cannot be or become part of a control token."""
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, dict):
            return {self._mark_text(key): self.mark(part) for key, part in value.items()}
        return [self.mark(part) for part in value] if isinstance(value, list | tuple) else value

    def mark_message(self, message: Message, *, keep_thought: bool = False) -> Message:
        """Return the message with all of its texts marked.

        With `keep_thought`, the tags of a thought at the start of a reply stay.
        """
        content = self._mark_text(message.content)
        if keep_thought and content != message.content and message.role == "assistant":
            content = self._mark_reply(message.content)
        calls = tuple(map(self._mark_call, message.tool_calls))
        answered = self._mark_text(message.tool_call_id)
        if (content, calls, answered) == (message.content, message.tool_calls, message.tool_call_id):
            return message
        return message.replace(content=content, tool_calls=calls, tool_call_id=answered)

    def mark_tool(self, tool: ToolSpec) -> ToolSpec:
        """Return the tool with all of its texts marked."""
        return ToolSpec.model_validate(self.mark(tool.model_dump()))

    def remove_marks(self, text: str) -> str:
        """Return the text without marks."""
        return text.replace(_MARK, "")

    def _mark_call(self, call: ToolCall) -> ToolCall:
        name, arguments, id_ = self._mark_text(call.name), self.mark(call.arguments), self._mark_text(call.id)
        if (name, arguments, id_) == (call.name, call.arguments, call.id):
            return call
        return call.replace(name=name, arguments=arguments, id=id_)

    def _mark_reply(self, content: str) -> str:
        before, thought, after, rest = split_thought(content)
        marked = before + self._mark_text(thought) + after + self._mark_text(rest)
        return marked if before else self._mark_text(content)

    def _mark_text(self, text: str) -> str:
        text = text.replace(_MARK, "")
        while self.find.search(text):  # again, because tokens may overlap
            text = self.find.sub(lambda token: token[0][0] + _MARK + token[0][1:], text)
        # Templates trim white space, so a mark stands beside the first or last other character.
        bare = text.strip()
        head, tail = bare[: self._longest], bare[-self._longest :]
        if not self._first.isdisjoint(tail) and any(tail[at:] in self._beginnings for at in range(len(tail))):
            text = text[: len(text.rstrip())] + _MARK + text[len(text.rstrip()) :]
        elif bare in self._insides:
            text = text.replace(bare, bare + _MARK)
        if not self._last.isdisjoint(head) and any(head[:end] in self._endings for end in range(1, len(head) + 1)):
            text = text[: len(text) - len(text.lstrip())] + _MARK + text.lstrip()
        return text


def _insides(token: str) -> Iterable[str]:
    """Yield the parts of a token that text around them may complete: `think`, `/think` and `think>` lack an edge.

    The text around them is one of the token's own brackets, as in `<NAME>`, which templates write around names.
    """
    if parts := _INSIDE.match(token):
        before, inside, after = parts.groups()
        for start in range(1, len(before) + 1):
            yield from (before[start:] + inside + after[:end] for end in range(len(after)))


def escape_results(messages: Sequence[Message], tools: Sequence[ToolSpec], markers: Sequence[str]) -> list[Message]:
    """Return the messages with the markers of results escaped, except in replies, if there are tools or results.

    A reply cannot look like a result, because it stands in the assistant's turn.
    """
    if not markers or not (tools or any(message.role == "tool" for message in messages)):
        return list(messages)
    return [
        message.replace(content=escape_markers(message.content, markers))
        if message.role != "assistant" and any(marker in message.content for marker in markers)
        else message
        for message in messages
    ]


def escape_markers(text: str, markers: Sequence[str]) -> str:
    """Return the text with each marker's brackets and colons replaced by characters that look alike."""
    for marker in markers:
        if marker in text:
            escaped = marker.translate(_LOOKALIKES)
            text = text.replace(marker, escaped if escaped != marker else f"{marker[0]}\u200b{marker[1:]}")
    return text


def escape_control_text(text: str) -> str:
    """Return the text with the brackets of what looks like a control token replaced by characters that look alike.

    Use it for text that another program tokenizes. It covers `<|…|>` and its variants with one bar or full-width bars,
    and the names of other control tokens of Qwen, Llama, Mistral, Gemma, GLM and DeepSeek. A tokenizer with tokens of
    other forms needs the format of its model, which inserts no look-alikes (`ControlText`).
    """
    return _LOOKS_LIKE_CONTROL.sub(lambda found: found[0].translate(_LOOKALIKES), text)
