"""Mistral: `[TOOL_CALLS]name[ARGS]{…}`, and before version 11 of its tokenizer `[TOOL_CALLS][{"name": …}]`."""

import re

from understudy.formats.dialects.plain import dumped, lines
from understudy.formats.repair import Broken
from understudy.formats.scan import Scan
from understudy.messages import ToolCall

OPENINGS = ((r"\[", r"TOOL_CALLS\]"),)
_NAMED = re.compile(r"\s*+([\w.-]{1,200}+)(?:\[CALL_ID\]\w*+)?\s*+(?:\[ARGS\])?\s*+(?=\{)")
_LIST = re.compile(r"\s*+(?=[\[{])")


def read(scan: Scan, mark: re.Match[str]) -> int:
    """A list of calls, or names that are each followed by their arguments."""
    scan.cut()
    scan.foreign("mistral")
    if listed := _LIST.match(scan.text, mark.end()):
        found = scan.read(listed.end())
        if not scan.json(found, scan.own, wrapped=True):
            scan.fail("", Broken("shape", "the list of calls holds no call"))
        return max(found.end, mark.end())
    at = mark.end()
    while named := _NAMED.match(scan.text, at):
        at = scan.arguments(named[1], named.end())
    if at == mark.end():
        scan.fail(
            "", Broken("json", f"{scan.text[at : at + 24].strip()!r} is neither a list nor a name with arguments")
        )
    return at


def write(content: str, calls: tuple[ToolCall, ...]) -> str:
    """A marker, a name and the arguments for each call."""
    return lines(content, ["".join(f"[TOOL_CALLS]{c.name}[ARGS]{dumped(c.arguments)}" for c in calls)] if calls else [])
