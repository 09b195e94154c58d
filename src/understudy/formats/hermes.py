"""Tool calls in text, as the Hermes models write them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

`read` is strict: a call is a JSON object of exactly `name` and `arguments`, or it is malformed, and says why. Nothing
is repaired and no argument invented. A tag inside a JSON string is part of the string. Thoughts (`<think>…</think>`,
or up to the end where they are not closed) are neither said nor searched for calls. A reply that goes on with a
`<tool_response>` plays the tool, and is cut there. Time is linear in the length of the text.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from understudy import values
from understudy.messages import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
RESULT, RESULT_END = "<tool_response>", "</tool_response>"

_MARK = re.compile(f"{THINK}|{OPEN}|{CLOSE}|{RESULT}")
_TAG = re.compile(f"{OPEN}|{CLOSE}")
# All up to the first tag outside of a JSON string. Possessive, and no backslash outside of strings: of all tags in a
# text, at most two are then scanned beyond the tag after them, which is what makes `read` linear.
_BODY = re.compile(r'(?:[^"\\<]++|<(?!/?tool_call>)|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"')


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that was read: what is said outside of calls and thoughts, and the calls in order."""

    content: str
    calls: tuple[ToolCall, ...]
    other_side: bool = False
    """It was cut where it began to play the tool."""


def write(content: str, calls: tuple[ToolCall, ...], margin: str = "\n") -> str:
    """A reply's text: the inverse of `read` for stripped content without tags. `margin` stands inside the tags."""
    return "\n".join(([content] if content else []) + [_written(call, margin) for call in calls])


def _written(call: ToolCall, margin: str) -> str:
    if call.malformed:
        raise ValueError(f"a malformed call cannot be written: {call.malformed}")
    text = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"{OPEN}{margin}{text}{margin}{CLOSE}"


def read(text: str) -> Reply:
    """What a reply says and calls. Never raises."""
    said: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    while mark := _MARK.search(text, at):
        said.append(text[at : mark.start()])
        at = mark.end()
        if mark[0] == RESULT:
            return Reply(_joined(said), tuple(calls), other_side=True)
        if mark[0] == THINK:
            at = _after(text, THOUGHT, at)
        elif mark[0] == CLOSE:
            calls.append(ToolCall(name="", malformed=f"{CLOSE} without {OPEN}"))
        else:
            call, at = _call_at(text, at)
            calls.append(call)
    return Reply(_joined([*said, text[at:]]), tuple(calls))


def _joined(said: list[str]) -> str:
    return "\n".join(part for part in map(str.strip, said) if part)


def _after(text: str, tag: str, start: int) -> int:
    found = text.find(tag, start)
    return len(text) if found < 0 else found + len(tag)


def _call_at(text: str, start: int) -> tuple[ToolCall, int]:
    """The call whose opening tag ends at `start`, and where it ends."""
    end = body_end(text, start)
    body = text[start:end]
    if text.startswith(CLOSE, end):
        return _call(body), end + len(CLOSE)
    return ToolCall(name=_name(body), malformed=f"the call is not closed by {CLOSE}"), end


def body_end(text: str, start: int) -> int:
    """Where the body of a call ends: at the first tag outside of a JSON string, or at the end of the text."""
    scanned = _BODY.match(text, start)
    end = scanned.end() if scanned else start
    if end == len(text) or _TAG.match(text, end):
        return end
    tag = _TAG.search(text, start)  # a string that is not closed, or a stray backslash
    return tag.start() if tag else len(text)


def _call(body: str) -> ToolCall:
    try:
        name, arguments = _fields(values.read(body))
    except ValueError as error:
        return ToolCall(name=_name(body), malformed=str(error))
    return ToolCall(name=name, arguments=arguments)


def _name(body: str) -> str:
    found = _NAME.match(body)
    return found[1] if found else ""


def _fields(value: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments. Raises ValueError with the reason where the value is not exactly a call."""
    if not isinstance(value, dict):
        raise ValueError("the call is not a JSON object")
    for key in ("name", "arguments"):
        if key not in value:
            raise ValueError(f"the call has no {key!r}")
    if other := sorted(value.keys() - {"name", "arguments"}):
        raise ValueError(f"the call has a key {other[0]!r} besides 'name' and 'arguments'")
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str):
        raise ValueError("the name is not a string")
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not a JSON object")
    return name, arguments
