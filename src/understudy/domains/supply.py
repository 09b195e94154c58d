"""Supply: a domain's endless stream of tasks. A task follows from its id: split, family, difficulty, seed, number."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from understudy.domains import talks
from understudy.domains.base import interleave
from understudy.domains.drafts import Draft, Want
from understudy.domains.people import nth
from understudy.domains.talks import Person
from understudy.messages import Message
from understudy.tasks import DIFFICULTIES, Difficulty, Split, Task

D = TypeVar("D", bound=Draft)
Who = TypeVar("Who")
"""How a domain's callers are identified."""


@dataclass(frozen=True)
class Supply(Generic[D, Who]):
    """What a domain's tasks are drawn from."""

    domain: str
    people: Callable[[Split], tuple[str, ...]]
    """The customers of a split, by their keys."""
    draft: Callable[[random.Random, str], D]
    """An empty draft about the customer with a key."""
    talk: Callable[[D, str, Difficulty], tuple[Who, Sequence[Want]]]
    """How the customer is identified, and the requests of one talk of a family, in order."""
    person: Callable[[D, Who], Person]
    gold: Callable[[D, Who, Sequence[Want]], Iterable[Message]]
    """The turns of the perfect agent."""

    def generate(
        self, split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]
    ) -> Iterator[Task]:
        """Tasks without end. Within a family no user comes twice before all others have come once."""
        for family, difficulty, number in interleave(families, difficulties):
            yield self.make(split, seed, family, difficulty, number)

    def make(self, split: Split, seed: int, family: str, difficulty: Difficulty, number: int) -> Task:
        """One task."""
        identity = f"{self.domain}/{split}/{family}/{difficulty}/{seed}-{number}"
        turn = number * len(DIFFICULTIES) + DIFFICULTIES.index(difficulty)
        draft = self.draft(random.Random(identity), nth(self.people(split), f"{split}/{seed}/{family}", turn))
        who, wants = self.talk(draft, family, difficulty)
        return Task(
            id=identity,
            domain=self.domain,
            split=split,
            family=family,
            difficulty=difficulty,
            scenario=talks.scenario(draft, self.person(draft, who), wants, difficulty),
            setup=draft.setup,
            gold=tuple(self.gold(draft, who, wants)),
            outputs=talks.outputs(wants),
        )
