"""A tolerant parser of tool calls in text, in any tool format.

    parse_reply('{"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}]}').calls   # f(a=1), with a repair

Any text gives text, calls, or malformed calls with a reason, in linear time. The parser makes one pass from left to
right. At each start of a call it tries strict JSON once, then JSON with repairs once. An ambiguous call is malformed,
and the model gets an error as its result: no argument is invented, shortened or left out, and no text is executed as
code. Calls inside thoughts are ignored. A reply is cut where it continues with a turn of the user or a tool.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

from understudy.core.errors import ConfigError, did_you_mean
from understudy.core.json_values import replace_surrogates
from understudy.core.messages import Message, ToolCall, ToolSpec, index_tools
from understudy.formats.chat_format import ParsedMessage, ReplyStatus
from understudy.formats.parsing import thoughts
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import BARE_JSON_FORMATS, CALL_COST, OpeningPattern, ReplyScan
from understudy.formats.tool_parsers import (
    apertus,
    deepseek,
    dsml,
    gemma,
    glm,
    harmony,
    hermes,
    llama3,
    minimax,
    mistral,
    openai,
    plain,
    pythonic,
    qwen3_coder,
    react,
    wrappers,
    xml,
)

TOOL_FORMATS: Mapping[str, ModuleType] = {
    "hermes": hermes,
    "qwen3_coder": qwen3_coder,
    "llama3": llama3,
    "mistral": mistral,
    "pythonic": pythonic,
    "deepseek": deepseek,
    "dsml": dsml,
    "harmony": harmony,
    "glm": glm,
    "gemma": gemma,
    "apertus": apertus,
    "minimax": minimax,
    "json": plain,
    "openai": openai,
    "react": react,
    "xml": xml,
}
"""Tool formats that a model may be instructed to write, and their modules. Each module has `render_reply_text`. The
parser accepts all formats, regardless of the instruction."""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A parsed reply: its calls in order, including malformed ones, and the text outside of calls."""

    calls: tuple[ToolCall, ...]
    text: str
    repairs: Mapping[str, int] = field(default_factory=dict)
    """Repairs made to parse the calls, counted by kind."""
    parse_errors: Mapping[str, int] = field(default_factory=dict)
    """Malformed calls, counted by kind."""
    hallucinated_turn: bool = False
    """Whether the reply continued with a turn of the user or a tool. The reply is cut there."""
    error: str = ""
    """Why a call is malformed, or which called tool does not exist."""
    has_thinking: bool = False
    """Whether the reply contained thoughts. They are not part of `text`."""

    @property
    def status(self) -> ReplyStatus:
        """`malformed` if any call is, `repaired` if calls were repaired, else `tool_calls`, `text` or `empty`."""
        if self.parse_errors:
            return "malformed"
        if self.calls:
            return "repaired" if self.repairs else "tool_calls"
        return "text" if self.text else "empty"


ReadFunction = Callable[[ReplyScan, re.Match[str]], int]

# such as: ```json\n
_FENCES = (("`", r"``[\w+-]*+[ \t]*+\r?\n?"),)
_ROLE_WORDS = (
    # such as: \nTool Response:
    ("\n", r"[ \t]*+(?:User|USER|Human|HUMAN|Observation|Tool [Rr]es(?:ponse|ult))[ \t]*+:"),
    # such as: \n###user\n
    ("\n", r"#*+(?:user|system)[ \t]*+(?=\n)"),
)
_ROLE_TOKENS = (
    # such as: <|im_start|>user
    ("<", r"tool_response>|\|im_start\|>(?!assistant)|\|start\|>(?!assistant)|\|start_header_id\|>(?!assistant)"),
    # such as: <|observation|>
    ("<", r"\|(?:user|observation|tool)\|>|｜User｜>|｜tool▁outputs?▁begin｜>|start_of_turn>user|\|turn>user"),
    ("<", r"\|user_start\|>"),
    # such as: [TOOL_RESULTS]
    (r"\[", r"(?:INST|TOOL_RESULTS)\]"),
)
_ENDS = (
    # such as: <|im_end|>
    ("<", r"(?:\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|END_OF_TURN_TOKEN|assistant_end)\|>|/s>)"),
    # such as: <end_of_turn>
    ("<", r"(?:｜end▁of▁sentence｜>|end_of_turn>|turn\|>|\|tool_response>|start_function_response>)"),
)
# such as: \n[{"name": "search"}]
_IN_FENCE = re.compile(r"\s*+(?=\{|\[\s*+\{)")
_FENCE_END = re.compile(r"\s*+```")


