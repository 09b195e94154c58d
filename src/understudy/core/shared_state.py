"""Shared state: class attributes and variables of modules that user code changes, so that one episode changes others.

An episode has an object of its own, so that its state belongs into attributes that `__init__` sets.
"""

import dis
import functools
import inspect
import itertools
import random
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from understudy.core.user_code import is_installed, locate_definition

_CONTAINERS = (dict, list, set, bytearray, deque)
_CACHE = re.compile(r"cache|memo", re.IGNORECASE)
"""Matches names of variables that may change because they only store results."""
_MAX_VALUES = 200_000
"""Largest number of values that are compared of one variable."""


def find_shared_default(cls: type, owners: Iterable[type]) -> str:
    """Return an error text if all objects of a class share an empty container that no method replaces, else "".

    `owners` are the class and its bases whose attributes count. `ClassVar` marks a container that is to be shared.
    """
    assigned = {
        step.argval
        for each in cls.__mro__
        for function in _functions(vars(each).values())
        for step in dis.get_instructions(function)
        if step.opname == "STORE_ATTR"
    }
    known = {name for each in cls.__mro__ if not _is_own(each.__module__) for name in vars(each)}
    for owner in owners:
        meant = {name for name, hint in inspect.get_annotations(owner).items() if "ClassVar" in str(hint)}
        for name, value in vars(owner).items():
            if isinstance(value, _CONTAINERS) and not value and name not in assigned | known | meant:
                made = "{}" if type(value) is dict else "[]" if type(value) is list else f"{type(value).__name__}()"
                return (
                    f"{owner.__name__}.{name} = {made} is one object that all episodes share; set it in __init__, "
                    f"after super().__init__(…): self.{name} = {made}"
                )
    return ""


class SharedState:
    """The variables that classes and functions of a user share between episodes, as they are now."""

    def __init__(self, definitions: Iterable[object]) -> None:
        found = _list_variables(definitions)
        self._variables = {name: (values, key) for name, values, key in found if not _CACHE.search(key)}
        self._before = {name: self._read(name) for name in self._variables}

    def find_changed(self) -> list[str]:
        """Return a sentence for each variable that has changed since."""
        return [
            f"{name} has changed while episodes were played, and all episodes share it; keep the state of an episode "
            "in attributes that __init__ sets (or in the database), or name it a cache if it only stores results"
            for name, before in self._before.items()
            if self._read(name) != before
        ]

    def _read(self, name: str) -> Any:
        namespace, key = self._variables[name]
        return _snapshot(namespace.get(key), set(), [_MAX_VALUES])


def _list_variables(definitions: Iterable[object]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield the name to show, the namespace and the key of each variable that the code of definitions uses."""
    waiting, seen = list(definitions), set[int]()
    while waiting:
        item: Any = waiting.pop()
        while isinstance(item, functools.partial | staticmethod | classmethod):
            item = item.func if isinstance(item, functools.partial) else item.__func__
        item = inspect.unwrap(item) if inspect.isfunction(item) else item
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, type) and _is_own(item.__module__):
            where = locate_definition(item)
            for name, value in vars(item).items():
                if _may_change(value):
                    yield f"{item.__name__}.{name}" + f" ({where})" * bool(where), vars(item), name
            waiting += [*_functions(vars(item).values()), *item.__bases__]
        elif isinstance(item, FunctionType):
            held = inspect.getclosurevars(item).nonlocals
            waiting += [value for value in held.values() if callable(value)]
            if _is_own(item.__module__):
                shown = item.__qualname__.rpartition("<locals>.")[2]
                yield from ((f"{shown}.{name}", held, name) for name in held if _may_change(held[name]))
                yield from _list_globals(item, waiting)
        elif callable(item) and _is_own(type(item).__module__) and not isinstance(item, type):
            waiting.append(type(item))


def _list_globals(function: FunctionType, waiting: list[object]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield the variables of modules that a function uses. Append the functions and classes that it uses."""
    namespace = function.__globals__
    names, rebound = set[str](), set[str]()
    for code in _codes(function.__code__):
        names |= {*code.co_names}
        rebound |= {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL"}
    for name in sorted(names & namespace.keys()):
        value = namespace[name]
        if isinstance(value, ModuleType) and _is_own(value.__name__):
            used = [(each, inner) for each, inner in vars(value).items() if each in names and each[:2] != "__"]
            yield from ((f"{value.__name__}.{each}", vars(value), each) for each, inner in used if _may_change(inner))
            waiting += [inner for _, inner in used if callable(inner)]
        elif isinstance(value, type) or (callable(value) and not _may_change(value)):
            waiting.append(value)
        elif name in rebound or _may_change(value):
            yield f"{namespace.get('__name__')}.{name}", namespace, name


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _functions(members: Iterable[Any]) -> Iterator[FunctionType]:
    for member in members:
        member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if inspect.isfunction(member):
            yield member


def _is_own(module: str | None) -> bool:
    """Return whether a module is a user's."""
    found = sys.modules.get(module or "")
    return found is not None and not is_installed(getattr(found, "__file__", None) or "<built in>")


def _may_change(value: object) -> bool:
    """Return whether a value can be changed in place: a container, a generator, or an object of a user's class."""
    if isinstance(value, (*_CONTAINERS, random.Random)):
        return True
    is_object = not isinstance(value, type | FunctionType | ModuleType) and hasattr(value, "__dict__")
    return is_object and _is_own(type(value).__module__)


def _snapshot(value: Any, seen: set[int], left: list[int]) -> Any:
    """Return a copy of what a value holds, to compare. Objects of other classes than a user's are compared by identity.

    `left` is the number of values that may still be copied.
    """
    left[0] -= 1
    if isinstance(value, str | bytes | int | float | bytearray | None):
        return bytes(value) if isinstance(value, bytearray) else value
    if isinstance(value, random.Random):
        return value.getstate()
    is_object = _may_change(value) and not isinstance(value, _CONTAINERS)
    if id(value) in seen or left[0] < 0 or not (is_object or isinstance(value, (*_CONTAINERS, tuple, frozenset))):
        return len(value) if isinstance(value, _CONTAINERS) else id(value)
    seen.add(id(value))
    if is_object:
        return {name: _snapshot(inner, seen, left) for name, inner in list(vars(value).items())}
    copied: list[Any] = [len(value)]
    for inner in itertools.islice(value, _MAX_VALUES):
        if left[0] < 0:
            break
        copied.append(_snapshot(inner, seen, left))
        if isinstance(value, dict):
            copied.append(_snapshot(value[inner], seen, left))
    return copied
