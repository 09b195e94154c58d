"""Checks: what decides the reward of an MCP task.

    answer   what the agent's last text has to tell: words, a number, a pattern
    state    what a tool shows at the end: as given, or as the gold calls leave it
    calls    which tools were called: some must be, others may, some must not

The strict reward is the product of the parts. The shaped one pays a failed episode for checks that hold, each once and
all together less than success: a call that is repeated, or that no check asks for, never pays.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from understudy.errors import TaskError
from understudy.mcp.reply import Reply
from understudy.mcp.settings import Call, RewardConfig
from understudy.mcp.toolkit import Made
from understudy.records import Record
from understudy.rewards import SPARE_NUMBERS, numbers, product, said
from understudy.tasks import Score


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as e:
        raise ValueError(f"no regular expression: {e}") from e
    return value


class AnswerCheck(Record):
    """Something that the agent's last text has to tell: one of `text`, `number` and `regex`."""

    text: str = ""
    """Whole words, in any case; "cancel|cancellation" stands for either."""
    number: float | None = None
    """By value, in a text with no more than two other numbers."""
    tolerance: float = Field(default=0.0, ge=0)
    regex: str = ""
    """Found in the text; (?i) and the like are allowed."""
    longest: int = Field(default=600, ge=1)
    """Characters of the text at most, so that reading out all that a tool has shown is no answer."""

    _checked = field_validator("regex")(_pattern)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (bool(self.text) + bool(self.regex) + (self.number is not None)) != 1:
            raise ValueError("an answer is checked by one of text, number and regex")
        return self

    def holds(self, answer: str) -> bool:
        """Whether the text tells it."""
        if len(answer) > self.longest:
            return False
        if self.number is not None:
            found = numbers(answer)
            return len(found) <= 1 + SPARE_NUMBERS and any(abs(n - self.number) <= self.tolerance for n in found)
        return said(self.text, answer) if self.text else re.search(self.regex, answer) is not None


class StateCheck(Call):
    """A tool that is called at the end, and what it has to show.

    If nothing is given, that is what it shows after the gold calls.
    """

    equals: Any = None
    """The structured result, or the text as JSON, or the text."""
    contains: str = ""
    lacks: str = ""
    regex: str = ""

    _checked = field_validator("regex")(_pattern)

    @property
    def by_gold(self) -> bool:
        """Whether the gold calls say what it has to show."""
        return not ("equals" in self.model_fields_set or self.contains or self.lacks or self.regex)

    def holds(self, shown: Reply, gold: Reply | None) -> bool:
        """Whether the tool shows what it should; a result that is cut off does not.

        Where gold's own is cut off, no agent could ever show it: that is a `TaskError`.
        """
        if gold is not None and gold.cut:
            raise TaskError(f"{self.tool} shows more than result_characters after gold; let the check read less")
        if shown.cut:
            return False
        if gold is not None:
            return shown == gold
        if "equals" in self.model_fields_set and shown.value != self.equals:
            return False
        if self.lacks and self.lacks in shown.text:
            return False
        return self.contains in shown.text and re.search(self.regex, shown.text) is not None


class CallPattern(Record):
    """A call by its tool and some of its arguments; the others may be anything."""

    tool: str
    """`tool` or `server.tool`, with * for anything."""
    arguments: dict[str, Any] = {}
    """Values that have to be equal."""
    matching: dict[str, str] = {}
    """Regular expressions that have to be found in the value (as JSON where it is no text)."""

    @field_validator("matching")
    @classmethod
    def _checked(cls, value: dict[str, str]) -> dict[str, str]:
        for pattern in value.values():
            _pattern(pattern)
        return value

    def meets(self, made: Made) -> bool:
        """Whether this is such a call."""
        if not (fnmatchcase(made.tool, self.tool) or fnmatchcase(f"{made.server}.{made.tool}", self.tool)):
            return False
        if any(key not in made.arguments for key in (*self.arguments, *self.matching)):
            return False
        return all(made.arguments[key] == value for key, value in self.arguments.items()) and all(
            re.search(pattern, _text(made.arguments[key])) for key, pattern in self.matching.items()
        )


