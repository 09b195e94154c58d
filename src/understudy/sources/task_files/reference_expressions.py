"""The language of references: places in the results of earlier calls, and a fixed list of functions of them.

    step1.data[0].price          a place: keys and positions in lists. `.0` is a position too, `[-1]` the last one
    step1.data[][url]            the `url` of each item of a list; `data[]` is the list itself
    step1.data[:3]               the first items of a list
    first(step1.data[][url])     a function of `FUNCTIONS`
    step1.volume / step2.mean    + - * / of numbers, and the comparisons == != < <= > >=

A text is parsed by `ast`, and only the nodes that are listed here are looked up or computed. Nothing is executed. Where
a key is asked for, a list of one item stands for its item, and a result that is `{"data": …}` or `{"result": …}` for
what it holds.
"""

import ast
import json
import operator
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import Any, NamedTuple

from pydantic_core import from_json

from understudy.core.json_values import parse_index
from understudy.envs.validation_time import find_matches

MAX_CHARACTERS = 2000
"""Longest expression, after its names are replaced by their definitions."""
MAX_DEPTH = 40
EACH = "[]"
"""The part of a path that stands for each item of a list, or at the end for the list itself."""
_WRAPPERS = ("data", "result")
_STEP = re.compile(r"step(\d{1,4})")
_PATH = re.compile(r"step\d{1,4}((?:\.[^.\[\]{}()\s]+|\[\d{1,3}\])*)")
_PART = re.compile(r"\.([^.\[\]\s]+)|\[(\d+)\]")
_STRING = r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
_EACH_WRITTEN = re.compile(rf"{_STRING}|\[\](?:\[(\w+)\])?")
_EACH_PARSED = re.compile(rf"{_STRING}|\['\[\]'(?:, '(\w+)')?\]")


class Place(NamedTuple):
    """A place in the result of a step."""

    step: int
    """The step, counted from 1."""
    path: tuple[str, ...]
    """Keys, positions in lists, and `EACH`."""


def parse_expression(text: str) -> ast.expr:
    """Return the expression that a text is. Raise ValueError if it is none."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"an expression has {len(text)} characters; at most {MAX_CHARACTERS} are allowed")
    if path := _PATH.fullmatch(text.strip()):  # whose keys need not be names
        node: ast.expr = ast.Name(text.strip().partition(".")[0].partition("[")[0])
        for key, position in _PART.findall(path[1]):
            node = ast.Subscript(node, ast.Constant(int(position) if position else key))
            if key.isidentifier() and not iskeyword(key):
                node = ast.Attribute(node.value, key)
        return node
    code = _EACH_WRITTEN.sub(
        lambda found: found[1] or (f"['[]', '{found[2]}']" if found[2] else "['[]']"), text.strip()
    )
    try:
        node = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise ValueError(f"{_shown(text)} cannot be read; {ALLOWED}") from e
    _validate(node, text)
    return node


def render_expression(node: ast.expr) -> str:
    """Return the text of an expression, which `parse_expression` reads back. Raise ValueError if it is too long."""
    text = _EACH_PARSED.sub(
        lambda found: found[1] or (f"[][{found[2]}]" if found[2] else "[]"),
        ast.unparse(ast.fix_missing_locations(node)),
    )
    parse_expression(text)
    return text


def list_names(node: ast.expr) -> set[str]:
    """Return the names in an expression that are not those of functions."""
    functions = {id(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and id(each) not in functions}


def step_of(name: str) -> int | None:
    """Return the number of the step that a name such as "step1" means, or None."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def replace_names(node: ast.expr, definitions: Mapping[str, ast.expr]) -> ast.expr:
    """Return the expression with the definitions of names in place of the names."""
    replaced: ast.expr = _Replacement(definitions).visit(parse_expression(render_expression(node)))
    return replaced


class _Replacement(ast.NodeTransformer):
    def __init__(self, definitions: Mapping[str, ast.expr]) -> None:
        self._definitions = definitions

    def visit_Call(self, node: ast.Call) -> ast.Call:
        node.args = [self.visit(each) for each in node.args]  # and not the name of the function
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._definitions.get(node.id, node)


