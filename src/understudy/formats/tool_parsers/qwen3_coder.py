"""Qwen3-Coder: `<tool_call><function=f><parameter=a>…</parameter></function></tool_call>`; Llama's `<function=f>{…}`.

Values have no quotes, so their types follow from the tool's schema. A value is a string if the schema requires one, if
the text is no value of the schema's other types, or if the schema states no type and the text is not JSON. An object or
a list may be written as a Python literal.
"""

import re
from typing import Any

from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers.plain import dump_json, join_lines
from understudy.formats.tool_parsers.tagged_arguments import set_argument, skip_end_tag, typed_value, unread_argument

OPENINGS = (("<", "function="),)
# such as: search>\n<parameter=query>
_NAME = re.compile(r'"?([^>"\n]{1,200}+)"?>\s*+')
# such as: \n<parameter=query>\na
_PARAMETER = re.compile(r"\s*+<parameter=([^>\n]{1,200}+)>\n?")
# such as: </parameter>
_TAG = re.compile(r"</parameter>|<parameter=|</function>|<function=|</?tool_call>")
# such as: \n</function>\n</tool_call>
_END = re.compile(r"\s*+</function>(?:\s*+</tool_call>)?")
_END_TAG = re.compile(r"</function>(?:\s*+</tool_call>)?")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read one function with its parameters."""
    name = _NAME.match(scan.text, mark.end())
    if name is None:
        return scan.add_text(mark.start(), mark.end())
    scan.add_break()
    scan.count_format_mismatch("qwen3_coder")
    if scan.text.startswith("{", name.end()):
        at, complete = scan.add_call_at(name[1], name.end()), True
    else:
        at, complete = _parameters(scan, name[1], name.end()), False
    return skip_end_tag(scan, at, _END, complete)


def _parameters(scan: ReplyScan, name: str, at: int) -> int:
    values: dict[str, Any] = {}
    fault: ParseFailure | None = None
    while opening := _PARAMETER.match(scan.text, at):
        key, tag = opening[1], _TAG.search(scan.text, opening.end())
        at = tag.start() if tag else len(scan.text)
        value = typed_value(scan, name, key, scan.text[opening.end() : at].removesuffix("\n"))
        if tag is None:
            fault = ParseFailure("truncated", f"the parameter {key!r} is not closed by </parameter>")
        elif tag[0] == "</parameter>":
            at = tag.end()
        else:
            scan.repairs["tags"] += 1
            fault = fault or _nested_call(scan, key, tag)
        fault = fault or set_argument(values, key, value)
    if fault := fault or unread_argument(scan, _TAG, at, "</function>", ("</parameter>", "<parameter=")):
        scan.add_failure(name, fault)
        return scan.skip_malformed(_END_TAG, at)
    scan.add_call(name, values)
    return at


def _nested_call(scan: ReplyScan, key: str, tag: re.Match[str]) -> ParseFailure | None:
    """Return a failure if the tag of another call is part of a parameter, whose end tag follows."""
    after = scan.find_next(_TAG, tag.end()) if tag[0] != "<parameter=" else None
    if after is None or after[0] != "</parameter>":
        return None
    return ParseFailure("tags", f"the parameter {key!r} contains {tag[0]}")


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write each call with every parameter on its own lines."""
    return join_lines(content, map(_render_call, calls))


def _render_call(call: ToolCall) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{dump_json(value) if isinstance(value, dict | list) else value}\n</parameter>\n"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"
