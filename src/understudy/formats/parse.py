"""From the text of a reply to calls, in whatever dialect they are written, losing none.

    parse('{"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}]}').calls  ->  f(a=1), repaired: brackets

Total: any text gives text, calls, or malformed calls with a reason, in linear time. One pass from left to right; what
opens a call is read strictly first, then with repairs, and is never read twice. What cannot be read for certain is
malformed and goes back to the model: no argument is invented, shortened or left out, and no text is run as code.
Calls in thoughts are no calls. Where a reply goes on to speak for the user or a tool, it is cut.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

from understudy.errors import ConfigError, nearest
from understudy.formats.base import Parsed, ReplyStatus
from understudy.formats.dialects import (
    deepseek,
    glm,
    harmony,
    hermes,
    llama3,
    mistral,
    openai,
    plain,
    pythonic,
    qwen3_coder,
    react,
    xml,
)
from understudy.formats.repair import Broken
from understudy.formats.scan import BARE, CALL, Scan
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.values import whole

DIALECTS: Mapping[str, ModuleType] = {
    "hermes": hermes,
    "qwen3_coder": qwen3_coder,
    "llama3": llama3,
    "mistral": mistral,
    "pythonic": pythonic,
    "deepseek": deepseek,
    "harmony": harmony,
    "glm": glm,
    "json": plain,
    "openai": openai,
    "react": react,
    "xml": xml,
}
"""What a model may have been told to write; each module has `write`, and all are read whatever it was told."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A reply that was read: calls in order, malformed ones among them, and what is said outside of calls."""

    calls: tuple[ToolCall, ...]
    text: str
    repairs: Mapping[str, int] = field(default_factory=dict)
    """What had to be repaired, by kind."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """Calls that cannot be read, by kind."""
    other_side: bool = False
    """The reply went on to speak for the user or a tool, and is cut there."""
    reason: str = ""
    """Why a call is malformed, or which name no tool has."""
    thought: bool = False
    """The reply held thoughts, which are not in `text`."""

    @property
    def status(self) -> ReplyStatus:
        """`malformed` if any call is; `repaired` if anything was."""
        if self.faults:
            return "malformed"
        if self.calls:
            return "repaired" if self.repairs else "calls"
        return "text" if self.text else "empty"


Opening = tuple[str, str]
"""What something begins with: its first character, which is what makes the search fast, and a pattern for the rest."""
Read = Callable[[Scan, re.Match[str]], int]

_THOUGHT = r"(?:think|thinking|thought|reasoning|scratchpad)"
_THOUGHTS = (("<", f"{_THOUGHT}>"), (r"\[", r"THINK\]"))
_THOUGHT_ENDS = (("<", f"/{_THOUGHT}>"), (r"\[", r"/THINK\]"))
_FENCES = (("`", r"``[\w+-]*+[ \t]*+\r?\n?"),)
_ROLES = (
    ("\n", r"[ \t*]*+(?:User|USER|Human|HUMAN|Observation|System|SYSTEM|Tool(?: [Rr]es(?:ponse|ult))?)[ \t*]*+:"),
    ("\n", r"#*+(?:user|system)[ \t]*+(?=\n)"),
    ("<", r"tool_response>|\|im_start\|>(?!assistant)|\|start\|>(?!assistant)|\|start_header_id\|>(?!assistant)"),
    ("<", r"\|(?:user|observation|tool)\|>|｜User｜>|｜tool▁outputs?▁begin｜>"),
    (r"\[", r"(?:INST|TOOL_RESULTS)\]"),
)
_ENDS = (("<", r"(?:\|(?:im_end|eot_id|eom_id|endoftext|end_of_text)\|>|/s>|｜end▁of▁sentence｜>)"),)
_IN_FENCE = re.compile(r"\s*+(?=\{|\[\s*+\{)")
_FENCE_END = re.compile(r"\s*+```")


def parse(text: str, format: str = "", tools: Sequence[ToolSpec] = ()) -> Reading:
    """What a reply says and calls. `format` is the dialect that the model was told to write, "" for any.

    `tools` help with names, types and other names of arguments; a call of an unknown tool is a call all the same.
    Raises ConfigError for an unknown format, and nothing else.
    """
    if format and format not in DIALECTS:
        raise ConfigError(f"unknown format {nearest(format, DIALECTS)}")
    scan = Scan(f"\n{whole(text)}", format, {tool.name: tool for tool in tools})
    at = 0
    while not scan.other_side and scan.budget.spend(CALL) and (mark := _OPENING.search(scan.text, at)):
        scan.say(at, mark.start())
        at = max(_READERS[mark.lastgroup or ""](scan, mark), mark.end())
    if scan.budget.left < 0:
        scan.fail("", Broken("length", "the reply has more brackets, tags and calls than are read"))
    elif not scan.other_side:
        scan.say(at, len(scan.text))
    return _reading(scan)


def parsed(text: str, format: str = "", tools: Sequence[ToolSpec] = ()) -> Parsed:
    """What `parse` reads, as a message."""
    reading = parse(text, format, tools)
    message = Message(role="assistant", content=reading.text, tool_calls=reading.calls)
    return Parsed(message, reading.status, reading.other_side, reading.repairs, reading.faults)


def render(content: str, calls: Sequence[ToolCall], format: str) -> str:
    """A reply's text in a dialect: what `parse` reads back. Raises ConfigError for an unknown format."""
    if format not in DIALECTS:
        raise ConfigError(f"unknown format {nearest(format, DIALECTS)}")
    if broken := next((call for call in calls if call.malformed), None):
        raise ValueError(f"a malformed call cannot be written: {broken.malformed}")
    text: str = DIALECTS[format].write(content, tuple(calls))
    return text


