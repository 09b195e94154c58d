"""Arguments between tags, as several dialects write them: typed values, duplicate and unread arguments, end tags."""

import ast
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from understudy.core.json_values import parse_float, parse_int, reject_nan_and_infinity, validate_json_value
from understudy.formats.parsing.json_calls import json_equal
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.parsing.schema import json_type, member_schema, schema_types
from understudy.formats.tool_parsers.pythonic import literal_value, parse_python

# such as: \n<arg_key>query</arg_key>\n<arg_val
_CUT = re.compile(r"\s*+(?>(?:<arg_key(?::\w++)?>[^<\n]*+(?>(?:</arg_key(?::\w++)?>\s*+)?))?)(?>(?:<[^>{\n]*+)?)\Z")
_PYTHON: Mapping[str, Any] = {"True": True, "False": False, "None": None}
_JSON = json.JSONDecoder(parse_float=parse_float, parse_int=parse_int, parse_constant=reject_nan_and_infinity)


def set_argument(values: dict[str, Any], key: str, value: Any) -> ParseFailure | None:
    """Add an argument to `values`, or return why it is invalid."""
    if key in values and not json_equal(values[key], value):
        return ParseFailure("duplicate", f"the argument {key!r} is given twice, with different values")
    values[key] = value
    try:
        validate_json_value(value, 1)
    except ValueError as error:
        return ParseFailure("json", str(error))
    return None


def typed_value(scan: ReplyScan, name: str, key: str, text: str) -> Any:
    """Return the text of a parameter as a value of the type that the tool's schema asks for."""
    spec = scan.tools.get(name)
    schema = spec.parameters if spec else {}
    wanted = schema_types(member_schema(schema, key, schema), schema)
    value = parse_typed(text, wanted)
    if not isinstance(value, str) or "string" in wanted or not wanted & {"object", "array"}:
        return value
    literal = _python_literal(text)
    scan.repairs["python"] += literal is not None
    return value if literal is None else literal


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


def _python_literal(text: str) -> dict[str, Any] | list[Any] | None:
    """Return the value of an object or list that is written in Python, or None. No code is executed."""
    tree = parse_python(text, "eval") if text.lstrip().startswith(("{", "[")) else None
    try:
        value = literal_value(tree.body) if isinstance(tree, ast.Expression) else None
    except ValueError:
        return None
    return value if isinstance(value, dict | list) else None


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


def skip_end_tag(scan: ReplyScan, at: int, end: re.Pattern[str], complete: bool = False) -> int:
    """Return the position after the end tag of a call. A missing tag counts as a repair.

    The repair is `truncated` if arguments may be missing: the reply ends here, and the arguments are not known to be
    `complete`. Otherwise it is `tags`.
    """
    if closing := end.match(scan.text, at):
        return closing.end()
    scan.repairs["truncated" if not complete and _CUT.match(scan.text, at) else "tags"] += 1
    return at
