"""ReAct: `Action: f` and `Action Input: {…}` on lines of their own; also `Action:` with a call in JSON."""

import re

from understudy.formats.dialects.plain import calls_at, dumped, lines
from understudy.formats.repair import Broken
from understudy.formats.scan import Scan
from understudy.messages import ToolCall

OPENINGS = (("\n", r"[ \t*]*+Action[ \t]*+:\**+[ \t]*+"),)
_NAMED = re.compile(r"`?([^\n`(\[{]{1,128}+)`?[ \t]*+\n\s*+\**+Action Input[ \t]*+:\**+\s*+(?:```\w*+\s*+)?+")
_NAME = re.compile(r"[`\"]?([\w.-]{1,128}+)")
_JSON = re.compile(r"\s*+(?:```\w*+\s*+)?+(?=\{)")


def read(scan: Scan, mark: re.Match[str]) -> int:
    """An action with its input."""
    if named := _NAMED.match(scan.text, mark.end()):
        scan.cut()
        scan.foreign("react")
        return scan.arguments(named[1].strip(), named.end())
    if braced := _JSON.match(scan.text, mark.end()):
        end, found = calls_at(scan, braced.end(), dialect="react")
        return end if found else scan.say(mark.start(), end)
    name = _NAME.match(scan.text, mark.end())
    if name and name[1] in scan.tools:
        scan.cut()
        scan.fail(name[1], Broken("shape", f"the action {name[1]} has no 'Action Input:' with a JSON object"))
        return name.end()
    return scan.say(mark.start(), mark.end())


def write(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Two lines a call."""
    return lines(content, (f"Action: {call.name}\nAction Input: {dumped(call.arguments)}" for call in calls))
