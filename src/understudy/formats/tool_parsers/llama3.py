"""Llama 3: `{"name": …, "parameters": …}`, several separated by `; `, optionally after `<|python_tag|>`.

Llama 4's template writes `<|python_start|><|python_end|>` before calls, and nothing between them.
"""

import re

from understudy.core.messages import ToolCall
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers import pythonic
from understudy.formats.tool_parsers.plain import dump_json, join_lines

# such as: <|python_tag|>
OPENINGS = (("<", r"\|python_(?:tag|start|end)\|>"),)
# such as: search.call(query="a")
_BUILT_IN = re.compile(r"\s*+([A-Za-z_]\w*+)\.call(?=\()")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read a tag. After it come JSON calls, or a built-in tool such as `search.call(query="…")`."""
    scan.add_break()
    built_in = _BUILT_IN.match(scan.text, mark.end())
    return pythonic.read_call(scan, built_in.end(), built_in[1]) if built_in else mark.end()


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write the text, then all calls on one line."""
    texts = (dump_json({"name": call.name, "parameters": call.arguments}) for call in calls)
    return join_lines(content, ["; ".join(texts)] if calls else [])
