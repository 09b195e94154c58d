"""Hermes, Qwen2.5 and Qwen3: `<tool_call>{"name": …, "arguments": …}</tool_call>`."""

import re

from understudy.formats.hermes import CLOSE, body_end, write
from understudy.formats.repair import Broken
from understudy.formats.scan import Scan

__all__ = ["OPENINGS", "read", "write"]

OPENINGS = (("<", "tool_call>"), ("<", "/tool_call>"))
_GLUED = re.compile(r"[\s}\],;]*+(?=\{)")
_FENCE = re.compile(r"\s*+(?:```\w*+)?+\s*+")


def read(scan: Scan, mark: re.Match[str]) -> int:
    """The body between the tags: JSON objects, one as it should be."""
    scan.cut()
    if mark[0] == CLOSE:
        if not scan.calls:
            scan.fail("", Broken("tags", f"the call is closed by {CLOSE}, and was never opened by <tool_call>"))
        return mark.end()
    start = _FENCE.match(scan.text, mark.end()).end()  # type: ignore[union-attr]
    if scan.text.startswith("<function=", start):
        return start
    end = body_end(scan.text, mark.end())
    closed = scan.text.startswith(CLOSE, end)
    rest = _body(scan, start, end, closed)
    return end + len(CLOSE) if closed else rest


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
