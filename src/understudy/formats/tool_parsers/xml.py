"""XML: `<tool>{"name": …, "args": …}</tool>`, `<tool>f</tool><tool_input>{…}</tool_input>`, and `<invoke name="f">`."""

import re
from typing import Any

from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers.plain import dump_json, join_lines
from understudy.formats.tool_parsers.qwen3_coder import set_argument, typed_value

OPENINGS = (("<", "tool>"), ("<", 'invoke name="[^"\n<]{1,200}+">'), ("<", "/?function_calls>"))
_NAMED = re.compile(r"\s*+([\w.-]{1,128}+)\s*+</tool>\s*+<tool_input>\s*+(?=\{)")
_END = re.compile(r"\s*+</tool(?:_input)?>")
_PARAMETER = re.compile(r'\s*+<parameter name="([^"\n<]{1,200}+)"[^>\n]{0,80}+>([^<]*+)</parameter>')
_INVOKED = re.compile(r"\s*+</invoke>")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read a call in tags."""
    if mark[0].startswith("<invoke"):
        return _invoke(scan, mark)
    scan.add_break()
    if mark[0] != "<tool>":
        return mark.end()
    scan.count_format_mismatch("xml")
    if named := _NAMED.match(scan.text, mark.end()):
        return _closed(scan, scan.add_call_at(named[1], named.end()))
    found = scan.read_json(mark.end())
    scan.add_json_calls(found, scan.tool_format, wrapped=True)
    return _closed(scan, max(found.end, mark.end()))


def _closed(scan: ReplyScan, at: int) -> int:
    end = _END.match(scan.text, at)
    scan.repairs["tags"] += end is None
    return end.end() if end else at


def _invoke(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read a call with parameters as text. Their types follow from the tool's schema, as for Qwen3-Coder."""
    scan.add_break()
    scan.count_format_mismatch("invoke")
    name, at = mark[0].split('"')[1], mark.end()
    values: dict[str, Any] = {}
    fault: ParseFailure | None = None
    while parameter := _PARAMETER.match(scan.text, at):
        fault = fault or set_argument(values, parameter[1], typed_value(scan, name, parameter[1], parameter[2]))
        at = parameter.end()
    end = _INVOKED.match(scan.text, at)
    if end is None:
        fault = ParseFailure("tags", f"the parameters of {name} are not followed by </invoke>")
    if fault:
        scan.add_failure(name, fault)
    else:
        scan.add_call(name, values)
    return end.end() if end else at


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write each call as JSON between tags, as environments of `verifiers` expect."""
    return join_lines(content, (f"<tool>\n{dump_json({'name': c.name, 'args': c.arguments})}\n</tool>" for c in calls))
