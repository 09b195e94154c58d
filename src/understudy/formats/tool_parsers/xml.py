"""XML: `<tool>{"name": …, "args": …}</tool>`, `<tool>f</tool><tool_input>{…}</tool_input>`, and tags named like tools.

The latter are `<tool><f>{…}</f></tool>`, and `<server><f>{…}</f></server>` of a known tool. Other tags are markup.
"""

import re

from understudy.core.messages import ToolCall
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers.plain import dump_json, join_lines

_TAG_NAME = r"[A-Za-z_][\w.-]{0,127}+"
OPENINGS = (
    ("<", "tool>"),
    # such as: <tool_call>\n<search>{"query": "a"}
    ("<", rf"{_TAG_NAME}>(?=\s*+<{_TAG_NAME}>\s*+\{{)"),
)
# such as: <tool_call>\n<search>{"query": "a"}
_TAGS = re.compile(rf"<({_TAG_NAME})>\s*+<({_TAG_NAME})>\s*+(?=\{{)")
_MARKUP = ("tool_call", "tool_calls", "function", "function_call", "json", "think", "code")
# such as: search</tool>\n<tool_input>{"query": "a"}
_NAMED = re.compile(r"\s*+([\w.-]{1,128}+)\s*+</tool>\s*+<tool_input>\s*+(?=\{)")
# such as: \n</tool_input>
_END = re.compile(r"\s*+</tool(?:_input)?>")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read a call in tags."""
    tags = _TAGS.match(scan.text, mark.start())
    if tags and (name := _tool_of_tags(scan, tags)):
        return _read_nested_tags(scan, tags, name)
    if mark[0] != "<tool>" or (tags and scan.text[mark.start() - 1] == "`"):
        return scan.add_text(mark.start(), mark.end())
    scan.add_break()
    scan.count_format_mismatch("xml")
    if named := _NAMED.match(scan.text, mark.end()):
        return _closed(scan, scan.add_call_at(named[1], named.end()))
    found = scan.read_json(mark.end())
    scan.add_json_calls(found, scan.tool_format, wrapped=True)
    return _closed(scan, max(found.end, mark.end()))


def _tool_of_tags(scan: ReplyScan, tags: re.Match[str]) -> str:
    """Return the name of the tool that two tags call; "" if they are markup."""
    outer, inner = tags.groups()
    names = (inner, f"{outer}.{inner}", f"{outer}_{inner}")
    if known := next((name for name in names if name in scan.tools), ""):
        return "" if scan.text[tags.start() - 1] == "`" else known
    return inner if outer == "tool" and inner not in _MARKUP and scan.text[tags.start() - 1] != "`" else ""


def _read_nested_tags(scan: ReplyScan, tags: re.Match[str], name: str) -> int:
    """Read a call whose tag has the tool's name, in a tag `tool` or with the server's name."""
    scan.add_break()
    scan.count_format_mismatch("xml")
    at = scan.add_call_at(name, tags.end())
    for tag in reversed(tags.groups()):
        end = re.compile(rf"\s*+</{re.escape(tag)}>").match(scan.text, at)
        scan.repairs["tags"] += end is None
        at = end.end() if end else at
    return at


def _closed(scan: ReplyScan, at: int) -> int:
    end = _END.match(scan.text, at)
    scan.repairs["tags"] += end is None
    return end.end() if end else at


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write each call as JSON between tags, as environments of `verifiers` expect."""
    return join_lines(content, (f"<tool>\n{dump_json({'name': c.name, 'args': c.arguments})}\n</tool>" for c in calls))