def evaluate(node: ast.expr, results: Sequence[Any]) -> Any:
    """Return the value of an expression, given the results of the steps. Raise ValueError if it has none."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            step = step_of(name)
            if step is None or not 1 <= step <= len(results):
                raise ValueError(f"{name} is not an earlier step")
            return parse_result(results[step - 1])
        case ast.Attribute(value=inner, attr=key):
            return _look_up(evaluate(inner, results), key, node)
        case ast.Subscript(value=inner, slice=index):
            return _subscript(evaluate(inner, results), index, node)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _call(name, [evaluate(each, results) for each in args])
        case ast.UnaryOp(operand=operand):
            return -_number(evaluate(operand, results))
        case ast.BinOp(left=left, op=op, right=right):
            try:
                return _finite(
                    _ARITHMETIC[type(op)](*map(_number, (evaluate(left, results), evaluate(right, results))))
                )
            except (ArithmeticError, ValueError) as e:
                raise ValueError(f"{_shown(render_expression(node))}: {e}") from e
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compare(op, evaluate(left, results), evaluate(right, results))
    raise AssertionError(node)  # which `parse_expression` refuses


def find_place(node: ast.expr) -> Place | None:
    """Return the place whose value an expression is, or None if it computes a value."""
    match node:
        case ast.Name(id=name):
            step = step_of(name)
            return Place(step, ()) if step is not None else None
        case ast.Attribute(value=inner, attr=key):
            return _inside(find_place(inner), key)
        case ast.Subscript(value=inner, slice=ast.Constant(value=index)) if index != EACH:
            return _inside(find_place(inner), str(index))
        case ast.Subscript(value=inner, slice=ast.Constant()):
            place = find_place(inner)
            return place and (place if place.path[-1:] == (EACH,) else Place(place.step, (*place.path, EACH)))
        case ast.Subscript(value=inner, slice=ast.Tuple(elts=[_, ast.Constant(value=key)])):
            place = find_place(inner)
            return place and Place(place.step, (*_without_last_each(place.path), EACH, str(key)))
        case ast.Subscript(value=inner, slice=ast.Slice(lower=None)):
            return _as_list(find_place(inner))
        case ast.Call(func=ast.Name(id="first"), args=[inner]):
            return _inside(find_place(inner), "0")
        case ast.Call(func=ast.Name(id="head"), args=[inner, _]):
            return _as_list(find_place(inner))
        case ast.Call(func=ast.Name(id="safe_index" | "safe_attr"), args=[inner, ast.Constant(value=key)]):
            return _inside(find_place(inner), str(key))
    return None


def find_places(node: ast.expr, is_numeric: bool = False, is_list: bool = False) -> Iterator[tuple[Place, bool]]:
    """Yield the places that an expression reads, and whether it needs numbers there."""
    place = _as_list(find_place(node)) if is_list else find_place(node)
    if place is not None:
        yield place, is_numeric
        return
    is_list = isinstance(node, ast.Subscript)
    match node:
        case ast.BinOp() | ast.UnaryOp() | ast.Compare():
            is_numeric = True
        case ast.Call(func=ast.Name(id=name), args=args):
            is_numeric = name in _NUMERIC_FUNCTIONS or (is_numeric and name in _LIST_FUNCTIONS)
            is_list = name in _LIST_FUNCTIONS and (len(args) == 1 or name in ("concat", "join"))
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.expr):
            yield from find_places(inner, is_numeric, is_list)


def parse_result(result: Any) -> Any:
    """Return a result as a value: JSON text is read, any other text is itself."""
    if not isinstance(result, str):
        return result
    try:
        return from_json(result)
    except ValueError:
        return result


def to_text(value: Any) -> str:
    """Return a value as text: a text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _inside(place: Place | None, part: str) -> Place | None:
    """Return the place of a part of the value at a place. A position in what each item has is that of the item."""
    if place is None or part.startswith("-"):
        return None
    path = place.path
    if EACH in path and parse_index(part) is not None:
        last = len(path) - 1 - path[::-1].index(EACH)
        return Place(place.step, (*path[:last], part, *path[last + 1 :]))
    return None if EACH in _without_last_each(path) else Place(place.step, (*_without_last_each(path), part))


