"""Mistral: `[TOOL_CALLS]name[ARGS]{…}`; before tokenizer version 11 `[TOOL_CALLS][{"name": …}]`."""

import re

from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers.plain import dump_json, join_lines

OPENINGS = ((r"\[", r"TOOL_CALLS\]"),)
# such as: search[CALL_ID]a1B2c3D4e[ARGS]{"query": "a"}
_NAMED = re.compile(r"\s*+([\w.-]{1,200}+)(?:\[CALL_ID\]\w*+)?\s*+(?:\[ARGS\])?\s*+(?=\{)")
_REPEATED = re.compile(r"\s*+\[TOOL_CALLS\]")
# such as:  [{"name": "search", "arguments": {}}]
_LIST = re.compile(r"\s*+(?=[\[{])")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read a list of calls, or names that are each followed by arguments. Of repeated markers, the last one counts."""
    scan.add_break()
    if _REPEATED.match(scan.text, mark.end()):
        return mark.end()
    scan.count_format_mismatch("mistral")
    if listed := _LIST.match(scan.text, mark.end()):
        found = scan.read_json(listed.end())
        if not scan.add_json_calls(found, scan.tool_format, wrapped=True):
            scan.add_failure("", ParseFailure("shape", "the list of calls holds no call"))
        return max(found.end, mark.end())
    at = mark.end()
    while named := _NAMED.match(scan.text, at):
        at = scan.add_call_at(named[1], named.end())
    if at == mark.end():
        scan.add_failure(
            "", ParseFailure("json", f"{scan.text[at : at + 24].strip()!r} is neither a list nor a name with arguments")
        )
    return at


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write a marker, a name and the arguments for each call."""
    return join_lines(
        content, ["".join(f"[TOOL_CALLS]{c.name}[ARGS]{dump_json(c.arguments)}" for c in calls)] if calls else []
    )
