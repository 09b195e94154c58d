"""Tasks in a Python file, read without executing it: a module-level list `TASKS` of `Task(...)` calls or dicts.

Only literals are taken: constants, lists, tuples, dicts, and calls of a bare name with keywords (`Task(user_id="u1",
actions=[Action(name="f", kwargs={})])`), which stand for dicts. Anything else is refused where it stands.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from understudy.data.items import Bad, Item
from understudy.errors import ConfigError, TaskError

LARGEST = 64 * 2**20
"""Bytes of a Python file: its syntax tree is held whole, and takes many times as much. JSON has no such limit."""

_NAME = re.compile(r"tasks(_\w+)?", re.IGNORECASE)


def literals(path: Path) -> Iterator[Item[Any] | Bad]:
    """The elements of the file's list of tasks."""
    if path.stat().st_size > LARGEST:
        raise ConfigError(f"{path}: larger than {LARGEST >> 20} MiB; convert it to JSON first")
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError) as e:
        raise ConfigError(f"{path}: not Python: {' '.join(str(e).split())}") from e
    for element in _list(path, tree).elts:
        where = f"{path}:{element.lineno}"
        try:
            yield Item(where, _value(element))
        except TaskError as e:
            yield Bad(where, "", str(e), "unreadable")
        except RecursionError:
            yield Bad(where, "", "it is nested too deeply", "unreadable")


def _list(path: Path, tree: ast.Module) -> ast.List:
    found = {name: value for statement in tree.body for name, value in _assigned(statement) if _NAME.fullmatch(name)}
    if len(found) != 1:
        what = f"several lists of tasks ({', '.join(found)})" if found else "no list named TASKS"
        raise ConfigError(f"{path}: it has {what}; one such list is needed, at the module's level")
    ((name, value),) = found.items()
    if not isinstance(value, ast.List):
        raise ConfigError(f"{path}:{value.lineno}: {name} is no literal list; the file is not executed")
    if line := next(_changes(tree, name), None):
        raise ConfigError(f"{path}:{line}: {name} is changed there; write it as one list, the file is not executed")
    return value


def _changes(tree: ast.Module, name: str) -> Iterator[int]:
    """Lines with which a list is no more what its literal says."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.AugAssign(target=ast.Name(id=changed))
                | ast.Subscript(value=ast.Name(id=changed), ctx=ast.Store() | ast.Del())
                | ast.Call(func=ast.Attribute(value=ast.Name(id=changed), attr="append" | "extend" | "insert"))
                | ast.Call(func=ast.Attribute(value=ast.Name(id=changed), attr="remove" | "pop" | "clear"))
            ) if changed == name:
                yield node.lineno


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    value = getattr(statement, "value", None)
    if value is not None:
        yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.List() | ast.Tuple():
            return [_value(element) for element in node.elts]
        case ast.Dict():
            return dict(zip(map(_key, node.keys), map(_value, node.values), strict=True))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Call(func=ast.Name(), args=[]):
            return {_keyword(word): _value(word.value) for word in node.keywords}
    raise TaskError(f"line {node.lineno}: {_shown(node)} is no literal; the file is not executed")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise TaskError("a dict has a key that is no string literal; the file is not executed")


def _keyword(word: ast.keyword) -> str:
    if word.arg is None:
        raise TaskError(f"line {word.value.lineno}: ** is no literal; the file is not executed")
    return word.arg


def _shown(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