def _as_list(place: Place | None) -> Place | None:
    """Return a place whose value is a list."""
    return place if place is None or EACH in place.path else Place(place.step, (*place.path, EACH))


def _without_last_each(path: tuple[str, ...]) -> tuple[str, ...]:
    return path[:-1] if path[-1:] == (EACH,) else path


def _validate(node: ast.AST, text: str, depth: int = 0) -> None:
    """Raise ValueError unless the language has all parts of an expression."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{_shown(text)} is nested more than {MAX_DEPTH} deep")
    inner: Sequence[ast.AST] = list(ast.iter_child_nodes(node))
    match node:
        case ast.Name() | ast.Constant(value=str() | int() | float() | None):
            inner = ()
        case ast.Attribute(value=value):
            inner = (value,)
        case ast.Subscript(value=value, slice=index) if _is_index(index):
            inner = (value,)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            inner = args
            if name == "safe_attr" and len(args) == 2 and isinstance(args[1], ast.Name):
                args[1] = ast.Constant(args[1].id)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = (operand,)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            inner = (left, right)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            inner = (left, right)
        case _:
            raise ValueError(f"{_shown(text)} is not understood; {ALLOWED}")
    for each in inner:
        _validate(each, text, depth + 1)


def _is_index(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str() | int()) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int())):
            return True
        case ast.Tuple(elts=[ast.Constant(value="[]"), ast.Constant(value=str())]):
            return True
        case ast.Slice(lower=lower, upper=upper, step=None):
            return all(
                each is None or (isinstance(each, ast.Constant) and type(each.value) is int) for each in (lower, upper)
            )
    return False


def _bound(node: ast.expr | None) -> int | None:
    """Return the number that a bound of a slice is, or None."""
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _subscript(value: Any, index: ast.expr, node: ast.expr) -> Any:
    match index:
        case ast.Constant(value="[]"):
            return _items(value)
        case ast.Constant(value=key):
            return _look_up(value, str(key), node)
        case ast.UnaryOp(operand=ast.Constant(value=int() as position)):
            items = _items(value)
            if not 1 <= position <= len(items):
                raise ValueError(f"{_shown(render_expression(node))}: the list has {len(items)} items")
            return items[-position]
        case ast.Tuple(elts=[_, ast.Constant(value=key)]):
            return [each.get(key) if isinstance(each, dict) else None for each in _items(value)]
        case ast.Slice(lower=lower, upper=upper):
            return _items(value)[_bound(lower) : _bound(upper)]
    raise AssertionError(index)


def _look_up(value: Any, part: str, node: ast.expr) -> Any:
    place = parse_index(part)
    if isinstance(value, list) and place is None and len(value) == 1:
        (value,) = value
    if isinstance(value, dict) and part not in value and isinstance(_target(node), ast.Name):
        value = next((value[key] for key in _WRAPPERS if key in value), value)
        value = value[0] if isinstance(value, list) and len(value) == 1 and place is None else value
    if isinstance(value, dict) and part in value:
        return value[part]
    if isinstance(value, list) and place is not None and place < len(value):
        return value[place]
    has = f"the keys {', '.join(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"
    raise ValueError(f"{_shown(render_expression(node))}: there is no {part!r}, but {has:.200}")


def _target(node: ast.expr) -> ast.expr | None:
    return node.value if isinstance(node, ast.Attribute | ast.Subscript) else None


def _call(name: str, args: Sequence[Any]) -> Any:
    try:
        return FUNCTIONS[name](*args)
    except (TypeError, ArithmeticError, ValueError) as e:  # such as too many arguments, or a text in place of a number
        raise ValueError(f"{name}({', '.join(map(_shown, args))}): {e}") from e


def _compare(op: ast.cmpop, left: Any, right: Any) -> bool:
    try:
        return bool(_COMPARISONS[type(op)](left, right))
    except TypeError as e:
        raise ValueError(f"{_shown(left)} and {_shown(right)} cannot be compared") from e


def _shown(value: Any) -> str:
    return f"{to_text(value):.80}"


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{_shown(value)} is not a list")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is not a number")
    return value


def _finite(value: float) -> float:
    if not abs(value) < 1e300:
        raise ValueError("the result is too large")
    return value


def _numbers(*values: Any) -> list[float]:
    items = _items(values[0]) if len(values) == 1 else values
    return [_number(each) for each in items if each is not None]


def _concat(*lists: Any) -> list[Any]:
    return [item for each in lists for item in _items(each)]


def _unique(items: Any) -> list[Any]:
    return list({json.dumps(item, sort_keys=True): item for item in reversed(_items(items))}.values())[::-1]


def _safe_index(items: Any, position: int) -> Any:
    return items[position] if isinstance(items, list) and -len(items) <= position < len(items) else None


def _mean(*values: Any) -> float:
    return statistics.fmean(_numbers(*values))


def _round(value: Any, digits: int = 0) -> float:
    if not 0 <= digits <= 20:
        raise ValueError("the digits must be from 0 to 20")
    return round(_number(value), digits)


def _find_all(pattern: Any, text: Any) -> list[Any]:
    """Return all matches of a regular expression, within the time limit of `find_matches`, in a text or in texts."""
    texts = [each for each in text if isinstance(each, str)] if isinstance(text, list) else [text or ""]
    return find_matches(str(pattern), "\n".join(map(str, texts)))


def _last_change(prices: Any) -> float:
    """Return the relative change from the last price but one to the last: numbers, or the `close` or `c` of bars."""
    closes = [each.get("close", each.get("c")) if isinstance(each, dict) else each for each in _items(prices)]
    if len(closes) < 2:
        raise ValueError("two prices are needed")
    return _number(closes[-1]) / _number(closes[-2]) - 1


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "first": lambda items: _safe_index(_items(items), 0),
    "last": lambda items: _safe_index(_items(items), -1),
    "head": lambda items, count: _items(items)[:count],
    "safe_index": _safe_index,
    "safe_attr": lambda value, key: value.get(key) if isinstance(value, dict) else None,
    "len": lambda value: len(value),
    "count": lambda value: len(value),
    "unique": _unique,
    "sorted": lambda items: sorted(_items(items)),
    "concat": _concat,
    "join": lambda items, separator=", ": to_text(separator).join(map(to_text, _items(items))),
    "sum": lambda *values: _finite(sum(_numbers(*values))),
    "min": lambda *values: min(_numbers(*values)),
    "max": lambda *values: max(_numbers(*values)),
    "mean": _mean,
    "median": lambda *values: statistics.median(_numbers(*values)),
    "abs": lambda value: abs(_number(value)),
    "round": _round,
    "pct_change_last_day": _last_change,
    "regex_extract_all": _find_all,
    "str": to_text,
    "int": lambda value: int(_finite(float(value))),
    "float": lambda value: _finite(float(value)),
}
"""The functions. Each raises TypeError, ArithmeticError or ValueError for values that it does not take."""
_NUMERIC_FUNCTIONS = frozenset(
    ("sum", "min", "max", "mean", "median", "abs", "round", "pct_change_last_day", "int", "float")
)
_LIST_FUNCTIONS = frozenset(
    ("last", "unique", "sorted", "concat", "join", "sum", "min", "max", "mean", "median", "pct_change_last_day")
)
_ARITHMETIC: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
ALLOWED = (
    "allowed are paths such as step1.data[0].price, data[][name] and data[:3], names that an earlier step defines, "
    f"+ - * /, comparisons, and {', '.join(FUNCTIONS)}"
)
"""What expressions may hold, for errors."""
