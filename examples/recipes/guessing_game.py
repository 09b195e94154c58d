"""A text game without tools, in which the user answers every guess. A recipe: see docs/extending.md.

understudy play guessing_game:GUESSING_GAME
"""

import re
from collections.abc import Sequence

from understudy.core.messages import Message
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample

MAX_GUESSES = 5
"""Number of guesses that suffice to find any of 20 numbers."""


class GuessingGame(ToolEpisode):
    """One game. It stores its state between replies in its attributes."""

    def __init__(self, example: ToolExample) -> None:
        super().__init__(example)
        self._number, self._guesses = int(example.info["number"]), list[int]()

    def env_response(self, transcript: Sequence[Message]) -> str | None:
        """Return whether the number is higher or lower than the guess. None ends the game.

        A guess is a number and nothing else, so that a list of numbers is no guess.
        """
        guess = transcript[-1].content.strip()
        self._guesses.append(int(guess) if re.fullmatch("[0-9]{1,4}", guess) else 0)
        if self._number in self._guesses or len(self._guesses) >= MAX_GUESSES:
            return None
        return "It is higher." if self._guesses[-1] < self._number else "It is lower."

    def reward(self, transcript: Sequence[Message]) -> float:
        """Return 1.0 if the number was found, else 0.0."""
        return float(self._number in self._guesses)


def make_example(place: int) -> ToolExample:
    """Return one example. Its gold answer is the number, so `check` can prove that the reward can be earned.

    SFT would train the model to state a number that it cannot know, so train with `sft.steps=0`.
    """
    low = 20 * place + 1
    number = low + 7 * place % 20
    return ToolExample(prompt=f"Guess my number: {low} to {low + 19}.", answer=str(number), info={"number": number})


GUESSING_GAME = ToolDataset(
    "guess", "Say one number and nothing else.", [make_example(place) for place in range(60)], GuessingGame
)
