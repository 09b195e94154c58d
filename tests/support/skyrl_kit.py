"""A domain for runs in SkyRL's environment. Rewards depend on the characters of replies, so that a random model can
learn.
"""

import functools
from collections.abc import Iterator, Sequence

import toy
from understudy.core.messages import Message
from understudy.core.tasks import Difficulty, Score, Split, Task
from understudy.envs.domain import Domain
from understudy.envs.environment import ConsentGate, ToolEnvironment
from understudy.envs.users import User


def score_digits(task: Task, transcript: Sequence[Message], ended: bool) -> Score:
    """Return the share of digits, signs and spaces in the agent's texts; 1 for gold."""
    said = "".join(message.content for message in transcript if message.role == "assistant")
    gold = any(message.content == task.gold[0].content for message in transcript)
    share = sum(ord(letter) < ord("A") for letter in said) / max(1, len(said))
    return Score(reward=1.0 if gold else min(0.99, share))


def generate_tasks(
    split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]
) -> Iterator[Task]:
    """Return the toy domain's tasks with this domain's name."""
    for task in toy.generate(split, seed, families, difficulties):
        yield task.replace(domain="skyrl_kit")


class Lamps(Domain):
    """The toy domain with other rewards and without frozen tasks."""

    name = "skyrl_kit"

    def tasks(self, split: Split) -> list[Task]:
        return []

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        state, transcript = self.initial_state(task), list[Message]()
        gate = ConsentGate(self.toolkit(state), state, transcript)
        grade = functools.partial(score_digits, task)
        return ToolEnvironment(
            self.domain_policy, gate, user or self.user_factory(task.scenario, seed), grade, self.tool_specs, transcript
        )


DOMAIN = Lamps("toy", toy.build_house, toy.LampTools, generate_tasks, ("one", "two"))
