"""DeepSeek: calls between its own tokens, the arguments fenced (V3, R1) or not (V3.1); Kimi K2's are much the same."""

import re

from understudy.formats.dialects.plain import dumped, lines
from understudy.formats.repair import Broken
from understudy.formats.scan import Scan
from understudy.messages import ToolCall

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


def read(scan: Scan, mark: re.Match[str]) -> int:
    """A call; the tokens around all calls say nothing."""
    scan.cut()
    if mark[0] not in _CALL:
        return mark.end()
    scan.foreign("deepseek")
    named = _NAMED.match(scan.text, mark.end())
    if named is None:
        near = scan.text[mark.end() : mark.end() + 24].strip()
        scan.fail("", Broken("json", f"{near!r} is not a name with its arguments"))
        return mark.end()
    at = scan.arguments(named[1].removeprefix("functions."), named.end())
    end = _END.match(scan.text, at)
    scan.repairs["tags"] += end is None
    return end.end() if end else at


def write(content: str, calls: tuple[ToolCall, ...]) -> str:
    """As V3.1 does."""
    made = (f"{_CALL[0]}{c.name}<｜tool▁sep｜>{dumped(c.arguments)}<｜tool▁call▁end｜>" for c in calls)
    return lines(content, [f"<｜tool▁calls▁begin｜>{''.join(made)}<｜tool▁calls▁end｜>"] if calls else [])
