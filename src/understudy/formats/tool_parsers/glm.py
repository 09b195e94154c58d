"""GLM 4.5: `<tool_call>f`, `<arg_key>a</arg_key>` and `<arg_value>1</arg_value>` for each argument, `</tool_call>`.

Hunyuan V3 writes `<tool_sep>` after the name, and may write one suffix in all tags, such as `<tool_call:opensource>`.
`hermes` detects the first tag. Values have no quotes; their types follow from the tool's schema, as for Qwen3-Coder.

Source for Hunyuan: `vllm/tool_parsers/hy_v3_tool_parser.py` in vllm-project/vllm.
"""

import re
from typing import Any

from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers.plain import dump_json, join_lines
from understudy.formats.tool_parsers.tagged_arguments import set_argument, skip_end_tag, typed_value, unread_argument

_SUFFIX = r"(?::\w{1,32}+)?"
# such as: search\n<arg_key>query</arg_key>
_CALL = re.compile(
    rf"\s*+([\w.-]{{1,200}}+)\s*+(?P<separator><tool_sep{_SUFFIX}>)?\s*+(?=<arg_key{_SUFFIX}>|</tool_call{_SUFFIX}>)"
)
# such as: <arg_key>query</arg_key>\n<arg_value>a</arg_value>
_KEY = re.compile(rf"\s*+<arg_key{_SUFFIX}>([^<\n]{{1,200}}+)</arg_key{_SUFFIX}>\s*+<arg_value(?P<suffix>{_SUFFIX})>")
# such as: \n</tool_call:opensource>
_END = re.compile(rf"\s*+</tool_call{_SUFFIX}>")
_END_TAG = re.compile(rf"</tool_call{_SUFFIX}>")
# such as: </arg_value>
_TAG = re.compile(rf"</?(?:tool_call|arg_key|arg_value){_SUFFIX}>")
_ARGUMENT_TAGS = ("<arg_", "</arg_")


def read_glm_call(scan: ReplyScan, at: int) -> int:
    """Read the call whose name is at `at`, and return where it ends; return 0 if there is no such call."""
    header = _CALL.match(scan.text, at)
    if header is None:
        return 0
    known = bool(header["separator"]) or (header[1] in scan.tools if scan.tools else not scan.tool_format)
    if _END.match(scan.text, header.end()) and scan.tool_format != "glm" and not known:
        return 0  # a single word in a Hermes tag is not a call
    scan.count_format_mismatch("glm")
    name, at = header[1], header.end()
    values: dict[str, Any] = {}
    fault: ParseFailure | None = None
    while key := _KEY.match(scan.text, at):
        closing = f"</arg_value{key['suffix']}>"
        end = scan.text.find(closing, key.end())
        if end < 0:
            fault = ParseFailure("truncated", f"the argument {key[1]!r} is not closed by {closing}")
            at = len(scan.text)
            break
        at = end + len(closing)
        fault = fault or set_argument(values, key[1], typed_value(scan, name, key[1], scan.text[key.end() : end]))
    if fault := fault or unread_argument(scan, _TAG, at, "</tool_call", _ARGUMENT_TAGS):
        scan.add_failure(name, fault)
        return scan.skip_malformed(_END_TAG, at)
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
