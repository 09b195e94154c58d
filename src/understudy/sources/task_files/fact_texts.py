"""Facts in the results of calls that an agent must tell the user: short texts and numbers.

A number with more than two decimals may also be told rounded to two.
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from understudy.envs.rewards import states_fact
from understudy.sources.task_files.reference_expressions import to_text

MAX_FACT_CHARACTERS = 60
"""Longest fact that an agent must tell."""


class ShownResult(NamedTuple):
    """The result of a gold call."""

    arguments: Mapping[str, Any]
    text: str


def fact_text(value: Any) -> str:
    """Return a value as an output of a task, or "" if it is none: a list, an object, null, or a long text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    if isinstance(value, str):
        text = value.strip()
        return text if len(text) <= MAX_FACT_CHARACTERS and "|" not in text else ""
    exact, rounded = f"{Decimal(repr(value)):f}", f"{value:.2f}"
    return f"{exact}|{rounded}" if len(exact.partition(".")[2]) > 2 and float(rounded) else exact


def tellable_facts(values: Mapping[str, Any], shown: Sequence[ShownResult]) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of those values that a result shows. What the arguments of its call state is known."""
    for name, value in values.items():
        text = fact_text(value)
        if text and any(
            states_fact(text, each.text) and not states_fact(text, to_text(each.arguments)) for each in shown
        ):
            yield name, text


def answer_of(told: Mapping[str, str]) -> str:
    """Return an answer that tells facts by their names. Equal facts are told once."""
    names = dict[str, str]()
    for name, text in told.items():
        names.setdefault(text, name)
    return "; ".join(f"{name}: {text.partition('|')[0]}" for text, name in names.items())
