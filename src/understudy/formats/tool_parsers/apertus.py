"""Apertus: `<|tools_prefix|>[{"f": {"a": 1}}, {"g": {}}]<|tools_suffix|>`. The key of each object is a tool's name.

Sources: `vllm/tool_parsers/apertus_tool_parser.py` in vllm-project/vllm, and
`python/sglang/srt/function_call/apertus2509_detector.py` in sgl-project/sglang.
"""

import re

from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ObjectPairs, ParsedValue, ParseFailure, parse_object
from understudy.formats.parsing.scan import CALL_COST, ReplyScan
from understudy.formats.tool_parsers.plain import dump_json, join_lines

OPENINGS = (("<", r"\|tools_(?:prefix|suffix)\|>"),)
# such as: [{"search": {}}]
_BEGIN = re.compile(r"\s*+(?=[\[{])")
_SUFFIX = re.compile(r"<\|tools_suffix\|>")
# such as:  <|tools_suffix|>
_END = re.compile(r"\s*+<\|tools_suffix\|>")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read a list of calls."""
    scan.add_break()
    if mark[0] == "<|tools_suffix|>":
        return mark.end()
    scan.count_format_mismatch("apertus")
    begin = _BEGIN.match(scan.text, mark.end())
    if begin is None:
        near = scan.text[mark.end() : mark.end() + 24].strip()
        scan.add_failure("", ParseFailure("json", f"{near!r} is not a list of calls"))
        suffix = scan.find_next(_SUFFIX, mark.end())
        return suffix.end() if suffix else len(scan.text)
    found = parse_object(scan.text, begin.end(), scan.budget)
    scan.repairs.update(found.repairs)
    for item in found.value if type(found.value) is list else [found.value]:
        if scan.budget.spend(CALL_COST):
            _add_call(scan, item)
    if end_tag := _END.match(scan.text, found.end):
        return end_tag.end()
    scan.repairs["tags"] += 1
    return scan.skip_malformed(_SUFFIX, max(found.end, mark.end()))


def _add_call(scan: ReplyScan, item: object) -> None:
    if isinstance(item, ParseFailure):
        scan.add_failure("", item)
    elif isinstance(item, ObjectPairs) and len(item) == 1 and isinstance(item[0][1], ObjectPairs):
        scan.add_call_with_value(*item[0])
    else:  # it may be a call with a name and arguments
        scan.add_json_calls(ParsedValue(item, 0), "apertus", wrapped=True)


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write all calls as one list."""
    listed = dump_json([{call.name: call.arguments} for call in calls])
    return join_lines(content, [f"<|tools_prefix|>{listed}<|tools_suffix|>"] if calls else [])
