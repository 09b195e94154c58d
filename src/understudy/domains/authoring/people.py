"""People and places for worlds, drawn from a seeded generator: names, e-mail addresses, postal addresses."""

import random
from collections.abc import Mapping

from understudy.core.tasks import Split


def split_words(*lines: str) -> tuple[str, ...]:
    """Return the words of the lines. An underscore stands for a space."""
    return tuple(word.replace("_", " ") for line in lines for word in line.split())


FIRST_NAMES = split_words(
    "Amy Ben Carl Dana Eva Finn Gina Hugo Ines Jack Kira Liam Mona Nils Olga Paul Rosa Sven Tina Uma Vera Will Yara",
    "Zoe Adam Bella Cora David Elena Frank Grace Henry Ivy James Karen Laura Mark Nina Oscar Petra Quinn Ruth Simon",
    "Tara Victor Wendy Xavier Yusuf Zara Leo",
)
LAST_NAMES = split_words(
    "Lee Ortiz Brown Kim Silva Novak Meyer Rossi Khan Jones Sato Weber Lopez Moss Reid Stone Clark Young Hart Ford",
    "Adams Baker Cole Diaz Evans Fox Green Hall Ito Jung King Lane Mason Nash Owens Park Quist Ross Shaw Tran Usher",
    "Vance West Yang Zhou Bauer Costa Dubois Frank Grant",
)
STREETS = split_words("Oak Main Hill Lake Park Cedar River Mill Church King Maple Pine Elm Garden Spring Bridge Forest")
CITIES = split_words(
    "Denver Austin Boston Chicago Dallas Fresno Houston Memphis Miami Omaha Phoenix Portland Seattle Tampa"
)

SPLIT_SHARES: Mapping[Split, tuple[float, float]] = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}
"""The people of each split as a range of a world's people: from the first share to the second."""


def draw_names(rng: random.Random, count: int) -> list[str]:
    """Return `count` different full names."""
    return rng.sample([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES], count)


def draw_counts(rng: random.Random, *people: int) -> list[int]:
    """Return the number of rows of each person, shuffled: 1 for the first number of people, 2 for the second, …."""
    counts = [count for count, number in enumerate(people, 1) for _ in range(number)]
    rng.shuffle(counts)
    return counts


def draw_email(rng: random.Random, name: str) -> str:
    """Return an email address for a name, like amy.lee42@mail.com."""
    return f"{name.lower().replace(' ', '.')}{rng.randint(10, 99)}@mail.com"


def draw_address(rng: random.Random) -> str:
    """Return a random address, like 12 Oak Street, Denver 80202."""
    street = f"{rng.randint(2, 99)} {rng.choice(STREETS)} Street"
    return f"{street}, {rng.choice(CITIES)} {rng.randint(10000, 99999)}"


def select_split(people: tuple[str, ...], split: Split) -> tuple[str, ...]:
    """Return the people of a split: train has the first 80%, validation and test 10% each."""
    first, last = SPLIT_SHARES[split]
    return people[round(first * len(people)) : round(last * len(people))]


def pick_person(people: tuple[str, ...], shuffle_seed: str, number: int) -> str:
    """Return the person at position `number` of an endless sequence of shuffled `people`.

    Each person occurs once in every `len(people)` positions. `shuffle_seed` determines the sequence.
    """
    shuffled = random.Random(f"{shuffle_seed}/{number // len(people)}").sample(people, len(people))
    return shuffled[number % len(people)]
