"""Python calls:

`[f(a=1), g()]` (Llama 4, LFM2), one call a line (OLMo 3), and fenced code. Literals are read from the syntax tree; no
code is executed.

Sources: `vllm/tool_parsers/{lfm2,olmo3,pythonic}_tool_parser.py` in vllm-project/vllm.
"""

import ast
import builtins
import re
import warnings
from typing import Any

from understudy.core.json_values import MAX_DEPTH, validate_json_value, validate_number
from understudy.core.messages import ToolCall
from understudy.formats.parsing.python_repair import KEYWORD, NAME, parse_python_calls
from understudy.formats.parsing.repair import ParseFailure
from understudy.formats.parsing.scan import CALL_COST, ReplyScan
from understudy.formats.tool_parsers.plain import join_lines

OPENINGS = (
    # such as: <|tool_call_start|>
    ("<", r"\|tool_call_(?:start|end)\|>"),
    # such as: [search(query="a")]
    (r"\[", rf"(?<!\w\[)[ \n]*+{NAME}\((?=\s*+(?:\)|{KEYWORD}\s*+=))"),
)
_BEGIN, _END = "<|tool_call_start|>", "<|tool_call_end|>"
# such as: \n[search(query="a")]
_LIST = re.compile(rf"\s*+(?=\[\s*+{NAME}\()")
_END_TOKEN = re.compile(re.escape(_END))
_CLOSED = re.compile(r"\s*+<\|tool_call_end\|>")
# such as: \nsearch(query="a")
_LINE = re.compile(rf"[\s,]*+({NAME})(?=\()")
LANGUAGES = ("python", "py", "tool_code")
_MAX_LENGTH = 50_000
# such as: "a text"
_PART = re.compile(
    r"""(?P<open>[\[({])|(?P<close>[\])}])|"(?>(?:[^"\\\n]++|\\.)*)"|'(?>(?:[^'\\\n]++|\\.)*)'""", re.DOTALL
)


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read a list of calls, with LFM2's tokens around it or without."""
    if mark[0] == _END:
        scan.add_break()
        return mark.end()
    if mark[0] == _BEGIN:
        return _read_block(scan, mark.end())
    return _read_list(scan, mark.start(), len(scan.text))


def _read_block(scan: ReplyScan, start: int) -> int:
    """Read the list of calls after LFM2's opening token. Anything else after it is read as without the token."""
    scan.add_break()
    begin = _LIST.match(scan.text, start)
    if begin is None:
        return start
    end = scan.find_next(_END_TOKEN, start)
    at = _read_list(scan, begin.end(), end.start() if end else len(scan.text))
    body = scan.text[begin.end() : at]
    closed = _CLOSED.match(scan.text, at)
    return scan.skip_echo(body, closed.end(), _CLOSED, bare=True) if closed else at


def _read_list(scan: ReplyScan, start: int, limit: int) -> int:
    """Read the list of calls at `start`, which ends before `limit`, and return where it ends.

    A Markdown link, such as `[f(a=1)](https://…)`, is text.
    """
    end = _balanced(scan.text, start, limit)
    if scan.text.startswith("(", end):
        return scan.add_text(start, end)
    scan.add_break()
    scan.count_format_mismatch("pythonic")
    return _add_calls(scan, start, end, limit)


def read_call_lines(scan: ReplyScan, at: int) -> int:
    """Read calls that stand one a line, as OLMo 3 writes them, and return where the last one ends."""
    while named := _LINE.match(scan.text, at):
        if not scan.budget.spend(CALL_COST):
            break
        scan.count_format_mismatch("pythonic")
        start = named.start(1)
        at = _add_calls(scan, start, _balanced(scan.text, named.end(), len(scan.text)), len(scan.text))
    return at


def read_call(scan: ReplyScan, at: int, name: str) -> int:
    """Read the call of `name` whose `(` is at `at`, and return where it ends."""
    end = _balanced(scan.text, at, len(scan.text))
    _add_nodes(scan, f"{name}{scan.text[at:end]}", _parsed_calls(f"{name}{scan.text[at:end]}"))
    return end


