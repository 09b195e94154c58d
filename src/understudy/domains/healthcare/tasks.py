"""The endless supply of healthcare tasks. A task is a function of its id: split, family, difficulty, seed, number."""

import random
from collections.abc import Iterator, Sequence

from understudy.domains import talks
from understudy.domains.base import interleave
from understudy.domains.healthcare.drafts import Draft
from understudy.domains.healthcare.families import talk
from understudy.domains.healthcare.talks import gold, person
from understudy.domains.healthcare.world import patients, world
from understudy.domains.people import nth
from understudy.tasks import DIFFICULTIES, Difficulty, Split, Task


def generate(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Tasks without end. Within a family no patient comes twice before all others have come once."""
    for family, difficulty, number in interleave(families, difficulties):
        yield make(split, seed, family, difficulty, number)


def make(split: Split, seed: int, family: str, difficulty: Difficulty, number: int) -> Task:
    """One task."""
    identity = f"healthcare/{split}/{family}/{difficulty}/{seed}-{number}"
    turn = number * len(DIFFICULTIES) + DIFFICULTIES.index(difficulty)
    key = nth(patients(split), f"{split}/{seed}/{family}", turn)
    draft = Draft(random.Random(identity), world(), key)
    wants = talk(draft, family, difficulty)
    who = person(draft, difficulty == "easy")
    return Task(
        id=identity,
        domain="healthcare",
        split=split,
        family=family,
        difficulty=difficulty,
        scenario=talks.scenario(draft, who, wants, difficulty),
        setup=draft.setup,
        gold=tuple(gold(draft, who, wants)),
        outputs=talks.outputs(wants),
    )
