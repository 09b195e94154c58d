"""Shown values: whether an agent could know the arguments of a gold call before it makes the call.

A value is shown if it is in a text that the agent has read before: the policy, the user's texts, the tools' schemas, or
the result of an earlier call. Case and the marks between letters and digits do not matter ("W-91" shows W91), numbers
are compared by value, and dates in any common form. No result shows what the arguments of its own call state, and the
result of a call with an unknown id shows nothing. A value is also known if it follows from what is shown:

    number     it is whole and at most `MAX_FREE_TERM` (also in a text of several words), or a number of the things that
               a result lists; it is the sum or mean of a column, the sum or difference of two or three shown numbers,
               the product or quotient of two, or a multiple, a part or another unit of one (`UNITS`)
    date       it is at most `MAX_DATE_OFFSET` days from a shown date. Times of day are known
    text       each of its words is shown, or is two shown words in one
    list       each of its values is known; the order is not examined

Booleans and null are known. So is free text: a text of several words in an argument such as `reason` or `message`, and
any text of more than `MAX_WORDS` words or `MAX_LENGTH` characters. Words without digits are language, which an agent
can choose, unless they are an email address or the argument's name says that it is an id (`ID_NAMES`).
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic_core import from_json

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Scenario, Task
from understudy.envs.dates import normalize_dates
from understudy.envs.rewards import MAX_FREE_TERM, extract_numbers, is_number
from understudy.envs.task_source import TaskSource

MAX_DATE_OFFSET = 400
MAX_WORDS = 8
MAX_LENGTH = 80
MAX_TERMS = 150
"""Number of shown numbers up to which more than sums and differences of two is tried."""
MAX_NUMBER = 10**15
"""Largest number that is computed with."""
MAX_QUANTITY_DIGITS = 5
"""Digits before the point up to which a text of digits is a quantity, and not an id."""
UNITS = (100.0, 1000.0, 60.0, 3600.0, 24.0, 7.0, 12.0, 30.0, 52.0, 365.0)
"""Factors between units: percent, minutes, days."""
_FACTORS = (*UNITS, *map(float, range(2, MAX_FREE_TERM + 1)))
# fmt: off
ID_NAMES = frozenset(("email", "id", "identifier", "isbn", "serial", "sku", "username", "uuid"))
FREE_TEXT_NAMES = frozenset((
    "answer", "body", "caption", "comment", "content", "description", "detail", "explanation", "instruction", "message",
    "note", "observation", "prompt", "query", "question", "reason", "subject", "summary", "text", "thought", "title",
))
CODE_NAMES = frozenset(("command", "expression", "formula", "script", "sql"))
# fmt: on
_RELATIVE_DAYS = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|week|month|(?:mon|tues|wednes|thurs|fri|satur|sun)day)", re.IGNORECASE
)
# fmt: off
_NUMBER_WORDS = {
    "half": 0.5, "quarter": 0.25, "dozen": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60,
    "seventy": 70, "eighty": 80, "ninety": 90, "hundred": 100, "thousand": 1000, "million": 10**6,
}
# fmt: on
_WORD = re.compile(r"[^\W_]+")
_NAME_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_DIGIT = re.compile(r"\d")
_QUANTITY = re.compile(r"[^\w\s]?(-?\d[\d,]*(?:\.\d+)?)\s?(?:%|[a-z]{1,3})?")
_ISO_DATE = re.compile(r"(?<!\d)(\d{4}-\d\d-\d\d)(?!\d)")
_TIME = re.compile(r"(?<!\d)t?\d{1,2}:\d\d(?::\d\d)?(?:\.\d+)?(?:z|[+-]\d\d:?\d\d)?(?!\d)")


OUTPUT = "output"


class UnshownValue(NamedTuple):
    """A value of a gold call that nothing shows before the call, or one that the agent must tell."""

    tool: str
    """The tool of the call; empty for a value to tell."""
    argument: str
    """The argument; of an object in it, the innermost key. `OUTPUT` for a value to tell."""
    value: str

    @property
    def is_id(self) -> bool:
        """Whether the value is one word and no quantity or date, so that nobody can find it by trying."""
        text = self.value.casefold()
        quantity = _QUANTITY.fullmatch(text) and len(_DIGIT.findall(text)) <= MAX_QUANTITY_DIGITS
        return not (" " in text or quantity or _ISO_DATE.search(text))

    def __str__(self) -> str:
        return f"{self.argument} {self.value}"


class ShownValues:
    """The values that an agent has read so far."""

    def __init__(self, texts: Iterable[str] = (), database: str = "") -> None:
        """`database` is a text whose words can be looked up; numbers can then be computed from what it holds."""
        self._texts: list[tuple[str, frozenset[str]]] = []
        """Each text, with the values that it only repeats."""
        self._words = set(_database_words(database))
        self._numbers = set[float]()
        self._database, self._most_listed = database, 0
        for text in texts:
            self.add(text)

    def add(self, text: str, repeated: Iterable[str] = ()) -> None:
        """Add a text. It does not show the values that it only repeats."""
        hidden = frozenset(value.casefold() for value in repeated)
        self._texts.append((text, hidden))
        words = _words(text)
        self._words |= words.difference(*map(_words, hidden))
        numbers = extract_numbers(text).difference(*map(extract_numbers, hidden))
        self._numbers |= {number for number in numbers if abs(number) < MAX_NUMBER}
        self._numbers |= {float(_NUMBER_WORDS[word]) for word in words & _NUMBER_WORDS.keys()}
        if text.lstrip()[:1] in ("[", "{"):
            for listed in _lists(text):
                self._most_listed = max(self._most_listed, len(listed))
                self._numbers |= set(_totals(listed))

    def find_unshown(self, call: ToolCall) -> UnshownValue | None:
        """Return the first unknown value of a call, or None."""
        for argument, value in _leaves(call.arguments):
            if not self.shows(value, argument):
                return UnshownValue(call.name, argument, str(value))
        return None

    def shows(self, value: Any, argument: str = "") -> bool:
        """Return whether a text or number is known as the value of an argument. Any other value is."""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return True
        is_id = _names(argument, ID_NAMES)
        if not isinstance(value, str):
            return self._shows_number(float(value), is_id) if abs(value) < MAX_NUMBER else str(value) in self._words
        text = value.casefold().strip()
        counted = is_id or "@" in text
        if is_free_text(value, argument) or not (counted or _DIGIT.search(text)):
            return True
        if quantity := _QUANTITY.fullmatch(text):
            digits = quantity[1].replace(",", "")
            is_small = len(digits.partition(".")[0]) <= MAX_QUANTITY_DIGITS and not re.match(r"0\d", digits)
            if float(digits) < MAX_NUMBER and self._shows_number(float(digits), is_id or not is_small):
                return True
        normal = normalize_dates(text)
        days, rest = _ISO_DATE.findall(normal), _TIME.sub(" ", _ISO_DATE.sub(" ", normal))
        words = [word for word in _words(text if is_id else rest) if counted or _DIGIT.search(word)]
        if " " in text:
            words = [word for word in words if not (word.isdecimal() and len(word) < 3 and int(word) <= MAX_FREE_TERM)]
        return (all(map(self._shows_word, words)) and all(map(self._shows_day, days))) or self._shows_joined(text)

    def _shows_joined(self, value: str) -> bool:
        """Return whether a text shows a value with other marks between its letters and digits."""
        plain = "".join(_WORD.findall(value))
        return any(_has_run(_join(text), plain) for text, hidden in self._texts if value not in hidden)

    def _shows_word(self, word: str) -> bool:
        cuts = range(2, min(len(word), MAX_LENGTH) - 1)
        return word in self._words or any(word[:cut] in self._words and word[cut:] in self._words for cut in cuts)

    def _shows_day(self, day: str) -> bool:
        value, shown = _to_date(day), self._dates()
        if value is None:
            return self._shows_word(day)
        if day in self._database:
            return True
        near = any(abs((value - other).days) <= MAX_DATE_OFFSET for other in shown)
        return near or (not shown and any(_RELATIVE_DAYS.search(text) for text, _ in self._texts))

    def _dates(self) -> list[date]:
        found = (day for text, hidden in self._texts for day in _ISO_DATE.findall(_normal(text)) if day not in hidden)
        return [day for day in map(_to_date, found) if day]

    def _shows_number(self, number: float, is_id: bool) -> bool:
        known = self._numbers
        if is_id:
            return number in known or (number.is_integer() and str(int(number)) in self._words)
        if number in known or self._database:
            return True
        if number.is_integer() and abs(number) <= max(MAX_FREE_TERM, self._most_listed):
            return True
        if len(known) > MAX_TERMS:
            cents = {round(term, 2) for term in known}
            others = ((number - term, number + term, term - number) for term in known)
            return any(round(other, 2) in cents for three in others for other in three)
        return any(_is_near(number, result) for result in _results(known)) or _is_sum_of_three(number, known)


def find_unshown_value(
    source: TaskSource, task: Task, messages: Sequence[Message], required: Sequence[ToolCall]
) -> UnshownValue | None:
    """Return the first value of a gold episode that an agent cannot know, or None.

    It is one of the `required` calls, or a number that the agent must tell.
    """
    numbers = [output for output in task.outputs if is_number(output)]
    if not required and not numbers:
        return None
    before = source.task_policy(task), schema_text(source.tool_specs), *user_texts(task.scenario)
    shown = ShownValues(before, source.lookup_text(task))
    calls, left = dict(pair_results(messages)), [(call.name, call.arguments) for call in required]
    for index, message in enumerate(messages):
        if message.role in ("system", "user"):
            shown.add(message.content)
        if call := calls.get(index):
            unshown, made = shown.find_unshown(call), (call.name, call.arguments)
            if made in left:
                left.remove(made)
                if unshown:
                    return unshown
            if not (unshown and unshown.is_id):
                shown.add(message.content, map(str, leaf_values(call.arguments)))
    untold = (each for each in numbers if not any(shown.shows(part) for part in each.split("|")))
    return next((UnshownValue("", OUTPUT, each) for each in untold), None)


def pair_results(messages: Sequence[Message]) -> Iterator[tuple[int, ToolCall]]:
    """Yield the index of each tool message with its call. Results follow their calls in order."""
    for index, message in enumerate(messages):
        results = (i for i in range(index + 1, len(messages)) if messages[i].role == "tool")
        yield from zip(results, message.tool_calls, strict=False)


def user_texts(scenario: Scenario) -> Iterator[str]:
    """Yield what a user may say."""
    yield from (scenario.instructions, scenario.opening)
    facts = itertools.chain(scenario.facts, *(goal.facts for goal in scenario.goals))
    yield from (fact.text for fact in facts)
    yield from (goal.text for goal in scenario.goals)


def schema_text(specs: Iterable[ToolSpec]) -> str:
    """Return the descriptions of tools, and all that their schemas state, as one text."""
    texts = ((spec.description, *map(str, leaf_values(spec.parameters))) for spec in specs)
    return "\n".join(itertools.chain.from_iterable(texts))


def leaf_values(value: Any) -> Iterator[str | int | float]:
    """Yield the texts and numbers in a JSON value, without blank texts."""
    for _, leaf in _leaves(value):
        if not isinstance(leaf, bool) and leaf is not None and str(leaf).strip():
            yield leaf


def is_free_text(value: str, argument: str) -> bool:
    """Return whether a text is one that an agent words itself, by its length and the name of its argument."""
    num_words = len(value.split())
    is_long = num_words > MAX_WORDS or (num_words > 1 and len(value) > MAX_LENGTH)
    return is_long or _names(argument, CODE_NAMES) or (num_words > 1 and _names(argument, FREE_TEXT_NAMES))


def _leaves(value: Any, argument: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, argument)
    else:
        yield argument, value


def _names(argument: str, words: frozenset[str]) -> bool:
    """Return whether the last word of an argument's name, in the singular, is one of `words`."""
    last = _NAME_WORD.findall(argument)[-1:]
    return bool(last) and not {last[0].lower(), last[0].lower().removesuffix("s")}.isdisjoint(words)


