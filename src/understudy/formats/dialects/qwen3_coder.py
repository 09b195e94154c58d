"""Qwen3-Coder: `<tool_call><function=f><parameter=a>…</parameter></function></tool_call>`; Llama's `<function=f>{…}`.

Values stand as they are, so their types are the tool's: a string where its schema says so, or takes no other type that
the text is one of, or says nothing and the text is no JSON.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from understudy.formats.dialects.plain import dumped, lines
from understudy.formats.repair import Broken
from understudy.formats.scan import Scan
from understudy.formats.schema import kind, kinds
from understudy.formats.shapes import same
from understudy.messages import ToolCall
from understudy.values import check, finite, integer, refuse

OPENINGS = (("<", "function="),)
_NAME = re.compile(r'"?([^>"\n]{1,200}+)"?>\s*+')
_PARAMETER = re.compile(r"\s*+<parameter=([^>\n]{1,200}+)>\n?")
_TAG = re.compile(r"</parameter>|<parameter=|</function>|<function=|</?tool_call>")
_END = re.compile(r"\s*+</function>(?:\s*+</tool_call>)?")
_CUT = re.compile(r"\s*+(?:<arg_key>[^<\n]*+(?:</arg_key>\s*+)?+)?+(?:<[^>{\n]*+)?+\Z")
_PYTHON: Mapping[str, Any] = {"True": True, "False": False, "None": None}
_JSON = json.JSONDecoder(parse_float=finite, parse_int=integer, parse_constant=refuse)


def read(scan: Scan, mark: re.Match[str]) -> int:
    """One function with its parameters."""
    name = _NAME.match(scan.text, mark.end())
    if name is None:
        return scan.say(mark.start(), mark.end())
    scan.cut()
    scan.foreign("qwen3_coder")
    if scan.text.startswith("{", name.end()):
        at, whole = scan.arguments(name[1], name.end()), True
    else:
        at, whole = _parameters(scan, name[1], name.end()), False
    return ended(scan, at, _END, whole)


def ended(scan: Scan, at: int, end: re.Pattern[str], whole: bool = False) -> int:
    """Past the end of a call. One that is missing is `truncated` where more arguments may have been to come.

    They are not to come where the arguments are `whole`, nor where the reply goes on with something else.
    """
    if closing := end.match(scan.text, at):
        return closing.end()
    scan.repairs["truncated" if not whole and _CUT.match(scan.text, at) else "tags"] += 1
    return at


def typed(scan: Scan, name: str, key: str, text: str) -> Any:
    """The text of a parameter as the type that its tool wants."""
    spec = scan.tools.get(name)
    schema = spec.parameters if spec else {}
    return _value(text, kinds(schema.get("properties", {}).get(key), schema.get("$defs")))


def put(values: dict[str, Any], key: str, value: Any) -> Broken | None:
    """Put an argument among the others, or say why it cannot be one."""
    if key in values and not same(values[key], value):
        return Broken("duplicate", f"the argument {key!r} is there twice, with different values")
    values[key] = value
    try:
        check(value, 1)
    except ValueError as error:
        return Broken("json", str(error))
    return None


def _parameters(scan: Scan, name: str, at: int) -> int:
    values: dict[str, Any] = {}
    fault: Broken | None = None
    while opening := _PARAMETER.match(scan.text, at):
        key, tag = opening[1], _TAG.search(scan.text, opening.end())
        at = tag.start() if tag else len(scan.text)
        value = typed(scan, name, key, scan.text[opening.end() : at].removesuffix("\n"))
        if tag is None:
            fault = Broken("truncated", f"the parameter {key!r} is not closed by </parameter>")
        elif tag[0] == "</parameter>":
            at = tag.end()
        else:
            scan.repairs["tags"] += 1
        fault = fault or put(values, key, value)
    if fault:
        scan.fail(name, fault)
    else:
        scan.call(name, values)
    return at


def _value(text: str, wanted: set[str]) -> Any:
    """The text as one of the types that are wanted; what is of none of them is a string, and the tool says so.

    A string that looks like another type is one where strings are wanted and that type is not.
    """
    if wanted == {"string"}:
        return text
    try:
        value = _PYTHON[text.strip()] if text.strip() in _PYTHON else _JSON.decode(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, str):
        return value if wanted and "string" not in wanted else text
    fits = kind(value) in wanted or (type(value) is int and "number" in wanted)
    return value if fits or "string" not in wanted else text


def write(content: str, calls: tuple[ToolCall, ...]) -> str:
    """A call with each parameter on lines of its own."""
    return lines(content, map(_written, calls))


def _written(call: ToolCall) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{dumped(value) if isinstance(value, dict | list) else value}\n</parameter>\n"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"
