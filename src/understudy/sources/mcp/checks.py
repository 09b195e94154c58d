"""Checks: the reward of an MCP task.

    answer   facts that the agent's last text must state: words, a number, a pattern
    state    the expected result of a tool at the end: given, or the result after the gold calls
    calls    which tools must, may and must not be called

A task may also have `outputs`, facts that the agent must tell by the rules of `envs.rewards`.

The strict reward is the product of the parts. The shaped reward also pays a failed episode for each check that passes,
once and in total less than a success. Repeated calls, and calls that no check requires, never pay.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from understudy.core.errors import TaskError
from understudy.core.records import Record
from understudy.core.tasks import Score
from understudy.envs.rewards import MAX_EXTRA_NUMBERS, affirms_fact, extract_numbers, product_score
from understudy.sources.mcp.config import MCPCall, RewardConfig
from understudy.sources.mcp.tool_result import ToolResult
from understudy.sources.mcp.toolkit import ServerCall

_ALTERNATIVES = re.compile(r"-?\$?\d[\d,.]*(?:,? or (?:about )?-?\$?\d[\d,.]*)+")
"""Numbers of which the agent says that one is right, such as "7 or 8"."""


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as e:
        raise ValueError(f"invalid regular expression: {e}") from e
    return value


class AnswerCheck(Record):
    """A fact that the agent's last text must state. Set exactly one of `text`, `number` and `regex`."""

    text: str = ""
    """Whole words, ignoring case. "cancel|cancellation" accepts either."""
    number: float | None = None
    """A number, compared by value. The text may hold at most two other numbers."""
    tolerance: float = Field(default=0.0, ge=0)
    regex: str = ""
    """A regular expression that must be found in the text. Flags such as (?i) are allowed."""
    max_characters: int = Field(default=600, ge=1)
    """Longest text in characters. It prevents success by repeating all tool output."""

    _checked = field_validator("regex")(_pattern)

    @model_validator(mode="after")
    def _validate_one_fact(self) -> Self:
        if (bool(self.text) + bool(self.regex) + (self.number is not None)) != 1:
            raise ValueError("check.answer needs exactly one of text, number and regex")
        return self

    def passes(self, answer: str) -> bool:
        """Return whether the text states the fact, and does not deny it.

        A record states no fact: JSON, or several numbers without a word.
        """
        if len(answer) > self.max_characters:
            return False
        if self.regex:
            return re.search(self.regex, answer) is not None
        if _is_record(answer):
            return False
        if self.number is None:
            return affirms_fact(self.text, answer)
        found = extract_numbers(_ALTERNATIVES.sub(" ", answer))
        right = [n for n in found if abs(n - self.number) <= self.tolerance]
        few = len(extract_numbers(answer)) <= 1 + MAX_EXTRA_NUMBERS
        return few and any(affirms_fact(f"{Decimal(repr(n)):f}", answer) for n in right)


class StateCheck(MCPCall):
    """A tool that is called at the end, and its expected result. The default is its result after the gold calls."""

    equals: Any = None
    """The structured result, else the text parsed as JSON, else the text."""
    contains: str = ""
    not_contains: str = ""
    regex: str = ""

    _checked = field_validator("regex")(_pattern)

    @property
    def expects_gold_result(self) -> bool:
        """Return whether the expected result comes from the gold calls."""
        return not ("equals" in self.model_fields_set or self.contains or self.not_contains or self.regex)

    def passes(self, shown: ToolResult, gold: ToolResult | None) -> bool:
        """Return whether the tool's result is the expected one. A truncated result never is.

        Raise `TaskError` if the result after the gold calls is truncated, because then no agent could succeed.
        """
        if gold is not None and gold.truncated:
            raise TaskError(f"{self.tool} returns more than max_result_characters after gold; check a shorter result")
        if shown.truncated:
            return False
        if gold is not None:
            return shown == gold
        if "equals" in self.model_fields_set and shown.value != self.equals:
            return False
        if self.not_contains and self.not_contains in shown.text:
            return False
        return self.contains in shown.text and re.search(self.regex, shown.text) is not None


class CallPattern(Record):
    """A call by its tool and some of its arguments. Other arguments may have any value."""

    tool: str
    """`tool`, `server.tool` or an alias; * matches anything."""
    arguments: dict[str, Any] = {}
    """Values that must be equal."""
    argument_patterns: dict[str, str] = {}
    """Regular expressions that must be found in the value (in its JSON if it is not a string)."""

    @field_validator("argument_patterns")
    @classmethod
    def _checked(cls, value: dict[str, str]) -> dict[str, str]:
        for pattern in value.values():
            _pattern(pattern)
        return value

    def matches(self, made: ServerCall) -> bool:
        """Return whether the call matches."""
        if not any(fnmatchcase(name, self.tool) for name in made.names):
            return False
        if any(key not in made.arguments for key in (*self.arguments, *self.argument_patterns)):
            return False
        return all(made.arguments[key] == value for key, value in self.arguments.items()) and all(
            re.search(pattern, _text(made.arguments[key])) for key, pattern in self.argument_patterns.items()
        )


