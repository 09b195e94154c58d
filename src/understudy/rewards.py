"""Graders: pure functions of the final state, the gold changes and the transcript, each giving a number in [0, 1].

They read the live state that the episode left behind (nothing is replayed) and multiply into one strict reward.
A fact counts as told only where telling it took knowing it:

    a word     has to have been shown by a tool before it is said, so a guessed reason earns nothing, and must not
               stand among so many digits that records are being read out;
    a number   has to stand in a text with few others, so reading out whole records earns nothing.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from understudy.messages import Message
from understudy.state import State
from understudy.tasks import Score

SPARE_NUMBERS = 2
"""How many numbers a text may hold beyond the task's outputs and still tell one: enough to show a sum's two parts."""

MOST_DIGITS = 12
"""How many different runs of digits a text may hold and still tell a word: two dates with their times have ten."""

_DIGITS = re.compile(r"\d+")
_WHEN = re.compile(r"(?<![\w.-])\d{4}-\d\d-\d\d(?![\w-])|(?<![\w.:])\d{1,2}:\d\d(?!\w|:\d)")
# Not inside a word or an id: "W1042", "i482" and "card_41" hold no number.
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def same_state(state: State, gold: Mapping[str, Any]) -> float:
    """1.0 when the state differs from its world exactly by the gold changes."""
    return float(state.changes() == gold)


def said_outputs(transcript: Sequence[Message], outputs: Sequence[str]) -> float:
    """1.0 when the agent told the user every output; the module's docstring says what counts."""
    return float(not untold(transcript, outputs))


def untold(transcript: Sequence[Message], outputs: Sequence[str]) -> list[str]:
    """The outputs that the agent did not tell the user."""
    limit = sum(_is_number(output) for output in outputs) + SPARE_NUMBERS
    told = list(_told(transcript)) if outputs else []
    return [output for output in outputs if not any(_tells(text, shown, output, limit) for text, shown in told)]


def progress(state: State, gold: Mapping[str, Any], transcript: Sequence[Message], outputs: Sequence[str]) -> float:
    """How much of gold's changes and of the outputs there is, in [0, 1]; 1.0 where all is there and nothing else.

    A change that gold does not make counts as one more that is missing, so nothing superfluous can raise it. Doing
    nothing is 0.0.
    """
    made, wanted = rows_of(state.changes()), rows_of(gold)
    reached = sum(key in made and made[key] == row for key, row in wanted.items())
    total = len(made.keys() | wanted.keys()) + len(outputs)
    told = len(outputs) - len(untold(transcript, outputs))
    return (reached + told) / total if total else 0.0


def rows_of(changes: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """A state's changes, taken apart: rows by table and id, and values by name."""
    rows = {
        (name, key): row for name, part in changes.items() if isinstance(part, Mapping) for key, row in part.items()
    }
    return rows | {(name,): value for name, value in changes.items() if not isinstance(value, Mapping)}


def _told(transcript: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Every text that reached the user, with all that tools had shown before it."""
    shown = ""
    for message in transcript:
        if message.role == "tool":
            shown += f"{message.content}\n"
        elif message.role == "assistant" and message.content and not message.tool_calls:
            yield message.content, shown


def _tells(text: str, shown: str, output: str, limit: int) -> bool:
    if not said(output, text):
        return False
    if _is_number(output):
        return len(numbers(text)) <= limit
    return said(output, shown) and len(set(_DIGITS.findall(text))) <= MOST_DIGITS


def said(fact: str, text: str) -> bool:
    """Whether a text tells one fact: a number by value ("$1,200.50" says "1200.5"), else whole words, case-folded.

    Words may have alternatives: "cancel|cancellation".
    """
    if _is_number(fact):
        return _value(fact) in numbers(text)
    return _words(fact).search(text.casefold()) is not None


def numbers(text: str) -> set[float]:
    """The distinct numbers of a text, by value; the digits of ids, dates like 2026-03-05 and times are none."""
    return {_value(number) for number in _NUMBER.findall(_WHEN.sub(" ", text))}


def product(parts: Mapping[str, float], beside: Mapping[str, float] | None = None) -> Score:
    """The strict reward: every part has to hold. What is told `beside` it has no influence."""
    return Score(reward=math.prod(parts.values()), parts={**parts, **(beside or {})})


def _is_number(fact: str) -> bool:
    return _NUMBER.fullmatch(fact) is not None


def _value(number: str) -> float:
    return float(number.replace(",", ""))


@lru_cache(maxsize=4096)
def _words(fact: str) -> re.Pattern[str]:
    alternatives = "|".join(re.escape(word) for word in fact.casefold().split("|"))
    return re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)")
