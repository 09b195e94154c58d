"""Values in texts: ids, and the amounts, dates and addresses that an agent may state: somebody has named them."""

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import combinations

from understudy.core.messages import Message
from understudy.envs.rewards import extract_numbers
from understudy.envs.told_facts import values_of

# such as: card_41
ID = re.compile(r"(?<![\w.-])(?=[\w-]*[a-z])(?=[\w-]*\d)[a-z0-9_-]{2,}(?![\w-])", re.IGNORECASE)
"""A word with letters and digits: "w1", "card_41"."""
# such as: 713-555-0109
PHONE = re.compile(r"(?<![\w-])(?:\d{3}-)?\d{3}-\d{4}(?![\w-])")
DIGITS = re.compile(r"\d{1,100}")
"""A run of digits. A longer one is read in parts: Python makes no number of a text with more than 4300 digits."""
MAX_SMALL_NUMBER = 12
"""Largest whole number that an agent may state although nobody has: months, and numbers of persons."""
MAX_COMBINED_NUMBERS = 100
"""Largest number of known amounts whose sums and differences are tried to explain an amount."""

TOLERANCE = 0.006
"""Largest error of an amount that is computed from others: half a cent, and what floats add."""

_AMOUNT = re.compile(r"(?<![\w.])(?<!\w-)\d+\.\d\d?(?!\w|\.\d)")
_PERCENT = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3})?)(?: ?%| percent\b)")
_EXTRA = re.compile(r"\b(?:fees?|extra|costs?|surcharge|payable|deduct\w*)\b")
"""A word of an amount that the user pays besides a price. It is no sum or difference of known amounts."""
_ISO = re.compile(r"\d{4}-\d\d-\d\d")
MAX_TERMS = 12
"""Largest number of amounts of a text of which ratios are tried."""
# such as: amy@mail.com
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@\w[\w.-]{1,64}\w")
# such as: 48 maple street
_ADDRESS = re.compile(
    r"(?<![\w.-])(?P<start>\d{1,6} [a-z]+) (?:[a-z]+ ){0,2}(?:street|st|road|rd|avenue|ave|lane|drive|boulevard|blvd)\b"
)
"""The street and number of an address: "48 maple street"."""


@lru_cache(maxsize=1024)
def id_form(name: str) -> str:
    """Return a text that is the same for ids of one kind: "w9" for "w1" and "w23", "aa9aa9" for "zh9yr9"."""
    prefix = re.fullmatch(r"([a-z_]+)\d+", name)
    return f"{prefix[1]}9" if prefix else re.sub(r"[a-z]", "a", re.sub(r"\d", "9", name))


@lru_cache(maxsize=512)
def find_ids(text: str) -> Sequence[str]:
    """Return the ids and phone numbers of a text."""
    return (*ID.findall(text), *PHONE.findall(text))


class KnownValues:
    """What results, the user, the domain policy and the arguments of calls state: read once for all texts."""

    def __init__(self, transcript: Sequence[Message], gold_text: str = "") -> None:
        """The values of `gold_text` are known too: an agent may compute them."""
        self._transcript = transcript
        self._said = "\n".join((*self._read(("system", "user", "tool")), gold_text))

    def _read(self, roles: Collection[str]) -> Iterator[str]:
        """Yield the messages with these roles, and the arguments of calls."""
        for message in self._transcript:
            if message.role in roles:
                yield message.content
            yield from (str(list(call.arguments.values())) for call in message.tool_calls)

    def find_unknown(self, text: str) -> str:
        """Return an email, a phone number, an id or an address in a text that nobody has named, or "".

        An id may be one of its kind: others of its form must be known.
        """
        unknown = sorted(name for name in set(ID.findall(text)) if name.casefold() not in self._folded)
        if unknown and (found := next((name for name in unknown if id_form(name.casefold()) in self._forms), "")):
            return found
        for pattern in (_EMAIL, PHONE):
            if found := next((name for name in pattern.findall(text) if name.casefold() not in self._folded), ""):
                return str(found)
        addresses = (str(match[0]) for match in _ADDRESS.finditer(text) if match["start"] not in self._folded)
        return next(addresses, "")

    def find_unknown_date(self, text: str) -> str:
        """Return a date in a text that nobody has named in any form, or ""."""
        dates = values_of(text).dates
        return min(dates - self._iso_dates and dates - values_of(self._said).dates, default="")

    def has_amounts(self, text: str, sentence: str) -> bool:
        """Return whether each large number and id of a text was shown, said or set.

        An amount may also be one times a count in the sentence, or the sum or the difference of two known amounts. Of
        these, one of the domain policy must be stated in the sentence.
        """
        amounts = set(map(float, _AMOUNT.findall(text)))
        large = {run for run in map(int, DIGITS.findall(text)) if run > MAX_SMALL_NUMBER}
        if not self._has_percents(text):
            return False
        if amounts <= self._values and large <= self._runs:
            return True
        if any(int(run) not in self._runs for name in ID.findall(text) for run in DIGITS.findall(name)):
            return False
        stated = extract_numbers(sentence)
        counts = [number for number in stated if number <= MAX_SMALL_NUMBER]
        results = [known * count for known in self._amounts for count in counts]
        if "refund" in sentence or not _EXTRA.search(sentence):
            results += [result for a, b in self._pairs for result in (a + b, abs(a - b))]
        others = stated & set(self._amounts)
        return all(
            amount in self._values
            or any(abs(result - amount) < TOLERANCE for result in results)
            or any(
                abs(known + other - amount) < TOLERANCE or abs(abs(known - other) - amount) < TOLERANCE
                for known in self._amounts
                for other in others
            )
            for amount in map(abs, extract_numbers(text))
            if amount > MAX_SMALL_NUMBER or amount in amounts
        )

    def _has_percents(self, text: str) -> bool:
        """Return whether each percentage of a text is one that somebody named, or the ratio of amounts in the text."""
        stated = sorted(extract_numbers(text))[:MAX_TERMS]
        return all(
            float(percent) in (0, 100)
            or percent in self._percents
            or any(abs(100 * a / b - float(percent)) < 1 for a in stated for b in stated if b and a < b)
            for percent in _PERCENT.findall(text)
        )

    @cached_property
    def _percents(self) -> frozenset[str]:
        return frozenset(_PERCENT.findall(self._folded))

    @cached_property
    def _iso_dates(self) -> frozenset[str]:
        """The dates in results and arguments, which are not normalized: a conversation is long."""
        return values_of(" ".join(set(_ISO.findall(self._said)))).dates

    @cached_property
    def _folded(self) -> str:
        return self._said.casefold()

    @cached_property
    def _forms(self) -> set[str]:
        return {id_form(name.casefold()) for name in ID.findall(self._said)}

    @cached_property
    def _runs(self) -> set[int]:
        """All runs of digits, those of ids and dates too."""
        return set(map(int, DIGITS.findall(self._said)))

    @cached_property
    def _amounts(self) -> list[float]:
        return _read_amounts(self._said)

    @cached_property
    def _values(self) -> set[float]:
        return {*self._amounts, *extract_numbers(self._said)}

    @cached_property
    def _pairs(self) -> list[tuple[float, float]]:
        """Pairs of the amounts that results, the user and the arguments of calls state."""
        return list(combinations(_read_amounts("\n".join(self._read(("user", "tool")))), 2))


def _read_amounts(text: str) -> list[float]:
    return sorted(float(number) for number in set(_AMOUNT.findall(text)))[:MAX_COMBINED_NUMBERS]
