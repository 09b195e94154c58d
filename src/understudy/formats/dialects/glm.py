"""GLM 4.5: `<tool_call>f`, `<arg_key>a</arg_key>` and `<arg_value>1</arg_value>` for each argument, `</tool_call>`.

`hermes` finds the tag. Values stand as they are; their types are those of Qwen3-Coder's.
"""

import re
from typing import Any

from understudy.formats.dialects.plain import dumped, lines
from understudy.formats.dialects.qwen3_coder import ended, put, typed
from understudy.formats.repair import Broken
from understudy.formats.scan import Scan
from understudy.messages import ToolCall

_CALL = re.compile(r"\s*+([\w.-]{1,200}+)\s*+(?=<arg_key>|</tool_call>)")
_KEY = re.compile(r"\s*+<arg_key>([^<\n]{1,200}+)</arg_key>\s*+<arg_value>")
_END = re.compile(r"\s*+</tool_call>")
_VALUE_END = "</arg_value>"


def call_at(scan: Scan, at: int) -> int:
    """Take the call whose name stands at `at`, and give where it ends; 0 if no such call is there."""
    named = _CALL.match(scan.text, at)
    if named is None:
        return 0
    known = named[1] in scan.tools if scan.tools else not scan.own
    if _END.match(scan.text, named.end()) and scan.own != "glm" and not known:
        return 0  # a word in Hermes's tag is no call
    scan.foreign("glm")
    name, at = named[1], named.end()
    values: dict[str, Any] = {}
    fault: Broken | None = None
    while key := _KEY.match(scan.text, at):
        end = scan.text.find(_VALUE_END, key.end())
        if end < 0:
            fault, at = Broken("truncated", f"the argument {key[1]!r} is not closed by {_VALUE_END}"), len(scan.text)
            break
        at = end + len(_VALUE_END)
        fault = fault or put(values, key[1], typed(scan, name, key[1], scan.text[key.end() : end]))
    if fault:
        scan.fail(name, fault)
    else:
        scan.call(name, values)
    return ended(scan, at, _END)


def write(content: str, calls: tuple[ToolCall, ...]) -> str:
    """A call with each argument on two lines."""
    return lines(content, map(_written, calls))


def _written(call: ToolCall) -> str:
    arguments = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value if isinstance(value, str) else dumped(value)}</arg_value>\n"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>{call.name}\n{arguments}</tool_call>"
