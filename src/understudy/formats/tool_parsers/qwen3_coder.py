"""Qwen3-Coder: `<tool_call><function=f><parameter=a>…</parameter></function></tool_call>`; Llama's `<function=f>{…}`.

Values have no quotes, so their types follow from the tool's schema. A value is a string if the schema requires one, if
the text is no value of the schema's other types, or if the schema states no type and the text is not JSON. An object or
a list may be written as a Python literal.
"""

import ast
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from understudy.core.json_values import parse_float, parse_int, reject_nan_and_infinity, validate_json_value
from understudy.core.messages import ToolCall
from understudy.formats.parsing.json_calls import json_equal
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.parsing.schema import json_type, schema_types
from understudy.formats.tool_parsers.plain import dump_json, join_lines
from understudy.formats.tool_parsers.pythonic import literal_value, parse_python

OPENINGS = (("<", "function="),)
_NAME = re.compile(r'"?([^>"\n]{1,200}+)"?>\s*+')
_PARAMETER = re.compile(r"\s*+<parameter=([^>\n]{1,200}+)>\n?")
_TAG = re.compile(r"</parameter>|<parameter=|</function>|<function=|</?tool_call>")
_END = re.compile(r"\s*+</function>(?:\s*+</tool_call>)?")
_END_TAG = re.compile(r"</function>(?:\s*+</tool_call>)?")
_CUT = re.compile(r"\s*+(?>(?:<arg_key(?::\w++)?>[^<\n]*+(?>(?:</arg_key(?::\w++)?>\s*+)?))?)(?>(?:<[^>{\n]*+)?)\Z")
_PYTHON: Mapping[str, Any] = {"True": True, "False": False, "None": None}
_JSON = json.JSONDecoder(parse_float=parse_float, parse_int=parse_int, parse_constant=reject_nan_and_infinity)


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read one function with its parameters."""
    name = _NAME.match(scan.text, mark.end())
    if name is None:
        return scan.add_text(mark.start(), mark.end())
    scan.add_break()
    scan.count_format_mismatch("qwen3_coder")
    if scan.text.startswith("{", name.end()):
        at, complete = scan.add_call_at(name[1], name.end()), True
    else:
        at, complete = _parameters(scan, name[1], name.end()), False
    return skip_end_tag(scan, at, _END, complete)


def skip_end_tag(scan: ReplyScan, at: int, end: re.Pattern[str], complete: bool = False) -> int:
    """Return the position after the end tag of a call. A missing tag counts as a repair.

    The repair is `truncated` if arguments may be missing: the reply ends here, and the arguments are not known to be
    `complete`. Otherwise it is `tags`.
    """
    if closing := end.match(scan.text, at):
        return closing.end()
    scan.repairs["truncated" if not complete and _CUT.match(scan.text, at) else "tags"] += 1
    return at


def typed_value(scan: ReplyScan, name: str, key: str, text: str) -> Any:
    """Return the text of a parameter as a value of the type that the tool's schema asks for."""
    spec = scan.tools.get(name)
    schema = spec.parameters if spec else {}
    wanted = schema_types(schema.get("properties", {}).get(key), schema.get("$defs"))
    value = parse_typed(text, wanted)
    if not isinstance(value, str) or "string" in wanted or not wanted & {"object", "array"}:
        return value
    literal = _python_literal(text)
    scan.repairs["python"] += literal is not None
    return value if literal is None else literal


def set_argument(values: dict[str, Any], key: str, value: Any) -> ParseFailure | None:
    """Add an argument to `values`, or return why it is invalid."""
    if key in values and not json_equal(values[key], value):
        return ParseFailure("duplicate", f"the argument {key!r} is there twice, with different values")
    values[key] = value
    try:
        validate_json_value(value, 1)
    except ValueError as error:
        return ParseFailure("json", str(error))
    return None


def _parameters(scan: ReplyScan, name: str, at: int) -> int:
    values: dict[str, Any] = {}
    fault: ParseFailure | None = None
    while opening := _PARAMETER.match(scan.text, at):
        key, tag = opening[1], _TAG.search(scan.text, opening.end())
        at = tag.start() if tag else len(scan.text)
        value = typed_value(scan, name, key, scan.text[opening.end() : at].removesuffix("\n"))
        if tag is None:
            fault = ParseFailure("truncated", f"the parameter {key!r} is not closed by </parameter>")
        elif tag[0] == "</parameter>":
            at = tag.end()
        else:
            scan.repairs["tags"] += 1
            fault = fault or _nested_call(scan, key, tag)
        fault = fault or set_argument(values, key, value)
    if fault := fault or unread_argument(scan, _TAG, at, "</function>", ("</parameter>", "<parameter=")):
        scan.add_failure(name, fault)
        return scan.skip_malformed(_END_TAG, at)
    scan.add_call(name, values)
    return at


def _nested_call(scan: ReplyScan, key: str, tag: re.Match[str]) -> ParseFailure | None:
    """Return a failure if the tag of another call is part of a parameter, whose end tag follows."""
    after = scan.find_next(_TAG, tag.end()) if tag[0] in ("<function=", "<tool_call>") else None
    if after is None or after[0] != "</parameter>":
        return None
    return ParseFailure("tags", f"the parameter {key!r} contains {tag[0]}")


def unread_argument(
    scan: ReplyScan, tags: re.Pattern[str], at: int, end_tag: str, argument_tags: Collection[str]
) -> ParseFailure | None:
    """Return a failure if the arguments of a call do not end at `at`, because one contains a tag of the format.

    `tags` finds the tags of the format, `end_tag` begins the one that ends a call, and `argument_tags` those of
    arguments.
    """
    after = scan.find_next(tags, at)
    if after is None:
        return None
    has_text = bool(scan.text[at : after.start()].strip())
    if after[0].startswith(tuple(argument_tags)) or (after[0].startswith(end_tag) and has_text):
        return ParseFailure("tags", f"the arguments are followed by {scan.text[at : after.end()].strip()[:40]!r}")
    return None


def _python_literal(text: str) -> dict[str, Any] | list[Any] | None:
    """Return the value of an object or list that is written in Python, or None. No code is executed."""
    tree = parse_python(text, "eval") if text.lstrip().startswith(("{", "[")) else None
    try:
        value = literal_value(tree.body) if isinstance(tree, ast.Expression) else None
    except ValueError:
        return None
    return value if isinstance(value, dict | list) else None


def parse_typed(text: str, wanted: set[str]) -> Any:
    """Return the text as a value of one of the wanted types.

    Text that is not JSON stays a string. JSON of an unwanted type stays a string if strings are wanted. Otherwise it
    is returned as its value, and the tool reports the wrong type.
    """
    if wanted == {"string"}:
        return text
    try:
        value = _PYTHON[text.strip()] if text.strip() in _PYTHON else _JSON.decode(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, str):
        return value if wanted and "string" not in wanted else text
    fits = json_type(value) in wanted or (type(value) is int and "number" in wanted)
    return value if fits or "string" not in wanted else text


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write each call with every parameter on its own lines."""
    return join_lines(content, map(_render_call, calls))


def _render_call(call: ToolCall) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{dump_json(value) if isinstance(value, dict | list) else value}\n</parameter>\n"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"
