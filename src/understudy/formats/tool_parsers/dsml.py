"""Calls as `<｜DSML｜invoke name="f">` with `<｜DSML｜parameter name="a" string="true">` (DeepSeek V3.2 and V4).

MiniMax M2 and Step 3 write `<invoke name="f">` with or without a namespace, MiniCPM5 `<function name="f">` with
`<param name="a">`, where a value may be CDATA. Values have no quotes: `string`, or else the tool's schema, gives their
types. In place of parameters, one JSON object may hold the arguments.

Sources: `python/sglang/srt/function_call/{deepseekv32,deepseekv4,minimax_m2,minicpm5,step3}_detector.py` in
sgl-project/sglang.
"""

import re
from typing import Any

from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers.plain import dump_json, join_lines
from understudy.formats.tool_parsers.tagged_arguments import parse_typed, set_argument, typed_value

_PREFIX = r"(?:｜DSML｜|[a-z]{1,16}:)?"
_NAME = r"""name=(?:"[^"\n<>]{1,200}+"|'[^'\n<>]{1,200}+')"""
OPENINGS = (
    # such as: <｜DSML｜invoke name="search">
    ("<", rf"{_PREFIX}(?:invoke|function)[ \t]++{_NAME}[ \t]*+>"),
    # such as: </｜DSML｜parameter>
    ("<", "/?｜DSML｜(?!(?:tool|function)_calls>)"),
)
# such as: <invoke name="search">
_INVOKE = re.compile(rf"<(?P<prefix>{_PREFIX})(?:invoke|function)[ \t]++{_NAME}[ \t]*+>")
# such as: <｜DSML｜parameter name="query" string="true">
_PARAMETER = re.compile(
    rf"\s*+<{_PREFIX}param(?:eter)?[ \t]++{_NAME}(?:[ \t]++string=\"(?P<string>true|false)\")?[^>\n]{{0,80}}+>"
)
# such as: </｜DSML｜parameter >
_TAG = re.compile(
    rf"<(?P<close>/?)(?P<prefix>{_PREFIX})(?P<kind>param(?:eter)?|invoke|function)(?=[ >])[^>\n]{{0,300}}+>"
)
# such as: \n</｜DSML｜invoke>
_END = re.compile(rf"\s*+</{_PREFIX}(?:invoke|function)>")
_END_TAG = re.compile(rf"</{_PREFIX}(?:invoke|function)>")
# such as: </｜DSML｜invoke>
_STRAY_END = re.compile(r"</｜DSML｜invoke>|(?=</?｜DSML｜(?:tool|function)_calls>)")
_BRACE = re.compile(r"\s*+(?=\{)")
# such as: <![CDATA[a < b]]>
_CDATA = re.compile(r"\s*+<!\[CDATA\[")
# such as: ]]></parameter>
_CDATA_END = re.compile(r"\]\]>\s*+(?=</)")
# such as: name="search"
_QUOTED = re.compile(_NAME)


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read one invocation."""
    scan.add_break()
    invocation = _INVOKE.match(scan.text, mark.start())
    if invocation is None:
        return _skip_stray_tag(scan, mark)
    scan.count_format_mismatch("dsml")
    name, at = _quoted_name(invocation[0]), invocation.end()
    if braced := _BRACE.match(scan.text, at):
        at = scan.add_call_at(name, braced.end())
        if end := _END.match(scan.text, at):
            return end.end()
        scan.repairs["tags"] += 1
        return scan.skip_malformed(_END_TAG, at)
    values: dict[str, Any] = {}
    fault: ParseFailure | None = None
    while (parameter := _PARAMETER.match(scan.text, at)) and not fault:
        key = _quoted_name(parameter[0])
        text, at = _read_text(scan, parameter.end(), invocation["prefix"])
        if text is None:
            fault = ParseFailure("truncated", f"the parameter {key!r} is not closed by its end tag")
        else:
            fault = _set(scan, name, values, key, text, parameter["string"] or "")
    end = _END.match(scan.text, at)
    if end is None:
        fault = fault or ParseFailure("tags", f"the parameters of {name} are not followed by the end tag of the call")
    if fault:
        scan.add_failure(name, fault)
    else:
        scan.add_call(name, values)
    return end.end() if end else scan.skip_malformed(_END_TAG, at)


def _quoted_name(tag: str) -> str:
    """Return the value of the attribute `name`."""
    quoted = _QUOTED.search(tag)
    return quoted[0][6:-1].strip() if quoted else ""


def _skip_stray_tag(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Return the position after a DSML tag that begins no invocation. An opening tag begins a malformed call."""
    end = scan.text.find(">", mark.end(), mark.end() + 300) + 1 or mark.end()
    if mark[0].startswith("</"):
        return end
    tag = scan.text[mark.start() : max(end, mark.end() + 24)]
    scan.add_failure("", ParseFailure("tags", f"{tag[:40]!r} does not begin a call with its name"))
    after = scan.find_next(_STRAY_END, end)
    return after.end() if after else len(scan.text)


def _read_text(scan: ReplyScan, at: int, prefix: str) -> tuple[str | None, int]:
    """Return the text of a parameter, and the position after its end tag; None if another tag comes first."""
    text = scan.text
    cdata = None if prefix else _CDATA.match(text, at)  # MiniCPM's tags have no prefix
    if cdata and (cdata_end := scan.find_next(_CDATA_END, cdata.end())):
        value, tag = text[cdata.end() : cdata_end.start()], _TAG.match(text, cdata_end.end())
    else:
        tag = next((tag for tag in _TAG.finditer(text, at) if tag["prefix"] == prefix), None)
        value = text[at : tag.start()] if tag else ""
    if tag is None:
        return None, len(text)
    closed = tag["close"] and tag["kind"].startswith("param")
    return (value, tag.end()) if closed else (None, tag.start())


def _set(
    scan: ReplyScan, name: str, values: dict[str, Any], key: str, text: str, is_string: str
) -> ParseFailure | None:
    """Add a parameter to `values`, or return why it is invalid."""
    value: Any = text
    if is_string == "false":
        value = parse_typed(text.strip(), {"null"})
        if isinstance(value, str):
            return ParseFailure("json", f'the parameter {key!r} is not JSON, but has string="false"')
    elif not is_string:
        value = typed_value(scan, name, key, text)
    return set_argument(values, key, value)


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write the calls as DeepSeek V4 does. V3.2 writes `function_calls` for `tool_calls`."""
    if not calls:
        return content
    lines = "\n".join(map(_render_call, calls))
    return join_lines(content, [f"<｜DSML｜tool_calls>\n{lines}\n</｜DSML｜tool_calls>"])


def _render_call(call: ToolCall) -> str:
    parameters = "".join(
        f'<｜DSML｜parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
        f"{value if isinstance(value, str) else dump_json(value)}</｜DSML｜parameter>\n"
        for key, value in call.arguments.items()
    )
    return f'<｜DSML｜invoke name="{call.name}">\n{parameters}</｜DSML｜invoke>'