def parse_reply(text: str, tool_format: str = "", tools: Sequence[ToolSpec] = ()) -> ParsedReply:
    """Parse the text of a reply. `tool_format` is the format that the model was instructed to write, "" for any.

    `tools` help with names, argument types and aliases. A call of an unknown tool is still a call. Raise
    ConfigError for an unknown tool format, and nothing else.
    """
    if tool_format and tool_format not in TOOL_FORMATS:
        raise ConfigError(f"unknown tool format {did_you_mean(tool_format, TOOL_FORMATS)}")
    scan = ReplyScan(f"\n{replace_surrogates(text)}", tool_format, index_tools(tools))
    at = _read_constructs(scan, _OPENING)
    if scan.budget.left < 0:
        scan.add_failure("", ParseFailure("length", "the reply has too many brackets, tags and calls to be parsed"))
    elif not scan.hallucinated_turn:
        scan.add_text(at, len(scan.text))
    return _build_result(scan)


def parse_text(text: str) -> ParsedReply:
    """Parse a reply in a conversation without tools: what looks like a call is text, and so are words like "User:".

    Thoughts, and turns of other roles that begin with their tokens, are removed as by `parse_reply`.
    """
    scan = ReplyScan(f"\n{replace_surrogates(text)}")
    at = _read_constructs(scan, _TEXT_OPENING)
    if not scan.hallucinated_turn:
        scan.add_text(at, len(scan.text))
    return _build_result(scan)


def _read_constructs(scan: ReplyScan, opening: re.Pattern[str]) -> int:
    """Read each construct that `opening` finds, and the text before it. Return where the last one ends."""
    at = 0
    while not scan.hallucinated_turn and scan.budget.spend(CALL_COST) and (mark := opening.search(scan.text, at)):
        scan.add_text(at, mark.start())
        at = max(_READERS[mark.lastgroup or ""](scan, mark), mark.end())
    return at