class CallsCheck(Record):
    """Which tools are called. Those that must be have to succeed; for others, trying counts."""

    must: tuple[CallPattern, ...] = ()
    """Each is met by a call of its own."""
    ordered: bool = False
    """Whether they have to come in this order, with whatever between."""
    may: tuple[CallPattern, ...] | None = None
    """If given, every call has to be one of these or of `must`."""
    must_not: tuple[CallPattern, ...] = ()

    def met(self, calls: Sequence[Made]) -> int:
        """How many of the calls that must be made are made."""
        good = [call for call in calls if not call.refused]
        return _in_order(self.must, good) if self.ordered else _matched(self.must, good)

    def clean(self, calls: Sequence[Made]) -> bool:
        """Whether there is no call that must not or may not be made."""
        free = None if self.may is None else (*self.must, *self.may)
        return not any(pattern.meets(call) for pattern in self.must_not for call in calls) and (
            free is None or all(any(pattern.meets(call) for pattern in free) for call in calls)
        )


class Check(Record):
    """All that a task is judged by."""

    answer: tuple[AnswerCheck, ...] = ()
    """One, or a list of those that all have to hold."""
    state: tuple[StateCheck, ...] = ()
    calls: CallsCheck | None = None

    @field_validator("answer", "state", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return (value,) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.answer and not self.state and (self.calls is None or not self.calls.must):
            raise ValueError("nothing is checked that doing nothing would fail: give answer, state or calls.must")
        return self


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an episode has left behind."""

    answer: str
    """The text that ended it."""
    ended: bool
    """Whether the agent ended it, and no limit."""
    calls: Sequence[Made]
    states: Sequence[bool] = ()
    """Whether each check of the state holds."""
    before: Sequence[bool] = ()
    """The same before the agent's first turn, where it was asked."""


def score(check: Check, evidence: Evidence, reward: RewardConfig) -> Score:
    """The reward, and the parts that it is made of."""
    parts = {"ended": float(evidence.ended)}
    if check.answer:
        parts["answer"] = float(all(each.holds(evidence.answer) for each in check.answer))
    if check.state:
        parts["state"] = float(all(evidence.states))
    if check.calls:
        met = check.calls.met(evidence.calls) == len(check.calls.must)
        parts["calls"] = float(met and check.calls.clean(evidence.calls))
    strict = product(parts)
    if strict.reward or reward.kind == "strict":
        return strict
    return strict.replace(reward=reward.share * progress(check, evidence))


def progress(check: Check, evidence: Evidence) -> float:
    """The part of the checks that holds and did not hold before, in [0, 1]; 0 after a call that was not allowed.

    A call that repeats an earlier one, word for word, is no further evidence.
    """
    if check.calls and not check.calls.clean(evidence.calls):
        return 0.0
    changed = [now and not then for now, then in zip(evidence.states, evidence.before, strict=True)]
    answered = [each.holds(evidence.answer) for each in check.answer]
    calls = check.calls or CallsCheck()
    met, of = calls.met(_once(evidence.calls)), len(calls.must)
    return (sum(answered) + sum(changed) + met) / (len(answered) + len(changed) + of)


def _once(calls: Iterable[Made]) -> list[Made]:
    """Each call the first time that it is made."""
    first: dict[str, Made] = {}
    for call in calls:
        first.setdefault(_text([call.server, call.tool, call.arguments, call.refused]), call)
    return list(first.values())


def _in_order(patterns: Sequence[CallPattern], calls: Iterable[Made]) -> int:
    """How many patterns are met one after the other; the earliest call for each is the best."""
    met = 0
    for call in calls:
        met += met < len(patterns) and patterns[met].meets(call)
    return met


def _matched(patterns: Sequence[CallPattern], calls: Sequence[Made]) -> int:
    """How many patterns can be met by a call of their own: a largest matching, by augmenting paths."""
    owner: dict[int, int] = {}

    def place(pattern: int, tried: set[int]) -> bool:
        for number in (n for n, call in enumerate(calls) if n not in tried and patterns[pattern].meets(call)):
            tried.add(number)
            if number not in owner or place(owner[number], tried):
                owner[number] = pattern
                return True
        return False

    return sum(place(pattern, set()) for pattern in range(len(patterns)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
