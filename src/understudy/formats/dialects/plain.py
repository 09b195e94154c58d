"""Calls that are nothing but JSON: `{"name": …, "arguments": …}`, Llama's `parameters`, OpenAI's `tool_calls`.

JSON that holds no call is said as it stands: models show data to users.
"""

import json
import re
from collections.abc import Iterable

from understudy.formats import repair
from understudy.formats.repair import Broken, Pairs
from understudy.formats.scan import BARE, Scan
from understudy.formats.shapes import WRAPPERS
from understudy.messages import ToolCall

OPENINGS = (
    ("{", r"(?=\s*+(?:[\"'}]|\w++\s*+:))"),
    (r"\[", r"(?=\s*+\{)"),
    ('"', r'(?:tool_calls"\s*+:\s*+\[|function"\s*+:\s*+\{\s*+"name")'),
    ('"', r'name"\s*+:\s*+"[^"\\\n]{1,80}+"\s*+,\s*+"(?:arguments|parameters)"\s*+:'),
)
_CLOSERS = re.compile(r"(?:\s*+[}\]])++")
_NEXT = re.compile(r"[ \t]*+[,;]?+[ \t]*+(?=[{\[\"])")


def read(scan: Scan, mark: re.Match[str]) -> int:
    """The JSON that begins here; calls if it holds any, else text."""
    end, found = calls_at(scan, mark.start(), members=mark[0].startswith('"'))
    return end if found else scan.say(mark.start(), end)


def calls_at(scan: Scan, at: int, members: bool = False) -> tuple[int, bool]:
    """Where the JSON at `at` ends, and whether it held calls, which the scan has then."""
    found = repair.read(scan.text, at, members=members)
    end, made = max(found.end, at + 1), scan.json(found, scan.own if scan.own in BARE else "json")
    if not made and not _is_empty_wrapper(found.value):
        return end, False
    scan.cut()
    if made:
        scan.said += [text for text in _contents(found.value) if text]
    else:
        scan.fail("", Broken("shape", "the list of calls holds no call"))
    return _after(scan, end), True


def _after(scan: Scan, end: int) -> int:
    """Past brackets that are too many; what follows at once is glued on."""
    if closers := _CLOSERS.match(scan.text, end):
        scan.repairs["brackets"] += 1
        end = closers.end()
    if following := _NEXT.match(scan.text, end):
        scan.repairs["glued"] += following[0].strip() != ";"
        end = following.end()
    return end


def _is_empty_wrapper(value: object) -> bool:
    return isinstance(value, Pairs) and any(key in WRAPPERS for key, _ in value)


def _contents(value: object) -> Iterable[str]:
    """What an assistant's message in the wire format says beside its calls."""
    pairs = value if isinstance(value, Pairs) and _is_empty_wrapper(value) else ()
    return (text for key, text in pairs if key == "content" and isinstance(text, str))


def dumped(value: object) -> str:
    """JSON as it stands in text: on one line, characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def lines(content: str, calls: Iterable[str]) -> str:
    """What is said, then a line a call."""
    return "\n".join([*([content] if content else []), *calls])


def write(content: str, calls: tuple[ToolCall, ...]) -> str:
    """A line a call, after what is said."""
    return lines(content, (dumped({"name": call.name, "arguments": call.arguments}) for call in calls))
