"""Reader of tasks in a Python file: the literals of a module-level list `TASKS`. The file is never executed.

Allowed are constants, lists, tuples, dicts, and calls of a bare name with keyword arguments, such as
`Task(user_id="u1", actions=[Action(name="f", kwargs={})])`. Such a call is read as a dict. Anything else is an error
with its line.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError, TaskError
from understudy.core.items import Item, RowError

MAX_FILE_BYTES = 64 * 2**20
"""Largest Python file in bytes. The reader keeps the file's syntax tree in memory, which is many times as large as
the file.
"""

_NAME = re.compile(r"tasks(_\w+)?", re.IGNORECASE)


def read_python_literals(path: Path) -> Iterator[Item[Any] | RowError]:
    """Yield the elements of the file's list of tasks.

    An element that is not a literal gives a RowError. Raise ConfigError if the file is too large, is not Python or has
    no such list.
    """
    for element in _list(path, _parse(path)).elts:
        location = f"{path}:{element.lineno}"
        try:
            yield Item(location, _value(element))
        except TaskError as e:
            yield RowError(location, "", str(e), "unreadable")
        except RecursionError:
            yield RowError(location, "", "the element is nested too deeply", "unreadable")


def has_task_list(path: Path) -> bool:
    """Return whether a file has a list of tasks. Raise ConfigError if it is too large or is not Python."""
    return any(_NAME.fullmatch(name) for statement in _parse(path).body for name, _ in _assignments(statement))


def _parse(path: Path) -> ast.Module:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; convert it to JSON first")
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError) as e:
        raise ConfigError(f"{path}: not Python: {' '.join(str(e).split())}") from e


def _list(path: Path, tree: ast.Module) -> ast.List:
    """Return the file's list of tasks. Raise ConfigError unless there is exactly one, as a literal."""
    assigned = {name: value for statement in tree.body for name, value in _assignments(statement)}
    lists = {name: value for name, value in assigned.items() if _NAME.fullmatch(name)}
    if not lists:
        made = [name for name, value in assigned.items() if isinstance(value, ast.Call) and name.isupper()]
        raise ConfigError(
            f"{path}: the file has no list named TASKS; define one at the module's top level, or name an object of the "
            f"module, such as {path.stem}:{made[-1] if made else 'DOMAIN'}"
        )
    if len(lists) > 1:
        names = ", ".join(lists)
        raise ConfigError(f"{path}: the file has several lists of tasks ({names}); keep one at the module's top level")
    ((name, value),) = lists.items()
    if not isinstance(value, ast.List):
        hint = f"; for the object of the module, write {path.stem}:{name}" if isinstance(value, ast.Call) else ""
        raise ConfigError(f"{path}:{value.lineno}: {name} is not a literal list; the file is not executed{hint}")
    if line := next(_modified_lines(tree, name), None):
        raise ConfigError(f"{path}:{line}: {name} is modified; write it as one list, the file is not executed")
    return value


def _modified_lines(tree: ast.Module, name: str) -> Iterator[int]:
    """Yield the lines that modify the list `name` after its definition."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.AugAssign(target=ast.Name(id=modified))
                | ast.Subscript(value=ast.Name(id=modified), ctx=ast.Store() | ast.Del())
                | ast.Call(func=ast.Attribute(value=ast.Name(id=modified), attr="append" | "extend" | "insert"))
                | ast.Call(func=ast.Attribute(value=ast.Name(id=modified), attr="remove" | "pop" | "clear"))
            ) if modified == name:
                yield node.lineno


def _assignments(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
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
    raise TaskError(f"line {node.lineno}: {_abbreviated(node)} is not a literal; the file is not executed")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise TaskError("a dict key is not a string literal; the file is not executed")


def _keyword(word: ast.keyword) -> str:
    if word.arg is None:
        raise TaskError(f"line {word.value.lineno}: ** is not a literal; the file is not executed")
    return word.arg


def _abbreviated(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
