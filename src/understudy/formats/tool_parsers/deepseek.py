"""DeepSeek: calls between special tokens, with fenced arguments (V3, R1) or plain ones (V3.1).

Kimi K2's syntax is similar. Its calls begin with an id, `functions.f:0`, which contains the name. `dsml` reads V3.2 and
V4.

Source for Kimi K2: `vllm/tool_parsers/kimi_k2_tool_parser.py` in vllm-project/vllm.
"""

import re

from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers.plain import dump_json, join_lines

OPENINGS = (
    # such as: <｜tool▁call▁begin｜>
    ("<", r"｜tool▁calls?▁begin｜>"),
    # such as: <｜tool▁calls▁end｜>
    ("<", r"｜tool▁calls?▁end｜>"),
    # such as: <|tool_calls_section_begin|>
    ("<", r"\|tool_calls?(?:_section)?_begin\|>"),
    # such as: <|tool_call_argument_begin|>
    ("<", r"\|tool_calls?(?:_section)?_end\|>|\|tool_call_argument_begin\|>|｜tool▁sep｜>"),
)
# such as: function<｜tool▁sep｜>search\n```json\n{"query": "a"}
_NAMED = re.compile(
    r"\s*+(?:function<｜tool▁sep｜>)?([\w.-]{1,200}+)(?::\d++)?\s*+"
    r"(?:<｜tool▁sep｜>|<\|tool_call_argument_begin\|>)?\s*+(?:```(?>(?:json)?))?\s*+(?=\{)"
)
_END_TOKEN = "(?:<｜tool▁call▁end｜>|<\\|tool_call_end\\|>)"
# such as: \n```<｜tool▁call▁end｜>
_END = re.compile(rf"\s*+(?:```)?\s*+{_END_TOKEN}")
_AFTER_MALFORMED = re.compile(_END_TOKEN)
# such as: functions.search:0<|tool_call_argument_begin|>
_NAME = re.compile(r"\s*+(?:function<｜tool▁sep｜>)?([\w.-]{1,200}+)(?::\d++)?\s*+<")
# such as: <|tool_calls_section_end|>
_NEXT = re.compile(r"<｜tool▁calls?▁(?:begin|end)｜>|<\|tool_calls?(?:_section)?_(?:begin|end)\|>")
_SEPARATORS = ("<|tool_call_argument_begin|>", "<｜tool▁sep｜>")
_CALL = ("<｜tool▁call▁begin｜>", "<|tool_call_begin|>")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read a call. The tokens around the list of calls are skipped."""
    scan.add_break()
    if mark[0] not in (*_CALL, *_SEPARATORS):
        return mark.end()
    scan.count_format_mismatch("deepseek")
    header = _NAMED.match(scan.text, mark.end()) if mark[0] in _CALL else None
    if header is None:
        return _skip_malformed(scan, mark)
    at = scan.add_call_at(header[1].removeprefix("functions."), header.end())
    if end := _END.match(scan.text, at):
        return end.end()
    scan.repairs["tags"] += 1
    return scan.skip_malformed(_AFTER_MALFORMED, at)


def _skip_malformed(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Add a malformed call, and return where it ends: at the next token of this syntax, or at the end of the reply."""
    name = _NAME.match(scan.text, mark.end()) if mark[0] in _CALL else None
    near = scan.text[mark.end() : mark.end() + 24].strip()
    reason = f"{near!r} is not a name with its arguments"
    if mark[0] in _SEPARATORS:
        reason = f"the arguments {near!r} stand after no name of a tool"
    scan.add_failure(name[1].removeprefix("functions.") if name else "", ParseFailure("json", reason))
    after = scan.find_next(_NEXT, mark.end())
    return after.start() if after else len(scan.text)


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write the calls in the syntax of V3.1."""
    texts = (f"{_CALL[0]}{c.name}<｜tool▁sep｜>{dump_json(c.arguments)}<｜tool▁call▁end｜>" for c in calls)
    return join_lines(content, [f"<｜tool▁calls▁begin｜>{''.join(texts)}<｜tool▁calls▁end｜>"] if calls else [])
