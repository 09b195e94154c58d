"""Gemma 4: `<|tool_call>call:f{a:<|"|>text<|"|>,n:1}<tool_call|>`.

FunctionGemma: `<start_function_call>call:f{a:<escape>text<escape>}<end_function_call>`. Keys have no quotes. A string
stands between two quote tokens and has no escapes. Other values are JSON, with keys and strings as above.

Sources: `vllm/tool_parsers/gemma4_tool_parser.py` and `functiongemma_tool_parser.py` in vllm-project/vllm.
"""

import re
from collections.abc import Mapping
from typing import Any

from understudy.core.json_values import MAX_DEPTH, parse_float, parse_int
from understudy.core.messages import ToolCall
from understudy.formats.parsing.repair import ParseBudget, ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.parsing.schema import member_schema, schema_types
from understudy.formats.tool_parsers.plain import join_lines
from understudy.formats.tool_parsers.tagged_arguments import set_argument, typed_value

OPENINGS = (
    ("<", r"\|tool_call>"),
    ("<", r"start_function_call>"),
    # such as: <end_function_call>
    ("<", r"tool_call\|>|end_function_call>"),
)
# such as: call:search{query:<escape>a<escape>}
_NAMED = re.compile(r"\s*+(?:call[ \t]*+:[ \t]*+)?([\w.-]{1,200}+)\s*+\{")
# such as: <tool_call|>
_NEXT = re.compile(r"<tool_call\|>|<end_function_call>|<\|tool_call>|<start_function_call>")
# such as: \n<end_function_call>
_END = re.compile(r"\s*+(?:<tool_call\|>|<end_function_call>)")
# such as: <|"|>a text<|"|>
_TOKEN = re.compile(
    r"""\s*+(?:<\|"\|>(?P<quoted>.*?)<\|"\|>|<escape>(?P<escaped>.*?)<escape>|"(?P<plain>[^"\\\n]*+)\""""
    r"""|(?P<sign>[{}\[\],:])|(?P<word>[^\s{}\[\],:<"]++))""",
    re.DOTALL,
)
# such as: -1.5e3
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?P<real>(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


class _Unreadable(Exception):
    """Error if the arguments cannot be read."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.failure = ParseFailure(kind, reason)


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read one call."""
    scan.add_break()
    if mark[0] in ("<tool_call|>", "<end_function_call>"):
        return mark.end()
    scan.count_format_mismatch("gemma")
    named = _NAMED.match(scan.text, mark.end())
    if named is None:
        near = scan.text[mark.end() : mark.end() + 24].strip()
        return _fail(scan, "", ParseFailure("json", f"{near!r} is not a name with its arguments"), mark.end())
    reader = _ArgumentsReader(scan.text, named.end(), scan.budget)
    values: dict[str, Any] = {}
    try:
        for key, value, is_quoted in reader.read_members():
            text = typed_value(scan, named[1], key, value) if is_quoted and _needs_type(scan, named[1], key) else value
            if failure := set_argument(values, key, text):
                return _fail(scan, named[1], failure, named.end())
    except _Unreadable as error:
        return _fail(scan, named[1], error.failure, named.end())
    scan.add_call(named[1], values)
    end = _END.match(scan.text, reader.at)
    scan.repairs["tags"] += end is None
    return end.end() if end else reader.at


def _needs_type(scan: ReplyScan, name: str, key: str) -> bool:
    """Return whether a parameter takes no text, so that a text in quotes must be read as its type."""
    schema = scan.tools[name].parameters if name in scan.tools else {}
    wanted = schema_types(member_schema(schema, key, schema), schema)
    return bool(wanted) and "string" not in wanted


def _fail(scan: ReplyScan, name: str, failure: ParseFailure, at: int) -> int:
    """Add a malformed call, and return where it ends."""
    scan.add_failure(name, failure)
    tag = scan.find_next(_NEXT, at)
    if tag is None:
        return len(scan.text)
    return tag.start() if tag[0].startswith(("<|", "<start")) else tag.end()


class _ArgumentsReader:
    """Reader of the members of an object, from the position `at` after its brace."""

    def __init__(self, text: str, at: int, budget: ParseBudget) -> None:
        self.text, self.at, self.budget = text, at, budget

    def read_members(self, depth: int = 1) -> list[tuple[str, Any, bool]]:
        """Return keys, values, and whether each value is a string, up to the closing brace."""
        members: list[tuple[str, Any, bool]] = []
        token = self._next()
        while token["sign"] != "}":
            key = token["word"] if token["word"] is not None else _string(token)
            if key is None or self._next()["sign"] != ":":
                raise _Unreadable("json", f"{self._near(token)} is not a key with its value")
            value = self._next()
            members.append((key, self._value(value, depth), _string(value) is not None))
            token = self._separated("}")
        return members

    def _value(self, token: re.Match[str], depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _Unreadable("depth", f"it is nested more than {MAX_DEPTH} deep")
        if (text := _string(token)) is not None:
            return text
        if token["sign"] == "{":
            values: dict[str, Any] = {}
            for key, value, _ in self.read_members(depth + 1):
                if failure := set_argument(values, key, value):
                    raise _Unreadable(failure.kind, failure.reason)
            return values
        if token["sign"] == "[":
            return self._items(depth + 1)
        if token["word"] in _WORDS:
            return _WORDS[token["word"]]
        number = _NUMBER.fullmatch(token["word"] or "")
        if number is None:
            raise _Unreadable("json", f"{self._near(token)} is not a value")
        try:
            return parse_float(number[0]) if number["real"] else parse_int(number[0])
        except ValueError as error:
            raise _Unreadable("json", str(error)) from error

    def _items(self, depth: int) -> list[Any]:
        items: list[Any] = []
        token = self._next()
        while token["sign"] != "]":
            items.append(self._value(token, depth))
            token = self._separated("]")
        return items

    def _separated(self, closing: str) -> re.Match[str]:
        """Return the token after a comma, or the closing bracket."""
        token = self._next()
        if token["sign"] == ",":
            return self._next()
        if token["sign"] != closing:
            raise _Unreadable("json", f"{self._near(token)} stands after a value")
        return token

    def _next(self) -> re.Match[str]:
        token = _TOKEN.match(self.text, self.at) if self.budget.spend() else None
        if token is None:
            raise _Unreadable("truncated", "it ends before it is complete")
        self.at = token.end()
        return token

    def _near(self, token: re.Match[str]) -> str:
        return repr(self.text[token.start() : token.start() + 24].strip())


def _string(token: re.Match[str]) -> str | None:
    """Return the text of a string token, or None for other tokens."""
    return next((text for text in token.group("quoted", "escaped", "plain") if text is not None), None)


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write the calls as Gemma 4 does, without a separator."""
    texts = (f"<|tool_call>call:{call.name}{_render(call.arguments)}<tool_call|>" for call in calls)
    return join_lines(content, ["".join(texts)] if calls else [])


def _render(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            return f"{{{','.join(f'{key}:{_render(part)}' for key, part in value.items())}}}"
        case list():
            return f"[{','.join(map(_render, value))}]"
        case bool() | None:
            return {True: "true", False: "false", None: "null"}[value]
    return repr(value)
