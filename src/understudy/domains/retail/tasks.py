"""The endless supply of retail tasks. A task is a function of its id: split, family, difficulty, seed and number."""

import functools
import random
from collections.abc import Iterator, Sequence

from understudy.domains.base import interleave
from understudy.domains.retail.drafts import Draft
from understudy.domains.retail.families import talk
from understudy.domains.retail.talks import gold, scenario
from understudy.domains.retail.world import emails, world
from understudy.tasks import DIFFICULTIES, Difficulty, Split, Task


def generate(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Tasks without end. Within a family no user comes twice before all others have come once."""
    for family, difficulty, number in interleave(families, difficulties):
        yield make(split, seed, family, difficulty, number)


def make(split: Split, seed: int, family: str, difficulty: Difficulty, number: int) -> Task:
    """One task."""
    identity = f"retail/{split}/{family}/{difficulty}/{seed}-{number}"
    users = _shuffled(split, seed, family)
    email = users[(number * len(DIFFICULTIES) + DIFFICULTIES.index(difficulty)) % len(users)]
    draft = Draft(random.Random(identity), world(), email)
    requests = talk(draft, family, difficulty)
    return Task(
        id=identity,
        domain="retail",
        split=split,
        family=family,
        difficulty=difficulty,
        scenario=scenario(draft, requests, difficulty),
        setup=draft.setup,
        gold=tuple(gold(draft, requests)),
        outputs=tuple(output for want in requests.wants for output in want.outputs),
    )


@functools.cache
def _shuffled(split: Split, seed: int, family: str) -> tuple[str, ...]:
    users = list(emails(split))
    random.Random(f"{split}/{seed}/{family}").shuffle(users)
    return tuple(users)
