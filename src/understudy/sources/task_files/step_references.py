"""References such as `${step1.data[0].price}` in the arguments of calls, to the results of earlier calls.

Inside the braces is an expression (`reference_expressions`) of the results `step1`, `step2`, … Rows may also use names
that an earlier step defines; `replace_definitions` replaces these by their definitions. A text that is one reference
becomes the value itself; in a longer text, the value is written as text.

Code has f-strings such as f"${price:.2f}". So a part `${…}` of a longer text is a reference only if it is an expression
of steps and defined names, or mentions a step. Any other part is text. A text that is nothing but `${…}` must be a
reference.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from understudy.sources.task_files.reference_expressions import (
    ALLOWED,
    evaluate,
    list_names,
    parse_expression,
    render_expression,
    replace_names,
    step_of,
    to_text,
)

_REFERENCE = re.compile(r"""\$\{((?:[^{}"']|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')*)\}""")
_MENTIONS_STEP = re.compile(r"\bstep\d+\b")


class Definition(NamedTuple):
    """What a name of a row stands for."""

    expression: str
    """An expression of the results of steps."""
    problem: str = ""
    """Why there is no such expression. It matters only if the name is used."""


def find_references(value: Any) -> Iterator[str]:
    """Yield the references in a value, in order, and the texts that must be references but are none."""
    found = list[str]()

    def note(text: str, is_whole: bool) -> str:
        if is_whole or _is_reference(text):
            found.append(text)
        return text

    _map_references(value, note)
    yield from found


def parse_reference(text: str) -> ast.expr:
    """Return the expression in a reference `${…}` to steps. Raise ValueError for any other text."""
    inner = text.removeprefix("${").removesuffix("}")
    try:
        node = parse_expression(inner)
    except ValueError as e:
        raise ValueError(f"{text:.80} is not a reference to a step's result: {e}") from e
    if unknown := sorted(_names_of_rows(node)):
        raise ValueError(f"{text:.80}: no earlier step defines {unknown[0]!r}; {ALLOWED}")
    return node


def steps_of(text: str) -> set[int]:
    """Return the steps whose results a reference reads."""
    return {step for name in list_names(parse_reference(text)) if (step := step_of(name)) is not None}


def resolve_references(value: Any, results: Sequence[Any]) -> Any:
    """Return a value with its references replaced by values of the `results` of the steps before.

    Raise ValueError if a step has no result yet, or its result has no such value.
    """

    def resolve(text: str, is_whole: bool) -> Any:
        if is_whole:
            return resolve_reference(text, results)
        return _inserted(resolve_reference(text, results)) if _is_reference(text) else text

    return _map_references(value, resolve)


def resolve_reference(text: str, results: Sequence[Any]) -> Any:
    """Return the value of a reference. Raise ValueError if it has none, or is null."""
    try:
        value = evaluate(parse_reference(text), results)
    except ValueError as e:
        raise ValueError(str(e) if text[:80] in str(e) else f"{text:.80}: {e}") from e
    if value is None:
        raise ValueError(f"{text:.80} has no value: it is null in the results of the steps")
    return value


def replace_definitions(value: Any, definitions: Mapping[str, Definition]) -> Any:
    """Return a value whose references have the expressions of names in place of the names.

    Raise ValueError if a name has no expression, or if an expression becomes too long.
    """

    def replace(text: str, is_whole: bool) -> str:
        try:
            node = parse_expression(text[2:-1])
        except ValueError:
            return text
        names = _names_of_rows(node)
        return f"${{{define_expression(text[2:-1], definitions)}}}" if names and names <= definitions.keys() else text

    return _map_references(value, replace)


def define_expression(text: str, definitions: Mapping[str, Definition]) -> str:
    """Return an expression of steps for one that uses names. Raise ValueError if it cannot be read."""
    node = parse_expression(text)
    for name in sorted(_names_of_rows(node)):
        if name not in definitions:
            raise ValueError(f"{text:.80}: no earlier step defines {name!r}; {ALLOWED}")
        if definitions[name].problem:
            raise ValueError(definitions[name].problem)
    parsed = {name: parse_expression(definitions[name].expression) for name in _names_of_rows(node)}
    return render_expression(replace_names(node, parsed))


def _names_of_rows(node: ast.expr) -> set[str]:
    return {name for name in list_names(node) if step_of(name) is None}


def _inserted(value: Any) -> str:
    """Return a value as it stands in a longer text, which may be Python: a list and an object are JSON."""
    return to_text(value) if isinstance(value, dict | list | str) else str(value)


def _is_reference(text: str) -> bool:
    """Return whether a part `${…}` of a longer text is a reference, or a wrong one."""
    try:
        parse_reference(text)
    except ValueError:
        return _MENTIONS_STEP.search(text) is not None
    return True


def _map_references(value: Any, convert: Callable[[str, bool], Any]) -> Any:
    """Return a value with each text `${…}` converted. The second argument says whether it is a text of its own."""
    if isinstance(value, dict):
        return {key: _map_references(inner, convert) for key, inner in value.items()}
    if isinstance(value, list):
        return [_map_references(inner, convert) for inner in value]
    if not isinstance(value, str):
        return value
    if _REFERENCE.fullmatch(value):
        return convert(value, True)
    return _REFERENCE.sub(lambda found: convert(found[0], False), value)
