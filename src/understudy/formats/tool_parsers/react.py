"""ReAct: `Action: f` and `Action Input: {…}` on separate lines, or `Action:` followed by a JSON call."""

import re

from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers.plain import dump_json, join_lines, read_json_calls

# such as: \n**Action:** search
OPENINGS = (("\n", r"[ \t*]*+Action[ \t]*+:\**+[ \t]*+"),)
# such as: `search`\nAction Input: {"query": "a"}
_NAMED = re.compile(r"`?([^\n`(\[{]{1,128}+)`?[ \t]*+\n\s*+\**+Action Input[ \t]*+:\**+\s*+(?>(?:```\w*+\s*+)?)")
_NAME = re.compile(r"[`\"]?([\w.-]{1,128}+)")
# such as: ```json\n{"query": "a"}
_JSON = re.compile(r"\s*+(?>(?:```\w*+\s*+)?)(?=\{)")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read an action and its input."""
    if named := _NAMED.match(scan.text, mark.end()):
        scan.add_break()
        scan.count_format_mismatch("react")
        return scan.add_call_at(named[1].strip(), named.end())
    if braced := _JSON.match(scan.text, mark.end()):
        end, found = read_json_calls(scan, braced.end(), tool_format="react")
        return end if found else scan.add_text(mark.start(), end)
    name = _NAME.match(scan.text, mark.end())
    if name and name[1] in scan.tools:
        scan.add_break()
        scan.add_failure(
            name[1], ParseFailure("shape", f"the action {name[1]} has no 'Action Input:' with a JSON object")
        )
        return name.end()
    return scan.add_text(mark.start(), mark.end())


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write two lines for each call."""
    return join_lines(content, (f"Action: {call.name}\nAction Input: {dump_json(call.arguments)}" for call in calls))
