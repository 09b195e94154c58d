"""The endless supply of telecom tasks. A task is a function of its id: split, family, difficulty, seed and number."""

import random
from collections.abc import Iterator, Sequence

from understudy.domains import talks
from understudy.domains.base import interleave
from understudy.domains.people import nth
from understudy.domains.telecom.drafts import Draft
from understudy.domains.telecom.families import talk
from understudy.domains.telecom.talks import gold, person
from understudy.domains.telecom.world import customer_ids, world
from understudy.tasks import DIFFICULTIES, Difficulty, Split, Task


def generate(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Tasks without end. Within a family no customer comes twice before all others have come once."""
    for family, difficulty, number in interleave(families, difficulties):
        yield make(split, seed, family, difficulty, number)


def make(split: Split, seed: int, family: str, difficulty: Difficulty, number: int) -> Task:
    """One task."""
    identity = f"telecom/{split}/{family}/{difficulty}/{seed}-{number}"
    turn = number * len(DIFFICULTIES) + DIFFICULTIES.index(difficulty)
    key = nth(customer_ids(split), f"{split}/{seed}/{family}", turn)
    draft = Draft(random.Random(identity), world(), key)
    who, caller, wants = talk(draft, family, difficulty)
    draft.patch("desk", "now", number=caller)
    return Task(
        id=identity,
        domain="telecom",
        split=split,
        family=family,
        difficulty=difficulty,
        scenario=talks.scenario(draft, person(draft, who, caller), wants, difficulty),
        setup=draft.setup,
        gold=tuple(gold(draft, who, caller, wants)),
        outputs=talks.outputs(wants),
    )
