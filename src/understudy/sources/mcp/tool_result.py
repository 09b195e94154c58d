"""ToolResult: the answer of a server's tool, sanitized for a model.

Nothing that a server returns may look like a turn of the conversation or like a call. Control characters and invisible
characters are removed. Markers of roles, calls and thoughts (`<tool_call>`) get other brackets, and "User:" gets
another colon.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from mcp.types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from understudy.core.records import Record

Sanitizer = Callable[[str], str]

OPEN = "\u2039"
CLOSE = "\u203a"
SQUARE = "\u27e6"
COLON = "\uff1a"
"""Replacements for < > [ and : in markers. They look much alike."""

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
# C0 and C1 but tab and newline, zero-width and direction marks, tags, lone surrogates.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f\ud800-\udfff]"
)
_TAGS = (
    "tool_calls?|tool_responses?|tool_results?|tools?|think|thinking|function_calls?|function|parameter|invoke|"
    "start_of_turn|end_of_turn|bos|eos|s|sys|system|user|assistant|human|inst"
)
_TAG = re.compile(
    rf"<(\s*/?\s*(?:antml:)?(?:{_TAGS})\b[^<>\n]{{0,200}})>|<([|｜][^<>\n]{{0,100}}[|｜])>", re.IGNORECASE
)
_SQUARE = re.compile(r"\[(/?(?:INST|SYS|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID)\b)")
_DOUBLE = re.compile(r"<<(/?SYS)>>")
_ROLE = re.compile(r"^([ \t]*(?:#+ *)?(?:System|User|Assistant|Human|Action)[ \t]*):(?=[ \t]|$)", re.MULTILINE)


class ToolResult(Record):
    """A sanitized answer."""

    text: str
    structured: Any = None
    """The structured result, if there is one."""
    is_error: bool = False
    """Whether the tool reports that the call failed."""
    truncated: bool = False
    """Whether `text` was truncated."""

    @property
    def value(self) -> Any:
        """Return the structured result, else the text parsed as JSON, else the text."""
        if self.structured is not None:
            return self.structured
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return self.text


def to_tool_result(result: CallToolResult, clean: Sanitizer, max_characters: int) -> ToolResult:
    """Convert a result, up to `max_characters`: its texts, and its structured value as JSON if they do not contain it.

    Checks of a task read the structured value, so the agent must see it.
    """
    text = "\n".join(map(_block, result.content))
    if result.structured_content is not None and not (text and _contains(text, result.structured_content)):
        structured = json.dumps(result.structured_content, ensure_ascii=False)
        text = f"{text}\n{structured}" if text else structured
    text, cut = _cut(clean(text), max_characters)
    return ToolResult(
        text=text, structured=map_texts(result.structured_content, clean), is_error=bool(result.is_error), truncated=cut
    )


def result_size(result: CallToolResult) -> int:
    """Return the length of the result's texts and of its structured value, in characters."""
    structured = result.structured_content
    size = 0 if structured is None else len(json.dumps(structured, ensure_ascii=False))
    return max(size, sum(len(_block(block)) for block in result.content))


def sanitize_text(text: str) -> str:
    """Remove control characters, and rewrite everything that could be read as a turn or a call."""
    text = _CONTROL.sub("", _ESCAPE.sub("", text.replace("\r\n", "\n")))
    text = _DOUBLE.sub(rf"{OPEN * 2}\1{CLOSE * 2}", text)
    text = _TAG.sub(lambda found: f"{OPEN}{found[1] or found[2]}{CLOSE}", text)
    return _ROLE.sub(rf"\1{COLON}", _SQUARE.sub(rf"{SQUARE}\1", text))


def map_texts(value: Any, clean: Sanitizer) -> Any:
    """Return a JSON value with all its texts sanitized."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [map_texts(item, clean) for item in value]
    return {clean(key): map_texts(item, clean) for key, item in value.items()} if isinstance(value, dict) else value


def _contains(text: str, value: Any) -> bool:
    """Return True if each text, number and truth value of a JSON value is in `text`, as it is or as JSON."""
    if isinstance(value, dict):
        return all(_contains(text, item) for item in value.values())
    if isinstance(value, list):
        return all(_contains(text, item) for item in value)
    if isinstance(value, str):
        return any(
            re.search(rf"(?<!\w){re.escape(form)}(?!\w)", text)
            for form in (value, json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1])
        )
    if value is None:
        return True
    if isinstance(value, bool):
        return re.search(rf"\b{value}\b", text, re.IGNORECASE) is not None
    return (
        re.search(rf"(?<![\w.,-]){re.escape(json.dumps(value).removesuffix('.0'))}(?:\.0+)?(?!\w|[.,]\d)", text)
        is not None
    )


def _cut(text: str, most: int) -> tuple[str, bool]:
    if len(text) <= most:
        return text, False
    return f"{text[:most]}\n[cut here: {most} of {len(text)} characters]", True


def _block(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return f"[{resource.uri}]\n{resource.text}"
        case EmbeddedResource(resource=resource):
            return f"[{resource.uri}: {resource.mime_type or 'binary'}, not shown]"
        case ResourceLink():
            return " ".join(_link(block))
        case ImageContent() | AudioContent():
            return f"[{block.type}: {block.mime_type}, not shown]"


def _link(block: ResourceLink) -> Iterator[str]:
    yield f"[{block.uri}]"
    yield block.title or block.name
    if block.description:
        yield f"- {block.description}"
