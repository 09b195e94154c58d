"""Hermes, Qwen2.5 and Qwen3: `<tool_call>{"name": …, "arguments": …}</tool_call>`."""

import re

from understudy.formats.dialects import glm
from understudy.formats.hermes import CLOSE, body_end, write
from understudy.formats.repair import Broken
from understudy.formats.scan import CALL, Scan
from understudy.values import DEPTH, STRICT, check

__all__ = ["OPENINGS", "read", "write"]

OPENINGS = (("<", "tool_call>"), ("<", "/tool_call>"))
_GLUED = re.compile(r"[\s}\],;]*+(?=\{)")
_FENCE = re.compile(r"\s*+(?:```\w*+)?+\s*+")
_BEGIN = re.compile(r"\s*+(?=\{)")
_CLOSED = re.compile(rf"\s*+{CLOSE}")


def read(scan: Scan, mark: re.Match[str]) -> int:
    """The body between the tags: JSON objects, one as it should be."""
    scan.cut()
    if mark[0] == CLOSE:
        if not scan.calls:
            scan.fail("", Broken("tags", f"the call is closed by {CLOSE}, and was never opened by <tool_call>"))
        return mark.end()
    if scan.own in ("", "hermes") and (end := _exact(scan, mark.end())):
        return end
    if end := glm.call_at(scan, mark.end()):
        return end
    start = _FENCE.match(scan.text, mark.end()).end()  # type: ignore[union-attr]
    if scan.text.startswith("<function=", start):
        return start
    end = body_end(scan.text, mark.end())
    closed = scan.text.startswith(CLOSE, end)
    rest = _body(scan, start, end, closed)
    return end + len(CLOSE) if closed else rest


def _exact(scan: Scan, at: int) -> int:
    """Take the call at `at` if nothing has to be repaired, and give where it ends; 0 if it has to be read with care.

    Most calls are like that, and it is several times as fast. JSON has no tag outside of strings, so no more than two
    openings read the same text.
    """
    begin = _BEGIN.match(scan.text, at)
    if begin is None:
        return 0
    try:
        call, end = STRICT.raw_decode(scan.text, begin.end())
        body = scan.text[begin.end() : end]
        if "\\u" in body or body.count("{") + body.count("[") > DEPTH:
            check(call)
    except (ValueError, RecursionError):
        return 0
    closed = _CLOSED.match(scan.text, end)
    if closed is None or call.keys() != _KEYS or type(call["name"]) is not str or type(call["arguments"]) is not dict:
        return 0
    if scan.budget.spend(CALL):
        scan.call(call["name"], call["arguments"])
    return closed.end()


_KEYS = {"name", "arguments"}


def _body(scan: Scan, start: int, end: int, closed: bool) -> int:
    """Read the calls between `start` and `end`, and give where the last one ends."""
    first, at = scan.text[start : min(end, start + 24)].strip(), start
    if not first:
        scan.fail("", Broken("tags", "the call is empty" if closed else f"the call is not closed by {CLOSE}"))
        return end
    if first[0] not in "{[":
        scan.fail("", Broken("json", f"{first!r} is not an object"))
        return end
    calls = len(scan.calls)
    while True:
        found = scan.read(at, end)
        scan.json(found, "hermes", wrapped=True)
        at = max(found.end, at + 1)
        glued = _GLUED.match(scan.text, at, end)
        if any(call.malformed for call in scan.calls[calls:]) or glued is None:
            break
        at = glued.end()
        scan.repairs["glued"] += 1
        calls = len(scan.calls)
    scan.repairs["tags"] += not closed
    scan.repairs["junk"] += closed and bool(scan.text[at:end].strip(" \t\r\n`"))
    return at
