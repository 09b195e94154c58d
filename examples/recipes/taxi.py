"""A class with `reset` and `step`, as of Gymnasium, that is trained on as it is. See docs/environments.md.

understudy check taxi:Taxi
"""

from typing import Any, Literal

PLACES = 10


class Taxi:
    """A line of places. The passenger waits at one of them."""

    domain_policy = "Drive to the passenger with the tool."
    """The system message."""
    reward_range = (0, 1)
    """The least and the largest sum of rewards of an episode."""

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Start an episode, and return the user's first message."""
        self._place, self._passenger = PLACES // 2, seed % PLACES
        return f"You are at {self._place}, the passenger at {self._passenger}.", {}

    def step(self, direction: Literal["left", "right"], places: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Drive some places to the left or right."""
        self._place += places if direction == "right" else -places
        found = self._place == self._passenger
        return f"You are at {self._place}.", float(found), found, False, {}