def _reading(scan: Scan) -> Reading:
    content = scan.content()
    scan.repairs["prose"] += scan.own in BARE and bool(scan.calls and content)
    reason = next((call.malformed for call in scan.calls if call.malformed), "")
    unknown = next((call.name for call in scan.calls if scan.tools and call.name not in scan.tools), None)
    if not reason and unknown is not None:
        reason = f"unknown tool {nearest(unknown, scan.tools)}"
    repairs = {kind: count for kind, count in scan.repairs.items() if count}
    return Reading(tuple(scan.calls), content, repairs, dict(scan.faults), scan.other_side, reason, scan.thought)


def _thought(scan: Scan, mark: re.Match[str]) -> int:
    """A thought, to its end, or to that of the reply."""
    scan.cut()
    scan.thought = True
    close = f"{mark[0][0]}/{mark[0][1:]}"
    end = scan.text.find(close, mark.end())
    return len(scan.text) if end < 0 else end + len(close)


def _thought_end(scan: Scan, mark: re.Match[str]) -> int:
    """The end of a thought that the prompt began. Where thoughts have ended already, a call before it may be meant."""
    doubtful = scan.thought and scan.calls
    scan.forget()
    if doubtful:
        scan.fail("", Broken("tags", f"the call stands before a {mark[0]} that ends no thought; call after thinking"))
    return mark.end()


def _role(scan: Scan, mark: re.Match[str]) -> int:
    scan.other_side = True
    return len(scan.text)


def _end(scan: Scan, mark: re.Match[str]) -> int:
    """A turn that ends in plain words; whoever speaks then, it is not the agent's turn."""
    scan.other_side = bool(scan.text[mark.end() :].strip())
    return len(scan.text)


def _fence(scan: Scan, mark: re.Match[str]) -> int:
    """Calls in a fence; data and code in it are said."""
    start, end, found = mark.end(), mark.end(), False
    if mark[0].strip("` \t\r\n").lower() in pythonic.LANGUAGES:
        closing = scan.text.find("```", start)
        code = len(scan.text) if closing < 0 else closing
        found = pythonic.fenced(scan, start, code)
        end = code if found else start
    elif begin := _IN_FENCE.match(scan.text, start):
        end, found = plain.calls_at(scan, begin.end())
    if not found:
        return scan.say(mark.start(), end)
    scan.repairs["fence"] += 1
    closed = _FENCE_END.match(scan.text, end)
    return closed.end() if closed else end


_OPENINGS: Sequence[tuple[Sequence[Opening], Read]] = (
    (_THOUGHTS, _thought),
    (_THOUGHT_ENDS, _thought_end),
    (_ROLES, _role),
    (_ENDS, _end),
    (_FENCES, _fence),
    *((dialect.OPENINGS, dialect.read) for dialect in DIALECTS.values() if dialect not in (openai, glm)),
)
_LISTED = [(opening, read) for openings, read in _OPENINGS for opening in openings]
_READERS = {f"g{i}": read for i, (_, read) in enumerate(_LISTED)}
_OPENING = re.compile("|".join(f"{first}(?P<g{i}>{rest})" for i, ((first, rest), _) in enumerate(_LISTED)))
