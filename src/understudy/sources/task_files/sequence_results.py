"""Results of the steps of a sequence that nobody recorded in full: recorded values, and made-up ones elsewhere.

A made-up value is a word, or a number where an expression computes with it. It is random, but the same in every run, so
that an agent must read it to use it.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from understudy.core.json_values import parse_index
from understudy.sources.task_files.inferred_tools import looks_up
from understudy.sources.task_files.reference_expressions import EACH, Place, find_places
from understudy.sources.task_files.sequence_steps import SequenceStep
from understudy.sources.task_files.step_references import parse_reference, resolve_reference

MAX_PLACE_DIGITS = 3
"""Digits of the largest place in a made-up list. A longer number is a key."""
MADE_UP_ITEMS = 3
"""Number of items of a made-up list."""
_LETTERS = "bcdfghjklmnpqrstvwxz"
_Path = tuple[str, ...]


def make_results(task_id: str, steps: Sequence[SequenceStep], references: Collection[str]) -> list[Any]:
    """Return the results of the steps, in which all `references` have a value; None for a step that shows nothing.

    Recorded values are kept, except empty lists in which a reference needs a value.
    """
    needed: dict[Place, bool] = {}
    results = _make_results(task_id, steps, needed)
    for text in references:
        if not has_value(text, results):
            for place, is_numeric in find_places(parse_reference(text)):
                needed[place] = needed.get(place, False) or is_numeric
    return _make_results(task_id, steps, needed) if needed else results


def is_made_up(step: SequenceStep) -> bool:
    """Return whether nothing of a step's result was recorded."""
    return step.result is None and not step.result_values


def _make_results(task_id: str, steps: Sequence[SequenceStep], needed: Mapping[Place, bool]) -> list[Any]:
    results = list[Any]()
    for number, step in enumerate(steps, 1):
        own = {place.path: is_numeric for place, is_numeric in needed.items() if place.step == number}
        results.append(step.result if step.result is not None else _ResultMaker(task_id, number).make(step, own))
    return results


def has_value(text: str, results: Sequence[Any]) -> bool:
    """Return whether a reference has a value that is not null."""
    try:
        resolve_reference(text, results)
    except ValueError:
        return False
    return True


class _ResultMaker:
    """Makes up the values of one step's result."""

    def __init__(self, task_id: str, number: int) -> None:
        self._task_id, self._number = task_id, number

    def make(self, step: SequenceStep, needed: Mapping[_Path, bool]) -> Any:
        """Return the result of a step with all `needed` paths, which say whether a number is needed."""
        if () in needed and len(needed) == 1 and is_made_up(step):
            return self._token(("result",))
        recorded = {tuple(key.split(".")): value for key, value in step.result_values.items()}
        lists = {_list_of(path) for path in needed}
        kept = {path: value for path, value in recorded.items() if value != [] or _list_of(path) not in lists}
        result: Any = {}
        for path, value in sorted(kept.items(), key=lambda pair: len(pair[0])):
            result = with_value(result, path, value)
        fields = [tuple(field.split(".")) for field in step.result_fields] if looks_up(step.name) else []
        missing = {**dict.fromkeys((path for path in fields if path not in kept), False), **needed}
        if not missing and not result and looks_up(step.name):
            missing = {("result",): False}
        for path in sorted(filter(None, missing), key=lambda path: (path[-1] == EACH, EACH not in path, path)):
            result = self._with_made_up(result, path, path, missing[path])
        return result or None

    def _with_made_up(self, made: Any, rest: _Path, path: _Path, is_numeric: bool) -> Any:
        """Return a value with made-up ones at a path below it, where it has none."""
        if not rest:
            return self._value(path, is_numeric) if made in (None, {}, []) else made
        part, below = rest[0], rest[1:]
        if part == EACH:
            items = made if isinstance(made, list) and made else [None] * MADE_UP_ITEMS
            if not below and isinstance(made, list) and made:
                return made
            before = path[: len(path) - len(rest)]
            return [
                self._with_made_up(item, below, (*before, str(place), *below), is_numeric)
                for place, item in enumerate(items)
            ]
        inner = made.get(part) if isinstance(made, dict) else _item(made, part)
        return with_value(made, (part,), self._with_made_up(inner, below, path, is_numeric))

    def _value(self, path: _Path, is_numeric: bool) -> Any:
        if not is_numeric:
            return self._token(path)
        return 10 + int.from_bytes(self._digest(path)[:4]) % 90_000 / 100

    def _token(self, path: _Path) -> str:
        """Return a word that cannot be guessed from the task."""
        return "".join(_LETTERS[byte % len(_LETTERS)] for byte in self._digest(path)[:8])

    def _digest(self, path: _Path) -> bytes:
        return hashlib.sha256(json.dumps([self._task_id, self._number, path]).encode()).digest()


def _list_of(path: _Path) -> _Path:
    """Return the path of the outermost list that a path leads into, or the path itself."""
    inside = (place for place, part in enumerate(path) if part == EACH or parse_index(part) is not None)
    return path[: next(inside, len(path))]


def _item(made: Any, part: str) -> Any:
    place = parse_index(part)
    return made[place] if isinstance(made, list) and place is not None and place < len(made) else None


def with_value(made: Any, path: _Path, value: Any) -> Any:
    """Return a result with a value at a path, or with the items of a list at `EACH`.

    Digits are places in lists, which are filled up to the place.
    """
    if not path:
        return value
    part, rest = path[0], path[1:]
    place = parse_index(part)
    if part != EACH and (place is None or len(part) > MAX_PLACE_DIGITS):
        fields = made if isinstance(made, dict) else {}
        return {**fields, part: with_value(fields.get(part), rest, value)}
    values = {place: value} if place is not None else dict(enumerate(value))
    items = list(made) if isinstance(made, list) else []
    items += [{}] * (max(values, default=-1) + 1 - len(items))
    return [with_value(item, rest, values[n]) if n in values else item for n, item in enumerate(items)]
