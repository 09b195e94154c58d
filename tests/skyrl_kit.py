"""A domain for runs in SkyRL's environment: replies earn by their characters, so that an untrained model can learn."""

from collections.abc import Iterator, Sequence
from typing import Any

import toy
from understudy.domains import base
from understudy.domains.base import Domain
from understudy.messages import Message
from understudy.tasks import Difficulty, Score, Split, Task


def digits(task: Task, state: Any, goal: Any, gate: Any, transcript: Sequence[Message], ended: bool) -> Score:
    """The share of digits, signs and blanks in what the agent says; gold is worth all."""
    said = "".join(message.content for message in transcript if message.role == "assistant")
    gold = any(message.content == task.gold[0].content for message in transcript)
    share = sum(ord(letter) < ord("A") for letter in said) / max(1, len(said))
    return Score(reward=1.0 if gold else min(0.99, share))


def lamps(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """The toy domain's, with names of their own."""
    for task in toy.generate(split, seed, families, difficulties):
        yield task.replace(domain="skyrl_kit")


class Lamps(Domain):
    """Nothing is frozen."""

    name = "skyrl_kit"

    def tasks(self, split: Split) -> list[Task]:
        return []


base.score = digits
DOMAIN = Lamps("toy", toy.house, toy.LampTools, lamps, ("one", "two"))
