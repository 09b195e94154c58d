"""Llama 3: `{"name": …, "parameters": …}`, several with `; ` between them, perhaps after `<|python_tag|>`.

Llama 4's template writes `<|python_start|><|python_end|>` before calls, and nothing between them.
"""

import re

from understudy.formats.dialects import pythonic
from understudy.formats.dialects.plain import dumped, lines
from understudy.formats.scan import Scan
from understudy.messages import ToolCall

OPENINGS = (("<", r"\|python_(?:tag|start|end)\|>"),)
_BUILT_IN = re.compile(r"\s*+([A-Za-z_]\w*+)\.call(?=\()")


def read(scan: Scan, mark: re.Match[str]) -> int:
    """A tag: JSON follows and is read as such, or a built-in tool: `search.call(query="…")`."""
    scan.cut()
    built_in = _BUILT_IN.match(scan.text, mark.end())
    return pythonic.call_at(scan, built_in.end(), built_in[1]) if built_in else mark.end()


def write(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Calls on one line, after what is said."""
    written = (dumped({"name": call.name, "parameters": call.arguments}) for call in calls)
    return lines(content, ["; ".join(written)] if calls else [])
