"""Known values: the amounts and ids that an agent may state, because somebody has shown, said or set them."""

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations

from understudy.core.messages import Message
from understudy.envs.compliance.ids import DIGITS, ID, MAX_SMALL_NUMBER, id_form
from understudy.envs.rewards import extract_numbers

MAX_COMBINED_NUMBERS = 100
"""Largest number of known amounts whose sums and differences are tried to explain an amount."""

_AMOUNT = re.compile(r"(?<![\w.-])\d+\.\d\d?(?![\w.])")
_TOLERANCE = 0.006
"""Largest error of an amount that is computed from others: half a cent, and what floats add."""


class KnownValues:
    """What results, the user, the domain policy and the arguments of calls state: read once for all texts."""

    def __init__(self, transcript: Sequence[Message]) -> None:
        self._said = "\n".join(
            text
            for message in transcript
            for text in ([] if message.role == "assistant" else [message.content])
            + [str(list(call.arguments.values())) for call in message.tool_calls]
        )

    def find_unknown_id(self, text: str) -> str:
        """Return an id in a text that nobody has named, although others of its form are known, or ""."""
        unknown = sorted(name for name in set(ID.findall(text)) if name not in self._folded)
        if not unknown:
            return ""
        forms = {id_form(name.casefold()) for name in ID.findall(self._said)}
        return next((name for name in unknown if id_form(name) in forms), "")

    def has_amounts(self, text: str, sentence: str) -> bool:
        """Return whether each large number and id of a text was shown, said or set.

        An amount may also be the sum or the difference of two known amounts, or one times a count in the sentence.
        """
        if {run for run in map(int, DIGITS.findall(text)) if run > MAX_SMALL_NUMBER} <= self._runs:
            return True
        if any(int(run) not in self._runs for name in ID.findall(text) for run in DIGITS.findall(name)):
            return False
        counts = [number for number in extract_numbers(sentence) if number <= MAX_SMALL_NUMBER]
        return all(
            amount in self._values
            or any(abs(result - amount) < _TOLERANCE for a, b in self._pairs for result in (a + b, abs(a - b)))
            or any(abs(known * count - amount) < _TOLERANCE for known in self._amounts for count in counts)
            for amount in extract_numbers(text)
            if amount > MAX_SMALL_NUMBER
        )

    @cached_property
    def _folded(self) -> str:
        return self._said.casefold()

    @cached_property
    def _runs(self) -> set[int]:
        """All runs of digits, those of ids and dates too."""
        return set(map(int, DIGITS.findall(self._said)))

    @cached_property
    def _amounts(self) -> list[float]:
        return sorted(float(number) for number in set(_AMOUNT.findall(self._said)))[:MAX_COMBINED_NUMBERS]

    @cached_property
    def _values(self) -> set[float]:
        return {*self._amounts, *extract_numbers(self._said)}

    @cached_property
    def _pairs(self) -> list[tuple[float, float]]:
        return list(combinations(self._amounts, 2))