@lru_cache(maxsize=256)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))


@lru_cache(maxsize=8)
def _database_words(text: str) -> frozenset[str]:
    return _words.__wrapped__(text)


@lru_cache(maxsize=256)
def _normal(text: str) -> str:
    return normalize_dates(text.casefold())


class _JoinedWords(NamedTuple):
    """The words of a text without anything between them."""

    text: str
    starts: frozenset[int]
    """Where words start, and the end of the text."""


@lru_cache(maxsize=256)
def _join(text: str) -> _JoinedWords:
    words = _WORD.findall(text.casefold())
    return _JoinedWords("".join(words), frozenset(itertools.accumulate(map(len, words), initial=0)))


def _has_run(joined: _JoinedWords, plain: str) -> bool:
    """Return whether some words in a row, joined, are `plain`."""
    start = joined.text.find(plain) if plain else -1
    while start >= 0:
        if start in joined.starts and start + len(plain) in joined.starts:
            return True
        start = joined.text.find(plain, start + 1)
    return False


def _to_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _lists(text: str) -> Iterator[list[Any]]:
    """Yield the lists in a JSON text, at any depth."""
    try:
        values = [from_json(text)]
    except ValueError:
        return
    while values:
        value = values.pop()
        if isinstance(value, list):
            yield value
        inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        values.extend(each for each in inner if isinstance(each, list | dict))


