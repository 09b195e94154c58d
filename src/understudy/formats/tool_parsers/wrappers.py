"""Tags and tokens around calls that are read by other modules, such as `<tool_calls>`.

They are no part of the text. A pair of tags that contains text and no call is a malformed call.

Besides the tags of the modules beside this one: `<minimax:tool_call>` (MiniMax M2),
`<seed:tool_call>` (Seed OSS), `<longcat_tool_call>`, `<TOOLCALL>` (Nemotron), `<|tool_call|>` (Granite),
`<|START_ACTION|>` (Command A), `<|action_start|>` (InternLM), `<｜tool_calls_begin｜>` (Step 3), and `<function_calls>`
(OLMo 3), whose lines are Python calls.

Sources: the parsers of these names in `vllm/tool_parsers` of vllm-project/vllm.
"""

import re

from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers import pythonic

_LISTS = r"(?:｜DSML｜|[a-z][\w-]{0,15}+:)?(?:tool_calls|function_calls)(?::\w{1,32}+)?>"
_SINGLE = r"(?:[a-z]{1,16}:|[a-z]{1,16}_)tool_call>|TOOLCALL>"
OPENINGS = (
    # such as: </function_calls>
    ("<", rf"/?(?:{_LISTS}|{_SINGLE})"),
    # such as: <|START_ACTION|>
    ("<", r"\|/?tool_calls?\|>|\|(?:START|END)_(?:ACTION|RESPONSE)\|>|\|(?:answer|outer)_(?:prefix|suffix)\|>"),
    # such as: <|action_start|><|plugin|>
    ("<", r"\|action_(?:start|end)\|>(?:\s*+<\|plugin\|>)?"),
    # such as: <｜tool_call_begin｜>function<｜tool_sep｜>
    ("<", r"｜tool_calls?_(?:begin|end)｜>(?:function<｜tool_sep｜>)?"),
)
_WORD = re.compile(r"<\w++>")
_NO_CALLS = " \t\r\n[]"


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Skip a tag. It stays text in inline code, and if no call follows it."""
    if scan.text[mark.start() - 1] == "`":
        return scan.add_text(mark.start(), mark.end())
    if mark[0].startswith("</"):
        scan.add_break()
        _close(scan, mark[0])
        return mark.end()
    if mark[0][1] in "|｜" and "DSML" not in mark[0]:  # tokens such as <|tool_call|> have no closing tag
        scan.add_break()
        return mark.end()
    scan.open_wrappers.append((len(scan.text_parts), len(scan.calls)))
    scan.text_parts.append(mark[0] if _WORD.fullmatch(mark[0]) else None)
    return pythonic.read_call_lines(scan, mark.end()) if mark[0] == "<function_calls>" else mark.end()


def _close(scan: ReplyScan, tag: str) -> None:
    """Remove the opening tag. If the pair of tags contains text and no call, it is a malformed call."""
    if not scan.open_wrappers:
        return
    part, num_calls = scan.open_wrappers.pop()
    scan.text_parts[part] = None
    if len(scan.calls) > num_calls:
        return
    inside = "".join(text or "" for text in scan.text_parts[part:]).strip(_NO_CALLS)
    del scan.text_parts[part:]
    if inside:
        scan.add_failure("", ParseFailure("tags", f"{inside[:24]!r} before {tag} is not a call"))