class CallsCheck(Record):
    """Which tools must, may and must not be called.

    A required call must succeed. A call that is not allowed fails the check even if the call itself fails.
    """

    required: tuple[CallPattern, ...] = ()
    """Patterns of calls that must be made. A call counts for at most one of them."""
    ordered: bool = False
    """Whether required calls must be made in this order. Other calls may come between them."""
    allowed: tuple[CallPattern, ...] | None = None
    """If given, every call must match one of these or of `required`."""
    forbidden: tuple[CallPattern, ...] = ()

    def count_required_made(self, calls: Sequence[ServerCall]) -> int:
        """Return how many of the required calls were made."""
        good = [call for call in calls if not call.failed]
        return _in_order(self.required, good) if self.ordered else _matched(self.required, good)

    def only_allowed_calls(self, calls: Sequence[ServerCall]) -> bool:
        """Return whether only allowed calls were made."""
        free = None if self.allowed is None else (*self.required, *self.allowed)
        return not any(pattern.matches(call) for pattern in self.forbidden for call in calls) and (
            free is None or all(any(pattern.matches(call) for pattern in free) for call in calls)
        )


class TaskCheck(Record):
    """All checks of a task."""

    answer: tuple[AnswerCheck, ...] = ()
    """One fact, or a list of facts that must all be stated."""
    state: tuple[StateCheck, ...] = ()
    calls: CallsCheck | None = None

    @field_validator("answer", "state", mode="before")
    @classmethod
    def _single_to_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, dict) else value

    @property
    def requires_nothing(self) -> bool:
        """Whether an agent that does nothing passes the checks."""
        return not self.answer and not self.state and (self.calls is None or not self.calls.required)


@dataclass(frozen=True, slots=True)
class EpisodeEvidence:
    """The end of an episode, as the checks see it."""

    answer: str
    """The agent's last text."""
    ended: bool
    """Whether the agent ended the episode, rather than a limit."""
    calls: Sequence[ServerCall]
    states: Sequence[bool] = ()
    """Whether each state check passes."""
    states_before: Sequence[bool] = ()
    """Whether each state check passed before the agent's first turn, if that was checked."""
    told: Sequence[bool] = ()
    """Whether the agent told each output of the task."""


def score_checks(check: TaskCheck, evidence: EpisodeEvidence, reward: RewardConfig) -> Score:
    """Return the reward and its parts."""
    parts = {"within_limits": float(evidence.ended)}
    if check.answer:
        parts["answer_match"] = float(all(each.passes(evidence.answer) for each in check.answer))
    if check.state:
        parts["state_match"] = float(all(evidence.states))
    if check.calls:
        met = check.calls.count_required_made(evidence.calls) == len(check.calls.required)
        parts["tool_calls_match"] = float(met and check.calls.only_allowed_calls(evidence.calls))
    if evidence.told:
        parts["facts_told"] = float(all(evidence.told))
    strict = product_score(parts)
    if strict.reward or reward.kind == "strict":
        return strict
    return strict.replace(reward=reward.max_partial_reward * checks_progress(check, evidence))


def checks_progress(check: TaskCheck, evidence: EpisodeEvidence) -> float:
    """Return the share of checks that pass now and did not pass before, in [0, 1]; 0 after a forbidden call.

    A call that repeats an earlier one exactly counts once.
    """
    if check.calls and not check.calls.only_allowed_calls(evidence.calls):
        return 0.0
    changed = [now and not then for now, then in zip(evidence.states, evidence.states_before, strict=True)]
    answered = [each.passes(evidence.answer) for each in check.answer]
    calls = check.calls or CallsCheck()
    met, of = calls.count_required_made(_once(evidence.calls)), len(calls.required)
    passed = sum(answered) + sum(changed) + sum(evidence.told) + met
    return passed / (len(answered) + len(changed) + len(evidence.told) + of)


def _once(calls: Iterable[ServerCall]) -> list[ServerCall]:
    """Return the calls without repetitions."""
    first: dict[str, ServerCall] = {}
    for call in calls:
        first.setdefault(_text([call.server, call.tool, call.arguments, call.failed]), call)
    return list(first.values())


def _in_order(patterns: Sequence[CallPattern], calls: Iterable[ServerCall]) -> int:
    """Return how many patterns are matched in order. Taking the earliest call for each is optimal."""
    met = 0
    for call in calls:
        met += met < len(patterns) and patterns[met].matches(call)
    return met


def _matched(patterns: Sequence[CallPattern], calls: Sequence[ServerCall]) -> int:
    """Return the largest number of patterns that match different calls: a maximum matching by augmenting paths."""
    owner: dict[int, int] = {}

    def place(pattern: int, tried: set[int]) -> bool:
        for number in (n for n, call in enumerate(calls) if n not in tried and patterns[pattern].matches(call)):
            tried.add(number)
            if number not in owner or place(owner[number], tried):
                owner[number] = pattern
                return True
        return False

    return sum(place(pattern, set()) for pattern in range(len(patterns)))


def _is_record(answer: str) -> bool:
    """Return whether a text is several numbers and nothing else, or has lines that are objects or lists.

    Some servers print rows as Python does: "[{'amount': 29}]".
    """
    bare = re.search(r"[^\W\d_]", answer) is None and len(extract_numbers(answer)) > 1
    return bare or any(_is_container(text.strip()) for text in (answer, *answer.splitlines()))


def _is_container(text: str) -> bool:
    return text[:1] + text[-1:] in ("{}", "[]")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
