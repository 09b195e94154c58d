"""Calls that are nothing but JSON: `{"name": …, "arguments": …}`, Llama's `parameters`, OpenAI's `tool_calls`.

JSON that holds no call is said as it stands: models show data to users.
"""

import json
import re
from collections.abc import Iterable

from understudy.formats.repair import Pairs
from understudy.formats.scan import Scan
from understudy.formats.shapes import WRAPPERS
from understudy.messages import ToolCall
from understudy.values import whole

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


def calls_at(scan: Scan, at: int, *, members: bool = False, dialect: str = "json") -> tuple[int, bool]:
    """Where the JSON at `at` ends, and whether it held calls, which the scan has then."""
    found = scan.read(at, members=members)
    end, made = max(found.end, at + 1), scan.json(found, dialect)
    if not made and not _is_message(found.value):
        return end, False
    scan.cut()
    scan.said += _contents(found.value)
    scan.repairs["no_calls"] += not made
    return _after(scan, end), True


def _after(scan: Scan, end: int) -> int:
    """Past brackets that are too many; what follows at once is glued on."""
    if closers := _CLOSERS.match(scan.text, end):
        scan.repairs["brackets"] += 1
        end = closers.end()
    if following := _NEXT.match(scan.text, end):
        scan.repairs["glued"] += following[0].strip() != ";" and scan.own != "llama3"  # Llama 4's has nothing between
        end = following.end()
    return end


def _is_message(value: object) -> bool:
    """Whether it is an assistant's message in the wire format, perhaps with an empty list of calls."""
    return isinstance(value, Pairs) and any(key in WRAPPERS and isinstance(calls, list) for key, calls in value)


def _contents(value: object) -> Iterable[str]:
    """What a message in the wire format says beside its calls."""
    pairs = value if isinstance(value, Pairs) and _is_message(value) else ()
    return (whole(text) for key, text in pairs if key == "content" and isinstance(text, str))


def dumped(value: object) -> str:
    """JSON as it stands in text: on one line, characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def lines(content: str, calls: Iterable[str]) -> str:
    """What is said, then a line a call."""
    return "\n".join([*([content] if content else []), *calls])


def write(content: str, calls: tuple[ToolCall, ...]) -> str:
    """A line a call, after what is said."""
    return lines(content, (dumped({"name": call.name, "arguments": call.arguments}) for call in calls))
