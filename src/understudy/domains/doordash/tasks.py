"""The endless supply of delivery tasks. A task is a function of its id: split, family, difficulty, seed and number."""

import random
from collections.abc import Iterator, Sequence

from understudy.domains import talks
from understudy.domains.base import interleave
from understudy.domains.doordash.drafts import Draft
from understudy.domains.doordash.families import talk
from understudy.domains.doordash.talks import gold, person
from understudy.domains.doordash.world import emails, world
from understudy.domains.people import nth
from understudy.tasks import DIFFICULTIES, Difficulty, Split, Task


def generate(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Tasks without end. Within a family no customer comes twice before all others have come once."""
    for family, difficulty, number in interleave(families, difficulties):
        yield make(split, seed, family, difficulty, number)


def make(split: Split, seed: int, family: str, difficulty: Difficulty, number: int) -> Task:
    """One task."""
    identity = f"doordash/{split}/{family}/{difficulty}/{seed}-{number}"
    turn = number * len(DIFFICULTIES) + DIFFICULTIES.index(difficulty)
    email = nth(emails(split), f"{split}/{seed}/{family}", turn)
    draft = Draft(random.Random(identity), world(), email)
    who, wants = talk(draft, family, difficulty)
    return Task(
        id=identity,
        domain="doordash",
        split=split,
        family=family,
        difficulty=difficulty,
        scenario=talks.scenario(draft, person(draft, who), wants, difficulty),
        setup=draft.setup,
        gold=tuple(gold(draft, who, wants)),
        outputs=talks.outputs(wants),
    )