def parse_message(text: str, tool_format: str = "", tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
    """Parse the text of a reply with `parse_reply`, and return it as a message."""
    parsed = parse_reply(text, tool_format, tools)
    message = Message(role="assistant", content=parsed.text, tool_calls=parsed.calls)
    return ParsedMessage(message, parsed.status, parsed.hallucinated_turn, parsed.repairs, parsed.parse_errors)


def render_reply(content: str, calls: Sequence[ToolCall], tool_format: str) -> str:
    """Return a reply's text in a tool format, which `parse_reply` reads back.

    Raise ConfigError for an unknown tool format, and ValueError for a malformed call.
    """
    if tool_format not in TOOL_FORMATS:
        raise ConfigError(f"unknown tool format {did_you_mean(tool_format, TOOL_FORMATS)}")
    if broken := next((call for call in calls if call.parse_error), None):
        raise ValueError(f"a malformed call cannot be written: {broken.parse_error}")
    text: str = TOOL_FORMATS[tool_format].render_reply_text(content, tuple(calls))
    return text


def _build_result(scan: ReplyScan) -> ParsedReply:
    scan.remove_open_wrappers()
    content = scan.visible_text()
    scan.repairs["prose"] += scan.tool_format in BARE_JSON_FORMATS and bool(scan.calls and content)
    reason = next((call.parse_error for call in scan.calls if call.parse_error), "")
    unknown = next((call.name for call in scan.calls if scan.tools and call.name not in scan.tools), None)
    if not reason and unknown is not None:
        reason = f"unknown tool {did_you_mean(unknown, {tool.name for tool in scan.tools.values()})}"
    repairs = {kind: count for kind, count in scan.repairs.items() if count}
    return ParsedReply(
        tuple(scan.calls), content, repairs, dict(scan.parse_errors), scan.hallucinated_turn, reason, scan.has_thinking
    )


def _thought(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Skip a thought up to its end marker. Without one, a thought that begins a line ends with the reply.

    Within a line, a marker without an end may be a mention, so it is text, and calls after it are malformed, because
    they may be part of a thought. The same holds for a sentence as marker. A marker in code quotes is text.
    """
    marker = mark[0].strip()
    if _is_quoted(scan.text, mark):
        return scan.add_text(mark.start(), mark.end())
    end = scan.find_next(re.compile(re.escape(thoughts.end_marker(marker))), mark.end())
    if end is None and (" " in marker or not _begins_line(scan.text, mark.start())):
        scan.unclosed_thought = marker
        return scan.add_text(mark.start(), mark.end())
    scan.add_break()
    scan.has_thinking = True
    return end.end() if end else len(scan.text)


def _thought_end(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Discard the text so far as a thought that the prompt opened.

    If the reply has already had a thought, calls before the tag may be intended; they become one malformed call. A tag
    in code quotes is text.
    """
    if _is_quoted(scan.text, mark):
        return scan.add_text(mark.start(), mark.end())
    doubtful = scan.has_thinking and scan.calls
    scan.discard_as_thinking()
    if doubtful:
        scan.add_failure(
            "",
            ParseFailure(
                "tags", f"the call stands before a {mark[0]} without an opening tag; write calls after the thought"
            ),
        )
    return mark.end()


def _is_quoted(text: str, mark: re.Match[str]) -> bool:
    return text[mark.start() - 1] == "`" == text[mark.end() : mark.end() + 1]


def _begins_line(text: str, at: int) -> bool:
    """Return whether at most 80 spaces stand before `at` in its line. The text begins with a line break."""
    return text[max(0, at - 80) : at].rstrip(" \t").endswith("\n")


def _role(scan: ReplyScan, mark: re.Match[str]) -> int:
    scan.hallucinated_turn = True
    return len(scan.text)


def _end(scan: ReplyScan, mark: re.Match[str]) -> int:
    """End the reply at an end-of-turn token written as text. Any text after it belongs to another role."""
    if mark[0] == "</s>" and _is_struck(scan.text, mark.start()):
        return scan.add_text(mark.start(), mark.end())
    scan.hallucinated_turn = bool(scan.text[mark.end() :].strip())
    return len(scan.text)


def _is_struck(text: str, end: int) -> bool:
    """Return whether "</s>" ends a strike-through of HTML, as in "was <s>$20</s>".

    A "<s>" at the start of a line is the token with which a sequence begins.
    """
    start = max(0, text.rfind("<s>", 0, end))
    before = text[max(0, start - 20) : start].rpartition("\n")[2]
    return bool(before.strip()) and start > text.rfind("</s>", 0, end) and "\n" not in text[start:end]


def _fence(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read calls in a code fence. Data and other code in it stay text."""
    start, end, found = mark.end(), mark.end(), False
    if mark[0].strip("` \t\r\n").lower() in pythonic.LANGUAGES:
        closing = scan.text.find("```", start)
        code = len(scan.text) if closing < 0 else closing
        found = pythonic.read_code_block(scan, start, code)
        end = code if found else start
    elif begin := _IN_FENCE.match(scan.text, start):
        end, found = plain.read_json_calls(scan, begin.end())
    if not found:
        return scan.add_text(mark.start(), end)
    scan.repairs["fence"] += 1
    closed = _FENCE_END.match(scan.text, end)
    return closed.end() if closed else end


_Openings = Sequence[tuple[Sequence[OpeningPattern], ReadFunction]]
_TEXT_OPENINGS: _Openings = (
    (thoughts.OPENINGS, _thought),
    (thoughts.ENDINGS, _thought_end),
    (_ROLE_TOKENS, _role),
    (_ENDS, _end),
)
"""Thoughts and the tokens of turns."""
_OPENINGS: _Openings = (
    *_TEXT_OPENINGS,
    (_ROLE_WORDS, _role),
    (_FENCES, _fence),
    (wrappers.OPENINGS, wrappers.read_calls),
    *((parser.OPENINGS, parser.read_calls) for parser in TOOL_FORMATS.values() if parser not in (openai, glm)),
)
_LISTED = [(opening, read) for openings, read in _OPENINGS for opening in openings]
_READERS = {f"g{i}": read for i, (_, read) in enumerate(_LISTED)}
_PATTERNS = [f"{first}(?P<g{i}>{rest})" for i, ((first, rest), _) in enumerate(_LISTED)]
_OPENING = re.compile("|".join(_PATTERNS))
_TEXT_OPENING = re.compile("|".join(_PATTERNS[: sum(len(openings) for openings, _ in _TEXT_OPENINGS)]))
