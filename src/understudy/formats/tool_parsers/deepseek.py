"""DeepSeek: calls between special tokens, with fenced arguments (V3, R1) or plain ones (V3.1).

Kimi K2's syntax is similar.
"""

import re

from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers.plain import dump_json, join_lines

OPENINGS = (
    ("<", r"｜tool▁calls?▁begin｜>"),
    ("<", r"｜tool▁calls?▁end｜>"),
    ("<", r"\|tool_calls?(?:_section)?_begin\|>"),
    ("<", r"\|tool_calls?(?:_section)?_end\|>"),
)
_NAMED = re.compile(
    r"\s*+(?:function<｜tool▁sep｜>)?([\w.-]{1,200}+)(?::\d++)?\s*+"
    r"(?:<｜tool▁sep｜>|<\|tool_call_argument_begin\|>)?\s*+(?:```(?:json)?+)?\s*+(?=\{)"
)
_END = re.compile(r"\s*+(?:```)?\s*+(?:<｜tool▁call▁end｜>|<\|tool_call_end\|>)")
_CALL = ("<｜tool▁call▁begin｜>", "<|tool_call_begin|>")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read a call. The tokens around the list of calls are skipped."""
    scan.add_break()
    if mark[0] not in _CALL:
        return mark.end()
    scan.count_format_mismatch("deepseek")
    header = _NAMED.match(scan.text, mark.end())
    if header is None:
        near = scan.text[mark.end() : mark.end() + 24].strip()
        scan.add_failure("", ParseFailure("json", f"{near!r} is not a name with its arguments"))
        return mark.end()
    at = scan.add_call_at(header[1].removeprefix("functions."), header.end())
    end = _END.match(scan.text, at)
    scan.repairs["tags"] += end is None
    return end.end() if end else at


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write the calls in the syntax of V3.1."""
    texts = (f"{_CALL[0]}{c.name}<｜tool▁sep｜>{dump_json(c.arguments)}<｜tool▁call▁end｜>" for c in calls)
    return join_lines(content, [f"<｜tool▁calls▁begin｜>{''.join(texts)}<｜tool▁calls▁end｜>"] if calls else [])