def read_code_block(scan: ReplyScan, start: int, end: int) -> bool:
    """Read a code block if it contains only tool calls. Return whether it does."""
    tree = parse_python(scan.text[start:end], "exec")
    statements = tree.body if isinstance(tree, ast.Module) else []
    values = [s.value for s in statements if isinstance(s, ast.Expr | ast.Assign)]
    nodes = [node for value in values if value for node in _call_nodes(value)]
    if len(values) < len(statements) or not nodes or not all(_is_tool(scan, node) for node in nodes):
        return False
    scan.add_break()
    scan.count_format_mismatch("pythonic")
    for node in nodes:
        _add_call(scan, node)
    return True


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write all calls as one list."""
    return join_lines(content, [f"[{', '.join(map(_render_call, calls))}]"] if calls else [])


def _render_call(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def _balanced(text: str, start: int, limit: int) -> int:
    """Return where the bracket that opens at `start` closes.

    If it does not close, return `limit`, or the position after `_MAX_LENGTH` characters if that comes first.
    """
    depth, last = 0, min(limit, start + _MAX_LENGTH)
    for part in _PART.finditer(text, start, last):
        depth += (part["open"] is not None) - (part["close"] is not None)
        if depth <= 0:
            return part.end()
    return last


def _add_calls(scan: ReplyScan, start: int, end: int, limit: int) -> int:
    """Add the calls in `text[start:end]`, and return where they end.

    If Python's parser rejects them, the tolerant parser reads them, at most up to `limit`.
    """
    source = scan.text[start:end]
    nodes = _parsed_calls(source)
    if nodes:
        _add_nodes(scan, source, nodes)
        return end
    try:
        found = parse_python_calls(scan.text, start, min(limit, start + _MAX_LENGTH), scan.budget)
    except ValueError as error:
        name = source.lstrip("[ \n").partition("(")[0]
        scan.add_failure(name, ParseFailure("python", f"the calls are not Python: {error}"))
        return end
    scan.repairs.update(found.repairs)
    for name, arguments in found.calls:
        scan.add_call(name, arguments)
    return found.end


def _add_nodes(scan: ReplyScan, source: str, nodes: list[ast.Call]) -> None:
    if not nodes:
        scan.add_failure(source.partition("(")[0], ParseFailure("python", "the calls are not Python"))
    for node in nodes:
        _add_call(scan, node)


def _parsed_calls(source: str) -> list[ast.Call]:
    tree = parse_python(source, "eval")
    return _call_nodes(tree.body) if isinstance(tree, ast.Expression) else []


def parse_python(source: str, mode: str) -> ast.AST | None:
    """Return the syntax tree of a text, or None if it is not Python. Nothing is executed."""
    if len(source) > _MAX_LENGTH:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source.strip(), mode=mode)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None


def _call_nodes(node: ast.AST) -> list[ast.Call]:
    """Return the calls of an expression that is a call or a list of calls, else none."""
    items = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    calls = [item for item in items if isinstance(item, ast.Call)]
    return calls if len(calls) == len(items) else []


def _name(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id if isinstance(node, ast.Name) else "?", *reversed(parts)))


def _is_tool(scan: ReplyScan, node: ast.Call) -> bool:
    """Return whether a call in a code block is a tool call, and not an example for the user."""
    name = _name(node.func)
    if scan.tools:
        return name in scan.tools
    return bool(node.keywords) and not hasattr(builtins, name) and "." not in name


def _add_call(scan: ReplyScan, node: ast.Call) -> None:
    name = _name(node.func)
    try:
        _check_depth(node.func)
        arguments = _positional(scan, name, node.args) | {k.arg or "": literal_value(k.value) for k in node.keywords}
        if "?" in name:
            raise ValueError("the called function is not a name")
        if len(arguments) < len(node.args) + len(node.keywords) or "" in arguments:
            raise ValueError(f"the call of {name} has an argument twice, or unpacks one")
        validate_json_value(arguments)
    except ValueError as error:
        return scan.add_failure(name, ParseFailure("python", str(error)))
    scan.add_call(name, arguments)


def _check_depth(node: ast.AST) -> None:
    """Raise ValueError for a deeply nested node.

    `ast.unparse` may raise RecursionError for it. Python's own limit, 200 levels, is only for brackets.
    """
    level = [node]
    for _ in range(2 * MAX_DEPTH):
        level = [child for parent in level for child in ast.iter_child_nodes(parent)]
    if level:
        raise ValueError(f"the call is nested more than {MAX_DEPTH} deep")


def _positional(scan: ReplyScan, name: str, nodes: list[ast.expr]) -> dict[str, Any]:
    """Return the positional arguments as a dict; the keys are the names of the tool's parameters, in order."""
    names = list(scan.tools[name].parameters.get("properties", {})) if name in scan.tools else []
    if len(nodes) > len(names):
        raise ValueError(f"the call of {name} has an argument without a name")
    scan.repairs["positional"] += bool(nodes)
    return {key: literal_value(node) for key, node in zip(names, nodes, strict=False)}


def literal_value(node: ast.expr) -> Any:
    """Return the JSON value of a literal.

    Raise ValueError for anything else: names, calls, operators, sets, bytes.
    """
    match node:
        case ast.Constant(value=int() | float() as number):
            return validate_number(number)
        case ast.Constant(value=str() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -validate_number(number)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [literal_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return _dict(keys, values)
        case ast.Name(id="true" | "false" | "null" as word):
            return {"true": True, "false": False, "null": None}[word]
    _check_depth(node)
    raise ValueError(f"the argument {ast.unparse(node)[:40]!r} is not a literal")


def _dict(keys: list[ast.expr | None], values: list[ast.expr]) -> dict[str, Any]:
    names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    if len(set(names)) < len(keys):
        raise ValueError("the keys of a dict are not different strings")
    return dict(zip(names, map(literal_value, values), strict=True))
