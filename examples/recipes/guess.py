"""A game in text: the user answers every guess, and no tool is there. A recipe: see docs/extending.md.

understudy play guess:GUESS
"""

import re
from collections.abc import Sequence

from understudy.domains.questions import Attempt, Question, Questions
from understudy.messages import Message

MOST = 5
"""Guesses in which any number of twenty can be found."""


class Guessing(Attempt):
    """One game. What it remembers between two replies is its own."""

    def __init__(self, question: Question) -> None:
        super().__init__(question)
        self._number, self._guesses = int(question.info["number"]), list[int]()

    def answer(self, transcript: Sequence[Message]) -> str | None:
        """Whether the number is higher or lower; None ends the game."""
        found = re.search(r"\d+", transcript[-1].content)
        self._guesses.append(int(found[0]) if found else 0)
        if self._number in self._guesses or len(self._guesses) >= MOST:
            return None
        return "It is higher." if self._guesses[-1] < self._number else "It is lower."

    def reward(self, transcript: Sequence[Message]) -> float:
        """Whether it was found."""
        return float(self._number in self._guesses)


def game(place: int) -> Question:
    """A perfect player knows the number: that proves the reward, and is nothing to imitate, so `sft.steps=0`."""
    low = 20 * place + 1
    number = low + 7 * place % 20
    return Question(prompt=f"Guess my number: {low} to {low + 19}.", reply=str(number), info={"number": number})


GUESS = Questions("guess", "Say one number and nothing else.", [game(place) for place in range(60)], Guessing)