def _totals(listed: Sequence[Any]) -> Iterator[float]:
    """Yield the sum and the mean of each column of numbers in a list of objects, and of a list of numbers."""
    rows = [row if isinstance(row, dict) else {"": row} for row in listed]
    for key in {key for row in rows for key in row}:
        column = [row[key] for row in rows if isinstance(row.get(key), int | float) and abs(row[key]) < MAX_NUMBER]
        if column:
            yield from (float(sum(column)), sum(column) / len(column))


def _results(numbers: Iterable[float]) -> Iterator[float]:
    """Yield the results of one step of arithmetic."""
    for first, second in itertools.combinations_with_replacement(sorted(numbers), 2):
        yield from (first + second, second - first, first - second, first * second, first * second / 100)
        yield from (a / b for a, b in ((first, second), (second, first)) if b)
    for number in numbers:
        yield from (number * factor for factor in _FACTORS)
        yield from (number / factor for factor in _FACTORS)


def _is_sum_of_three(number: float, terms: set[float]) -> bool:
    """Return whether a number is the sum or difference of three terms."""
    signed = [sign * term for term in terms for sign in (1, -1)]
    pairs = {round(a + b, 2) for a, b in itertools.combinations_with_replacement(signed, 2)}
    return any(round(number - term, 2) in pairs for term in signed)


def _is_near(number: float, result: float) -> bool:
    """Return whether a number is a result, or the result rounded to cents or to a whole number."""
    return abs(number - result) < 1 and any(
        abs(number - rounded) < 1e-6 for rounded in (result, round(result, 2), round(result))
    )
