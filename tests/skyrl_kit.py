"""A domain for runs in SkyRL's environment: replies earn by their characters, so that an untrained model can learn."""

import functools
from collections.abc import Iterator, Sequence

import toy
from understudy.domains.base import Domain
from understudy.environment import ConsentGate, ToolEnvironment
from understudy.messages import Message
from understudy.tasks import Difficulty, Score, Split, Task
from understudy.users import User


def digits(task: Task, transcript: Sequence[Message], ended: bool) -> Score:
    """The share of digits, signs and blanks in what the agent says; gold is worth all."""
    said = "".join(message.content for message in transcript if message.role == "assistant")
    gold = any(message.content == task.gold[0].content for message in transcript)
    share = sum(ord(letter) < ord("A") for letter in said) / max(1, len(said))
    return Score(reward=1.0 if gold else min(0.99, share))


def lamps(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """The toy domain's tasks, under another name."""
    for task in toy.generate(split, seed, families, difficulties):
        yield task.replace(domain="skyrl_kit")


class Lamps(Domain):
    """The toy domain, with rewards of its own; nothing is frozen."""

    name = "skyrl_kit"

    def tasks(self, split: Split) -> list[Task]:
        return []

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        state, transcript = self.initial(task), list[Message]()
        gate = ConsentGate(self.toolkit(state), state, transcript)
        grade = functools.partial(digits, task)
        return ToolEnvironment(self.policy, gate, user or self.user(task.scenario, seed), grade, self.specs, transcript)


DOMAIN = Lamps("toy", toy.house, toy.LampTools, lamps, ("one", "two"))
