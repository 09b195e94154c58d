"""XML: `<tool>{"name": …, "args": …}</tool>`, `<tool>f</tool><tool_input>{…}</tool_input>`, and `<invoke name="f">`."""

import re
from typing import Any

from understudy.formats.dialects.plain import dumped, lines
from understudy.formats.dialects.qwen3_coder import put, typed
from understudy.formats.repair import Broken
from understudy.formats.scan import Scan
from understudy.messages import ToolCall

OPENINGS = (("<", "tool>"), ("<", 'invoke name="[^"\n<]{1,200}+">'), ("<", "/?function_calls>"))
_NAMED = re.compile(r"\s*+([\w.-]{1,128}+)\s*+</tool>\s*+<tool_input>\s*+(?=\{)")
_END = re.compile(r"\s*+</tool(?:_input)?>")
_PARAMETER = re.compile(r'\s*+<parameter name="([^"\n<]{1,200}+)"[^>\n]{0,80}+>([^<]*+)</parameter>')
_INVOKED = re.compile(r"\s*+</invoke>")


def read(scan: Scan, mark: re.Match[str]) -> int:
    """A call in tags."""
    if mark[0].startswith("<invoke"):
        return _invoke(scan, mark)
    scan.cut()
    if mark[0] != "<tool>":
        return mark.end()
    scan.foreign("xml")
    if named := _NAMED.match(scan.text, mark.end()):
        return _closed(scan, scan.arguments(named[1], named.end()))
    found = scan.read(mark.end())
    scan.json(found, scan.own, wrapped=True)
    return _closed(scan, max(found.end, mark.end()))


def _closed(scan: Scan, at: int) -> int:
    end = _END.match(scan.text, at)
    scan.repairs["tags"] += end is None
    return end.end() if end else at


def _invoke(scan: Scan, mark: re.Match[str]) -> int:
    """Parameters as text; types are those of Qwen3-Coder's."""
    scan.cut()
    scan.foreign("invoke")
    name, at = mark[0].split('"')[1], mark.end()
    values: dict[str, Any] = {}
    fault: Broken | None = None
    while parameter := _PARAMETER.match(scan.text, at):
        fault = fault or put(values, parameter[1], typed(scan, name, parameter[1], parameter[2]))
        at = parameter.end()
    end = _INVOKED.match(scan.text, at)
    if end is None:
        fault = Broken("tags", f"the call of {name} is not parameters up to </invoke>")
    if fault:
        scan.fail(name, fault)
    else:
        scan.call(name, values)
    return end.end() if end else at


def write(content: str, calls: tuple[ToolCall, ...]) -> str:
    """JSON between tags, as environments of `verifiers` ask for it."""
    return lines(content, (f"<tool>\n{dumped({'name': c.name, 'args': c.arguments})}\n</tool>" for c in calls))
