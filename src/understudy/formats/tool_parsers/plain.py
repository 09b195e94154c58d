"""Calls that are only JSON: `{"name": …, "arguments": …}`, Llama's `parameters`, OpenAI's `tool_calls`.

JSON that is not a call stays text, because models show data to users.
"""

import json
import re
from collections.abc import Iterable

from understudy.core.json_values import replace_surrogates
from understudy.core.messages import ToolCall
from understudy.formats.parsing.json_calls import WRAPPER_KEYS
from understudy.formats.parsing.repair import ObjectPairs
from understudy.formats.parsing.scan import ReplyScan

OPENINGS = (
    # such as: {"name": "search", "arguments": {}}
    ("{", r"(?=\s*+(?:[\"'}]|\w++\s*+:))"),
    # such as: [{"name": "search"}]
    (r"\[", r"(?=\s*+\{)"),
    # such as: "tool_calls": [{"name": "search"}]
    ('"', r'(?:tool_calls"\s*+:\s*+\[|function"\s*+:\s*+\{\s*+"name")'),
    # such as: "name": "search", "arguments": {}
    ('"', r'name"\s*+:\s*+"[^"\\\n]{1,80}+"\s*+,\s*+"(?:arguments|parameters)"\s*+:'),
)
_LIST_NAME = "functools"
"""The word that Phi 4 mini writes before a list of calls."""
# such as: }\n]}
_CLOSERS = re.compile(r"(?>(?:\s*+[}\]])+)")
# such as: `, or
_SENTENCE_GOES_ON = re.compile(r"`(?!`)[ \t]*+[,;]?[ \t]*+\w")
# such as: , {"name": "search"}
_NEXT = re.compile(r"[ \t]*+[,;]?+[ \t]*+(?=[{\[\"])")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read the JSON that begins here: as calls if it contains any, else as text."""
    part, before = len(scan.text_parts) - 1, scan.text_parts[-1]
    end, found = read_json_calls(scan, mark.start(), members=mark[0].startswith('"'))
    if found and before and before.endswith(_LIST_NAME):
        scan.text_parts[part] = before.removesuffix(_LIST_NAME)
    return end if found else scan.add_text(mark.start(), end)


def read_json_calls(scan: ReplyScan, at: int, *, members: bool = False, tool_format: str = "json") -> tuple[int, bool]:
    """Add the calls in the JSON value at `at`. Return where it ends, and whether it contained calls."""
    found = scan.read_json(at, members=members)
    end = max(found.end, at + 1)
    if _is_quoted_in_prose(scan.text, at, end):
        return end, False
    has_calls = scan.add_json_calls(found, tool_format)
    if not has_calls and not _is_message(found.value):
        return end, False
    scan.add_break()
    scan.text_parts += _contents(found.value)
    scan.repairs["no_calls"] += not has_calls
    return _after(scan, end), True


def _is_quoted_in_prose(text: str, start: int, end: int) -> bool:
    """Return whether the text is inline code within a sentence: the sentence is about a call, it makes none."""
    opened = text[start - 1] == "`" and text[start - 2] != "`"
    return opened and bool(_SENTENCE_GOES_ON.match(text, end))


def _after(scan: ReplyScan, end: int) -> int:
    """Return the position after extra closing brackets, and after a separator before a further call."""
    if closers := _CLOSERS.match(scan.text, end):
        scan.repairs["brackets"] += 1
        end = closers.end()
    if following := _NEXT.match(scan.text, end):
        # Llama 3 separates calls by ";", Llama 4 by nothing.
        scan.repairs["glued"] += following[0].strip() != ";" and scan.tool_format != "llama3"
        end = following.end()
    return end


def _is_message(value: object) -> bool:
    """Return whether a value is an assistant's message in the wire format; its list of calls may be empty."""
    return isinstance(value, ObjectPairs) and any(
        key in WRAPPER_KEYS and isinstance(calls, list) for key, calls in value
    )


def _contents(value: object) -> Iterable[str]:
    """Return the text of a message in the wire format."""
    pairs = value if isinstance(value, ObjectPairs) and _is_message(value) else ()
    return (replace_surrogates(text) for key, text in pairs if key == "content" and isinstance(text, str))


def dump_json(value: object) -> str:
    """Return a value as JSON on one line, with non-ASCII characters unescaped."""
    return json.dumps(value, ensure_ascii=False)


def join_lines(content: str, calls: Iterable[str]) -> str:
    """Join the text and the calls, each on its own line."""
    return "\n".join([*([content] if content else []), *calls])


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write the text, then each call on one line."""
    return join_lines(content, (dump_json({"name": call.name, "arguments": call.arguments}) for call in calls))
