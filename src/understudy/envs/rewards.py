"""Graders: pure functions of the final state, the gold changes and the transcript. Each returns a number in [0, 1].

Graders read the live final state; they replay no calls. The reward is the product of the strict parts. The rules for
`facts_told` give no reward for guesses and for reading out complete records:

    word       a tool must have shown it before the agent says it, and the text has at most `MAX_DIGIT_RUNS` different
               runs of digits;
    number     the text has at most `MAX_EXTRA_NUMBERS` numbers beyond the numeric outputs of the task.

`calls_match` compares calls instead of states. It is for tasks without a database.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, SupportsFloat

from understudy.core.errors import RolloutError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Score
from understudy.envs.state import State

MAX_EXTRA_NUMBERS = 2
"""Numbers that a text may contain beyond the task's outputs. Two allow a sum to be shown with both of its terms."""

MAX_DIGIT_RUNS = 12
"""Maximum number of different runs of digits in a text that states a word. Two dates with times have ten."""

_DIGITS = re.compile(r"\d+")
_DATE_OR_TIME = re.compile(r"(?<![\w.-])\d{4}-\d\d-\d\d(?![\w-])|(?<![\w.:])\d{1,2}:\d\d(?!\w|:\d)")
# A number is not part of a word or an id: "W1042", "i482" and "card_41" contain none.
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def state_match(state: State, gold: Mapping[str, Any]) -> float:
    """Return 1.0 if the changes of the state equal the gold changes, else 0.0."""
    return float(state.changes() == gold)


def facts_told(transcript: Sequence[Message], outputs: Sequence[str]) -> float:
    """Return 1.0 if the agent told the user every output, else 0.0. The module docstring has the rules."""
    return float(not missing_facts(transcript, outputs))


def missing_facts(
    transcript: Sequence[Message], outputs: Sequence[str], shown_numbers: Collection[str] = ()
) -> list[str]:
    """Return the outputs that the agent did not tell the user.

    A number in `shown_numbers` is only told if a tool had shown it before, as words must be.
    """
    limit = sum(is_number(output) for output in outputs) + MAX_EXTRA_NUMBERS
    texts = list(_user_texts(transcript)) if outputs else []
    return [
        output
        for output in outputs
        if not any(_is_told(text, shown, output, limit, output in shown_numbers) for text, shown in texts)
    ]


def calls_match(made: Iterable[ToolCall], gold: Iterable[ToolCall]) -> float:
    """Return 1.0 if the calls made are the gold calls, each as often and in any order, else 0.0."""
    return float(count_calls(made) == count_calls(gold))


def calls_progress(made: Iterable[ToolCall], gold: Iterable[ToolCall]) -> tuple[int, int]:
    """Return how many gold calls were made, and the number of calls that are gold, made or both."""
    actual, expected = count_calls(made), count_calls(gold)
    return (actual & expected).total(), (actual | expected).total()


def count_calls(calls: Iterable[ToolCall]) -> Counter[str]:
    """Return how often each call occurs. Equal calls have the same key, see `call_key`."""
    return Counter(map(call_key, calls))


def call_key(call: ToolCall) -> str:
    """Return a text that is the same for equal calls.

    Calls are equal if their names are, and their arguments. Numbers are compared by value, texts ignore case and the
    amount of white space, an argument that is null counts as left out, and the order of a list matters.
    """
    return json.dumps([call.name, _normalized(call.arguments)], sort_keys=True)


def task_progress(
    state: State, gold: Mapping[str, Any], transcript: Sequence[Message], outputs: Sequence[str]
) -> float:
    """Return the share of gold changes and outputs that the agent has made or told, in [0, 1].

    Every change that gold does not make adds one to the denominator, so superfluous changes cannot raise the progress.
    It is 1.0 only if no gold change and no output is missing and there is no other change. It is 0.0 if there are no
    changes and no outputs.
    """
    actual = flatten_changes(state.changes())
    expected = flatten_changes(gold)
    matching = sum(key in actual and actual[key] == row for key, row in expected.items())
    total = len(actual.keys() | expected.keys()) + len(outputs)
    num_told = len(outputs) - len(missing_facts(transcript, outputs))
    return (matching + num_told) / total if total else 0.0


def flatten_changes(changes: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Return the changes of a state as one flat mapping: rows by `(table, id)`, values by `(name,)`."""
    rows = {
        (name, key): row for name, part in changes.items() if isinstance(part, Mapping) for key, row in part.items()
    }
    return rows | {(name,): value for name, value in changes.items() if not isinstance(value, Mapping)}


def _user_texts(transcript: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield every text sent to the user, with the output of all earlier tool calls."""
    shown = ""
    for message in transcript:
        if message.role == "tool":
            shown += f"{message.content}\n"
        elif message.role == "assistant" and message.content and not message.tool_calls:
            yield message.content, shown


def _is_told(text: str, shown: str, output: str, limit: int, must_be_shown: bool) -> bool:
    if not states_fact(output, text):
        return False
    if is_number(output):
        return len(extract_numbers(text)) <= limit and (not must_be_shown or states_fact(output, shown))
    return states_fact(output, shown) and len(set(_DIGITS.findall(text))) <= MAX_DIGIT_RUNS


def states_fact(fact: str | float, text: str) -> bool:
    """Return whether a text states a fact.

    A number matches by value: "$1,200.50" states 1200.5, and "1200.5". Words match as complete words, ignoring case,
    and may have alternatives: "cancel|cancellation".
    """
    if not isinstance(fact, str):
        return fact in extract_numbers(text)
    if is_number(fact):
        return _value(fact) in extract_numbers(text)
    return _words(fact).search(text.casefold()) is not None


def extract_numbers(text: str) -> set[float]:
    """Return the distinct numbers of a text by value. Ids, times and dates like 2026-03-05 are ignored."""
    return {_value(number) for number in _NUMBER.findall(_DATE_OR_TIME.sub(" ", text))}


def to_score(graded: object) -> Score:
    """Return what a grader returned as a `Score`: a score unchanged, a number as the reward of one.

    Raise RolloutError with fault "grader" if the reward is not a number from 0 to 1.
    """
    if isinstance(graded, Score):
        to_reward(graded.reward)
        return graded
    return Score(reward=to_reward(graded))


def to_reward(value: object) -> float:
    """Return a reward as a float. Raise RolloutError with fault "grader" if it is not a number from 0 to 1."""
    reward = float(value) if isinstance(value, SupportsFloat) else math.nan
    if not 0.0 <= reward <= 1.0:
        raise RolloutError(f"the reward is {value!r:.100}; a reward must be a number from 0 to 1", "grader")
    return reward


def product_score(parts: Mapping[str, float], extra_parts: Mapping[str, float] | None = None) -> Score:
    """Return a score whose reward is the product of `parts`. `extra_parts` are reported but do not affect it."""
    return Score(reward=math.prod(parts.values()), parts={**parts, **(extra_parts or {})})


def is_number(fact: str) -> bool:
    """Return whether a fact is a number, such as "1,200.50"."""
    return _NUMBER.fullmatch(fact) is not None


def _normalized(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _normalized(inner) for key, inner in value.items() if inner is not None}
    return [_normalized(inner) for inner in value] if isinstance(value, list | tuple) else value


def _value(number: str) -> float:
    return float(number.replace(",", ""))


@lru_cache(maxsize=4096)
def _words(fact: str) -> re.Pattern[str]:
    alternatives = "|".join(re.escape(word) for word in fact.casefold().split("|"))
    return re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)")
