"""Outcomes of recorded episodes: which of them succeeded.

The outcome of a row is the first of these columns that it has: `success`, `is_success`, `task_completed`,
`completed_successfully`, `passed`, `resolved`, `label` (true or false), `reward`, `total_reward`, `score` (numbers);
else the sum of the rewards of its steps. A list of rewards, of tokens or of steps, counts as its sum. True counts as a
reward of 1, false as 0. An episode is successful if its reward is at least 1. A reward above 1 shows that the file has
another scale, so such a row is an error unless the smallest reward of a success is given.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from understudy.core.items import InvalidField

_FLAGS = ("success", "is_success", "task_completed", "completed_successfully", "passed", "resolved", "label")
_REWARDS = ("reward", "total_reward", "score")
OUTCOME_COLUMNS = (*_FLAGS, *_REWARDS)
MIN_REWARD_HINT = "give the smallest reward of a success as min_reward (--min-reward)"
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """The outcome of a row."""

    reward: float
    reason: str
    """What the row says, such as "reward 0"."""

    def is_success(self, min_reward: float | None) -> bool:
        """Return whether the reward is that of a success. Raise InvalidField if it is above 1 and None is given."""
        if min_reward is None and self.reward > 1 + _TOLERANCE:
            raise InvalidField(self.reason.split()[0], f"{self.reward:g} is above 1; {MIN_REWARD_HINT}")
        return self.reward >= (1.0 if min_reward is None else min_reward) - _TOLERANCE


def find_outcome(row: Mapping[str, Any]) -> RowOutcome | None:
    """Return the outcome of a row without nulls, or None if it has none. Raise InvalidField if it cannot be read."""
    name = next((column for column in OUTCOME_COLUMNS if column in row), None)
    if name is None:
        return None
    value = _number(row[name])
    if name in _FLAGS and value not in (0, 1):
        raise InvalidField(name, "true or false is needed")
    if name in _REWARDS and isinstance(value, list) and value and all(isinstance(each, int | float) for each in value):
        value = sum(value)  # rewards of tokens or of steps
    if not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise InvalidField(name, "a number is needed")
    shown = f"{name} {str(bool(value)).lower()}" if name in _FLAGS else f"{name} 0" if not value else f"{name} below 1"
    return RowOutcome(float(value), shown)


def _number(value: Any) -> Any:
    """Return the number or the truth value of a text, as a table has it; anything else unchanged."""
    if not isinstance(value, str):
        return value
    truths, text = {"true": True, "false": False}, value.strip().casefold()
    try:
        return truths[text] if text in truths else float(text)
    except ValueError:
        return value
