"""TaskGenerator: an endless stream of tasks. Split, family, difficulty, seed and number form a task's id, which
determines it.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from understudy.core.messages import Message
from understudy.core.tasks import DIFFICULTIES, Difficulty, Split, Task
from understudy.domains.authoring import scenarios
from understudy.domains.authoring.people import pick_person, select_split
from understudy.domains.authoring.phrases import PhraseSampler, load_phrases
from understudy.domains.authoring.scenarios import UserProfile
from understudy.domains.authoring.task_builder import GoalSpec, TaskBuilder
from understudy.envs.state import State
from understudy.envs.task_generation import interleave_families

StateT = TypeVar("StateT", bound=State)
BuilderT = TypeVar("BuilderT", bound=TaskBuilder)
CallerT = TypeVar("CallerT")
"""Type of the domain's caller: how the customer is identified."""


@dataclass(frozen=True)
class TaskGenerator(Generic[StateT, BuilderT, CallerT]):
    """The functions of a domain that draw the parts of its tasks."""

    package: str
    """`__name__` of the domain's package, which has a file `phrases.toml`. Its last part is the domain's name."""
    build_world: Callable[[], StateT]
    """Returns the initial state."""
    customers: str
    """The table of the customers, who are divided among the splits."""
    make_builder: Callable[[random.Random, PhraseSampler, StateT, str], BuilderT]
    """Returns the builder of a task for the customer with a key."""
    draw_goals: Callable[[BuilderT, str, Difficulty], tuple[CallerT, Sequence[GoalSpec]]]
    """Returns how the customer is identified, and the requests of one conversation of a family, in order."""
    build_user_profile: Callable[[BuilderT, CallerT], UserProfile]
    generate_gold_turns: Callable[[BuilderT, CallerT, Sequence[GoalSpec]], Iterable[Message]]
    """Returns the turns of the gold agent."""

    @property
    def domain(self) -> str:
        """The name of the domain."""
        return self.package.rpartition(".")[2]

    @cached_property
    def phrases(self) -> Mapping[str, Sequence[str]]:
        """The lists of phrases of the domain by name."""
        return load_phrases(self.package)

    def customer_keys(self, split: Split) -> tuple[str, ...]:
        """Return the keys of the customers of a split."""
        return select_split(tuple(self.build_world().tables()[self.customers]), split)

    def generate(
        self, split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]
    ) -> Iterator[Task]:
        """Yield tasks without end. Within a family each customer comes once before any comes twice."""
        for family, difficulty, number in interleave_families(families, difficulties):
            yield self.make_task(split, seed, family, difficulty, number)

    def make_task(self, split: Split, seed: int, family: str, difficulty: Difficulty, number: int) -> Task:
        """Return the task with the id DOMAIN/SPLIT/FAMILY/DIFFICULTY/SEED-NUMBER."""
        return self._make_task(split, seed, family, difficulty, number, ())

    def make_long_task(
        self, split: Split, seed: int, family: str, number: int, additions: Sequence[tuple[int, str]]
    ) -> Task:
        """Return a hard task with more requests of the same customer: those that `additions` draw, as (number, family).

        An added request may contradict an earlier one, so play the task before you use it.
        """
        return self._make_task(split, seed, family, "hard", number, additions)

    def _make_task(
        self,
        split: Split,
        seed: int,
        family: str,
        difficulty: Difficulty,
        number: int,
        additions: Sequence[tuple[int, str]],
    ) -> Task:
        identity = f"{self.domain}/{split}/{family}/{difficulty}/{seed}-{number}"
        identity += "".join(f"+{draw}.{added}" for draw, added in additions)
        turn = number * len(DIFFICULTIES) + DIFFICULTIES.index(difficulty)
        builder = self.make_builder(
            random.Random(identity.partition("+")[0]),
            PhraseSampler(identity, split, self.phrases),
            self.build_world(),
            pick_person(self.customer_keys(split), f"{split}/{seed}/{family}", turn),
        )
        who, goals = self.draw_goals(builder, family, difficulty)
        for draw, added in additions:
            builder.rng = random.Random(f"{identity.partition('+')[0]}+{draw}.{added}")  # not moved by other additions
            goals = (*goals, *self.draw_goals(builder, added, difficulty)[1])
        return Task(
            id=identity,
            domain=self.domain,
            split=split,
            family=family,
            difficulty=difficulty,
            scenario=scenarios.build_scenario(builder, self.build_user_profile(builder, who), goals, difficulty),
            setup=builder.setup,
            gold=tuple(self.generate_gold_turns(builder, who, goals)),
            outputs=scenarios.collect_outputs(goals),
        )
