"""GLM 4.5: `<tool_call>f`, `<arg_key>a</arg_key>` and `<arg_value>1</arg_value>` for each argument, `</tool_call>`.

`hermes` detects the tag. Values have no quotes; their types follow from the tool's schema, as for Qwen3-Coder.
"""

import re
from typing import Any

from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers.plain import dump_json, join_lines
from understudy.formats.tool_parsers.qwen3_coder import set_argument, skip_end_tag, typed_value

_CALL = re.compile(r"\s*+([\w.-]{1,200}+)\s*+(?=<arg_key>|</tool_call>)")
_KEY = re.compile(r"\s*+<arg_key>([^<\n]{1,200}+)</arg_key>\s*+<arg_value>")
_END = re.compile(r"\s*+</tool_call>")
_VALUE_END = "</arg_value>"


def read_glm_call(scan: ReplyScan, at: int) -> int:
    """Read the call whose name is at `at`, and return where it ends; return 0 if there is no such call."""
    header = _CALL.match(scan.text, at)
    if header is None:
        return 0
    known = header[1] in scan.tools if scan.tools else not scan.tool_format
    if _END.match(scan.text, header.end()) and scan.tool_format != "glm" and not known:
        return 0  # a single word in a Hermes tag is not a call
    scan.count_format_mismatch("glm")
    name, at = header[1], header.end()
    values: dict[str, Any] = {}
    fault: ParseFailure | None = None
    while key := _KEY.match(scan.text, at):
        end = scan.text.find(_VALUE_END, key.end())
        if end < 0:
            fault = ParseFailure("truncated", f"the argument {key[1]!r} is not closed by {_VALUE_END}")
            at = len(scan.text)
            break
        at = end + len(_VALUE_END)
        fault = fault or set_argument(values, key[1], typed_value(scan, name, key[1], scan.text[key.end() : end]))
    if fault:
        scan.add_failure(name, fault)
    else:
        scan.add_call(name, values)
    return skip_end_tag(scan, at, _END)


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write each call with every argument on two lines."""
    return join_lines(content, map(_render_call, calls))


def _render_call(call: ToolCall) -> str:
    arguments = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value if isinstance(value, str) else dump_json(value)}</arg_value>\n"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>{call.name}\n{arguments}</tool_call>"
