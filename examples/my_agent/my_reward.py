"""The reward of an answer."""

from typing import Any


def reward(transcript: Any, example: Any) -> float:
    """Return 1 if the answer has the right number."""
    return float(example.answer in transcript[-1].content)
