"""MiniMax M3: tags after the token `]<]minimax[>[`, and arguments in tags that have their names.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="f">]<]minimax[>[<a>1]<]minimax[>[</a>]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

An object's members are tags, a list's items are tags `item`. Values have no quotes; their types follow from the tool's
schema. MiniMax M2 writes `<invoke name="f">`, which `dsml` reads.

Source: `python/sglang/srt/function_call/minimax_m3.py` in sgl-project/sglang.
"""

import re
from typing import Any

from understudy.core.json_values import MAX_DEPTH
from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.parsing.schema import member_schema, schema_types
from understudy.formats.tool_parsers.plain import dump_json, join_lines
from understudy.formats.tool_parsers.tagged_arguments import parse_typed, set_argument

_TOKEN = "]<]minimax[>["
_MARK = r"\]<\]minimax\[>\["
# such as: ]<]minimax[>[<invoke name="search">
OPENINGS = ((r"\]", rf"{_MARK[2:]}\s*+(?:</?tool_call>|</invoke>|<invoke name=\"[^\"\n<>]{{1,200}}+\">)?"),)
# such as: \n]<]minimax[>[<invoke name="search">
_INVOKE = re.compile(rf"\s*+{_MARK}\s*+<invoke name=")
# such as: ]<]minimax[>[<query>a
_OPEN = re.compile(rf"\s*+{_MARK}\s*+<(?P<key>[^/<>\[\]\n][^<>\[\]\n]{{0,199}}+)>")
# such as: ]<]minimax[>[</query>
_CLOSE = re.compile(rf"\s*+{_MARK}\s*+</(?P<key>[^<>\[\]\n]{{1,200}}+)>")
# such as: ]<]minimax[>[</tool_call>
_AFTER_MALFORMED = re.compile(rf"{_MARK}\s*+(?:</tool_call>|</invoke>|<invoke name=)")
# such as: \n]<]minimax[>[</invoke>
_END = re.compile(rf"\s*+{_MARK}\s*+</invoke>")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read one invocation. The tags around the list of calls are skipped."""
    scan.add_break()
    if '<invoke name="' not in mark[0]:
        if mark[0].endswith("<tool_call>") and not _INVOKE.match(scan.text, mark.end()):
            scan.add_failure("", ParseFailure("tags", "the tool call holds no <invoke> with a name"))
            return _skip_call(scan, mark.end())
        return mark.end()
    scan.count_format_mismatch("minimax")
    name = mark[0].split('"')[1]
    spec = scan.tools.get(name)
    schema: Any = spec.parameters if spec else {}
    reader = _ElementReader(scan, schema)
    try:
        values, at = reader.read_members(mark.end(), schema, 1)
        end = _END.match(scan.text, at)
        if end is None:
            raise ValueError(f"the parameters of {name} are not followed by </invoke>")
    except ValueError as error:
        scan.add_failure(name, ParseFailure("tags", str(error)))
        return _skip_call(scan, mark.end())
    scan.add_call(name, values)
    return end.end()


def _skip_call(scan: ReplyScan, at: int) -> int:
    """Return where the malformed call before `at` ends: at its end tag, at the end of its list, or at the next call."""
    end = scan.find_next(_AFTER_MALFORMED, at)
    return end.start() if end else len(scan.text)


class _ElementReader:
    """Reader of the arguments in tags. Its methods raise ValueError with the reason if they are malformed."""

    def __init__(self, scan: ReplyScan, schema: Any) -> None:
        """`schema` is that of the tool's arguments."""
        self.scan, self.schema = scan, schema

    def read_members(self, at: int, schema: Any, depth: int) -> tuple[dict[str, Any], int]:
        """Return the values of the tags from `at` on, and the position after the last one."""
        values: dict[str, Any] = {}
        for key, value, end in self._read_elements(at, schema, depth):
            at = end
            if failure := set_argument(values, key, value):
                raise ValueError(failure.reason)
        return values, at

    def _read_elements(self, at: int, schema: Any, depth: int) -> list[tuple[str, Any, int]]:
        if depth > MAX_DEPTH:
            raise ValueError(f"the call is nested more than {MAX_DEPTH} deep")
        elements = []
        while tag := _OPEN.match(self.scan.text, at):
            if not self.scan.budget.spend():
                raise ValueError("the call has too many parameters")
            value, at = self._read_element(tag, member_schema(schema, tag["key"], self.schema), depth)
            elements.append((tag["key"], value, at))
        return elements

    def _read_element(self, tag: re.Match[str], schema: Any, depth: int) -> tuple[Any, int]:
        """Return the value of an element, and the position after its end tag."""
        text, key, types = self.scan.text, tag["key"], schema_types(schema, self.schema)
        at = text.find(_TOKEN, tag.end())
        value: Any
        if at >= 0 and _OPEN.match(text, tag.end()):
            elements = self._read_elements(tag.end(), schema, depth + 1)
            at = elements[-1][2]
            value = self._collect(elements, types)
        elif types and types <= {"array", "object"} and not text[tag.end() : max(at, tag.end())].strip():
            value = [] if "array" in types else {}
        else:
            value = parse_typed(text[tag.end() : at], types)
        close = _CLOSE.match(text, at) if at >= 0 else None
        if close is None or close["key"] != key:
            raise ValueError(f"the parameter {key!r} is not closed by </{key}>")
        return value, close.end()

    def _collect(self, elements: list[tuple[str, Any, int]], types: set[str]) -> Any:
        if all(key == "item" for key, _, _ in elements) and (not types or "array" in types):
            return [value for _, value, _ in elements]
        values: dict[str, Any] = {}
        for key, value, _ in elements:
            if failure := set_argument(values, key, value):
                raise ValueError(failure.reason)
        return values


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write all calls in one pair of tags."""
    if not calls:
        return content
    invocations = "".join(
        f'{_TOKEN}<invoke name="{call.name}">{_render(call.arguments)}{_TOKEN}</invoke>\n' for call in calls
    )
    return join_lines(content, [f"{_TOKEN}<tool_call>\n{invocations}{_TOKEN}</tool_call>"])


def _render(value: Any) -> str:
    match value:
        case str():
            return value
        case dict():
            return "".join(f"{_TOKEN}<{key}>{_render(part)}{_TOKEN}</{key}>" for key, part in value.items())
        case list():
            return "".join(f"{_TOKEN}<item>{_render(part)}{_TOKEN}</item>" for part in value)
    return dump_json(value)
