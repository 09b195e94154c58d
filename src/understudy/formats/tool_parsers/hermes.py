"""Hermes, Qwen2.5 and Qwen3: `<tool_call>{"name": …, "arguments": …}</tool_call>`.

A tag inside a JSON string is part of the string.
"""

import re

from understudy.core.json_values import MAX_DEPTH, STRICT_DECODER, validate_json_value
from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import CALL_COST, ReplyScan
from understudy.formats.tool_parsers import glm
from understudy.formats.tool_parsers.plain import dump_json, join_lines

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
RESULT, RESULT_END = "<tool_response>", "</tool_response>"
OPENINGS = (
    # such as: <tool_call:opensource>
    ("<", r"tool_call(?::\w{1,32}+)?>"),
    # such as: </tool_call>
    ("<", r"/tool_call(?::\w{1,32}+)?>"),
)

_TAG = re.compile(f"{OPEN}|{CLOSE}")
# The text up to the first tag outside of a JSON string. The pattern never backtracks and stops at a backslash outside
# of a string. So at most two tags of a text are scanned beyond the tag after them, which keeps parsing linear. It has
# atomic groups, because Python before 3.11.5 repeats a possessive group too often (python/cpython#106052).
# such as: {"name": "search", "arguments": {"query": "</tool_call>"}}</tool_call>
_BODY = re.compile(r'(?>(?:[^"\\<]++|<(?!/?tool_call>)|"(?>(?:[^"\\]++|\\.)*)")*)', re.DOTALL)
# such as: }, {"name": "search"}
_GLUED = re.compile(r"[\s}\],;]*+(?=\{)")
# such as: \n```json\n{"name": "search"}
_FENCE = re.compile(r"\s*+(?>(?:```\w*+)?)\s*+")
_BEGIN = re.compile(r"\s*+(?=\{)")
# such as: \n</tool_call>
_CLOSED = re.compile(rf"\s*+{CLOSE}")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read the text between the tags: one JSON object, or several that were written without tags between them."""
    scan.add_break()
    if mark[0].startswith("</"):
        if not scan.calls:
            scan.add_failure(
                "", ParseFailure("tags", f"the call is closed by {mark[0]}, and was never opened by <tool_call>")
            )
        return mark.end()
    if scan.tool_format in ("", "hermes") and (end := _exact(scan, mark.end())):
        return scan.skip_echo(scan.text[mark.end() : end].removesuffix(CLOSE).strip(), end, _CLOSED)
    if end := glm.read_glm_call(scan, mark.end()):
        return end
    start = _FENCE.match(scan.text, mark.end()).end()  # type: ignore[union-attr]
    if scan.text.startswith("<function=", start):
        return start
    end = find_body_end(scan.text, mark.end())
    closed = scan.text.startswith(CLOSE, end)
    rest = _body(scan, start, end, closed)
    if not closed:
        return rest
    return scan.skip_echo(scan.text[start:end].strip(), end + len(CLOSE), _CLOSED)


def _exact(scan: ReplyScan, at: int) -> int:
    """Read the call at `at` if it needs no repair, and return where it ends; return 0 if it does.

    Most calls need none, and this path is several times as fast. The total time stays linear: JSON contains tags only
    in strings, so no part of the text is read from more than two opening tags.
    """
    begin = _BEGIN.match(scan.text, at)
    if begin is None:
        return 0
    try:
        call, end = STRICT_DECODER.raw_decode(scan.text, begin.end())
        body = scan.text[begin.end() : end]
        if "\\u" in body or body.count("{") + body.count("[") > MAX_DEPTH:
            validate_json_value(call)
    except (ValueError, RecursionError):
        return 0
    closed = _CLOSED.match(scan.text, end)
    if closed is None or call.keys() != _KEYS or type(call["name"]) is not str or type(call["arguments"]) is not dict:
        return 0
    if scan.budget.spend(CALL_COST):
        scan.add_call(call["name"], call["arguments"])
    return closed.end()


_KEYS = {"name", "arguments"}


def _body(scan: ReplyScan, start: int, end: int, closed: bool) -> int:
    """Read the calls between `start` and `end`, and return where the last one ends."""
    first = scan.text[start : min(end, start + 24)].strip()
    at = start
    if not first:
        scan.add_failure(
            "", ParseFailure("tags", "the call is empty" if closed else f"the call is not closed by {CLOSE}")
        )
        return end
    if first[0] not in "{[":
        scan.add_failure("", ParseFailure("json", f"{first!r} is not an object"))
        return end
    calls = len(scan.calls)
    while True:
        found = scan.read_json(at, end)
        scan.add_json_calls(found, "hermes", wrapped=True)
        at = max(found.end, at + 1)
        glued = _GLUED.match(scan.text, at, end)
        if any(call.parse_error for call in scan.calls[calls:]) or glued is None:
            break
        at = glued.end()
        scan.repairs["glued"] += 1
        calls = len(scan.calls)
    scan.repairs["tags"] += not closed
    scan.repairs["junk"] += closed and bool(scan.text[at:end].strip(" \t\r\n`"))
    return at


def render_reply_text(content: str, calls: tuple[ToolCall, ...], margin: str = "\n") -> str:
    """Write the text, then each call. `margin` is written inside the tags. Raise ValueError for a malformed call."""
    return join_lines(content, (f"{OPEN}{margin}{render_call_json(call)}{margin}{CLOSE}" for call in calls))


def render_call_json(call: ToolCall) -> str:
    """Write a call without its tags. Raise ValueError for a malformed call."""
    if call.parse_error:
        raise ValueError(f"a malformed call cannot be written: {call.parse_error}")
    return dump_json({"name": call.name, "arguments": call.arguments})


def find_body_end(text: str, start: int) -> int:
    """Return where the body of a call ends: at the first tag outside of a JSON string, or at the end of the text."""
    scanned = _BODY.match(text, start)
    end = scanned.end() if scanned else start
    if end == len(text) or _TAG.match(text, end):
        return end
    tag = _TAG.search(text, start)  # after an unclosed string or a stray backslash, any tag ends the body
    return tag.start() if tag else len(text)
