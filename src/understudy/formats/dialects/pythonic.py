"""Calls as Python: `[f(a=1), g()]` (Llama 4, LFM2), and fenced code. Literals come from the syntax; nothing runs."""

import ast
import builtins
import re
import warnings
from typing import Any

from understudy.formats.dialects.plain import lines
from understudy.formats.repair import Broken
from understudy.formats.scan import Scan
from understudy.messages import ToolCall
from understudy.values import DEPTH, bounded, check

OPENINGS = (
    ("<", r"\|tool_call_(?:start|end)\|>"),
    (r"\[", r"(?<!\w\[)[ \n]*+[A-Za-z_][\w.]*+\((?=\s*+(?:\)|[A-Za-z_]\w*+\s*+=))"),
)
LANGUAGES = ("python", "py", "tool_code")
_LONGEST = 50_000
_PART = re.compile(r"""(?P<open>[\[({])|(?P<close>[\])}])|"(?:[^"\\\n]++|\\.)*+"|'(?:[^'\\\n]++|\\.)*+'""", re.DOTALL)


def read(scan: Scan, mark: re.Match[str]) -> int:
    """A list of calls; LFM2's tokens around one say nothing."""
    if mark[0][0] == "<":
        scan.cut()
        return mark.end()
    end = _balanced(scan.text, mark.start())
    scan.cut()
    scan.foreign("pythonic")
    _take(scan, scan.text[mark.start() : end], "eval")
    return end


def call_at(scan: Scan, at: int, name: str) -> int:
    """The call of `name` whose `(` is at `at`."""
    end = _balanced(scan.text, at)
    _take(scan, f"{name}{scan.text[at:end]}", "eval")
    return end


def fenced(scan: Scan, start: int, end: int) -> bool:
    """Code between fences, if it is nothing but calls; whether it is."""
    tree = _parsed(scan.text[start:end], "exec")
    statements = tree.body if isinstance(tree, ast.Module) else []
    values = [s.value for s in statements if isinstance(s, ast.Expr | ast.Assign)]
    nodes = [node for value in values if value for node in _nodes(value)]
    if len(values) < len(statements) or not nodes or not all(_is_tool(scan, node) for node in nodes):
        return False
    scan.cut()
    scan.foreign("pythonic")
    for node in nodes:
        _call(scan, node)
    return True


def write(content: str, calls: tuple[ToolCall, ...]) -> str:
    """One list of all calls."""
    return lines(content, [f"[{', '.join(map(_written, calls))}]"] if calls else [])


def _written(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def _balanced(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes; the end of the text, or of what is ever read, if it does not."""
    depth, last = 0, min(len(text), start + _LONGEST)
    for part in _PART.finditer(text, start, last):
        depth += (part["open"] is not None) - (part["close"] is not None)
        if depth <= 0:
            return part.end()
    return last


def _take(scan: Scan, source: str, mode: str) -> None:
    tree = _parsed(source, mode)
    nodes = _nodes(tree.body) if isinstance(tree, ast.Expression) else []
    if not nodes:
        scan.fail(source.lstrip("[ \n").partition("(")[0], Broken("python", "the calls are not Python"))
    for node in nodes:
        _call(scan, node)


def _parsed(source: str, mode: str) -> ast.AST | None:
    if len(source) > _LONGEST:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source.strip(), mode=mode)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None


def _nodes(node: ast.AST) -> list[ast.Call]:
    """The calls of an expression that is a call or a list of calls, else none."""
    items = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    calls = [item for item in items if isinstance(item, ast.Call)]
    return calls if len(calls) == len(items) else []


def _name(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id if isinstance(node, ast.Name) else "?", *reversed(parts)))


def _is_tool(scan: Scan, node: ast.Call) -> bool:
    """Whether code that calls this is a call of a tool, and not an example for the user."""
    name = _name(node.func)
    return name in scan.tools if scan.tools else bool(node.keywords) and not hasattr(builtins, name) and "." not in name


def _call(scan: Scan, node: ast.Call) -> None:
    name = _name(node.func)
    try:
        _check_depth(node.func)
        arguments = _positional(scan, name, node.args) | {k.arg or "": literal(k.value) for k in node.keywords}
        if "?" in name:
            raise ValueError("what is called is not a name")
        if len(arguments) < len(node.args) + len(node.keywords) or "" in arguments:
            raise ValueError(f"the call of {name} has an argument twice, or unpacks one")
        check(arguments)
    except ValueError as error:
        return scan.fail(name, Broken("python", str(error)))
    scan.call(name, arguments)


def _check_depth(node: ast.AST) -> None:
    """Refuse what is deep: to write it out again may end in a RecursionError. Brackets alone Python ends at 200."""
    level = [node]
    for _ in range(2 * DEPTH):
        level = [child for parent in level for child in ast.iter_child_nodes(parent)]
    if level:
        raise ValueError(f"the call is nested more than {DEPTH} deep")


def _positional(scan: Scan, name: str, nodes: list[ast.expr]) -> dict[str, Any]:
    """Arguments without a name are in the order of the tool's parameters."""
    names = list(scan.tools[name].parameters.get("properties", {})) if name in scan.tools else []
    if len(nodes) > len(names):
        raise ValueError(f"the call of {name} has an argument without a name")
    scan.repairs["positional"] += bool(nodes)
    return {key: literal(node) for key, node in zip(names, nodes, strict=False)}


def literal(node: ast.expr) -> Any:
    """The JSON value of a literal. Raises ValueError for anything else: names, calls, operators, sets, bytes."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return bounded(number)
        case ast.Constant(value=str() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -bounded(number)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [literal(item) for item in items]
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
    return dict(zip(names, map(literal, values), strict=True))
