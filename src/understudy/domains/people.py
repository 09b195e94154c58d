"""People and places for worlds, drawn from a seeded generator: names, e-mail addresses, postal addresses."""

import random
from collections.abc import Mapping

from understudy.tasks import Split


def words(*lines: str) -> tuple[str, ...]:
    """The words of some lines; an underscore stands for a blank."""
    return tuple(word.replace("_", " ") for line in lines for word in line.split())


FIRST = words(
    "Amy Ben Carl Dana Eva Finn Gina Hugo Ines Jack Kira Liam Mona Nils Olga Paul Rosa Sven Tina Uma Vera Will Yara",
    "Zoe Adam Bella Cora David Elena Frank Grace Henry Ivy James Karen Laura Mark Nina Oscar Petra Quinn Ruth Simon",
    "Tara Victor Wendy Xavier Yusuf Zara Leo",
)
LAST = words(
    "Lee Ortiz Brown Kim Silva Novak Meyer Rossi Khan Jones Sato Weber Lopez Moss Reid Stone Clark Young Hart Ford",
    "Adams Baker Cole Diaz Evans Fox Green Hall Ito Jung King Lane Mason Nash Owens Park Quist Ross Shaw Tran Usher",
    "Vance West Yang Zhou Bauer Costa Dubois Frank Grant",
)
STREETS = words("Oak Main Hill Lake Park Cedar River Mill Church King Maple Pine Elm Garden Spring Bridge Forest")
CITIES = words("Denver Austin Boston Chicago Dallas Fresno Houston Memphis Miami Omaha Phoenix Portland Seattle Tampa")

SHARES: Mapping[Split, tuple[float, float]] = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}
"""Which part of a world's people belongs to a split."""


def draw_names(rng: random.Random, count: int) -> list[str]:
    """So many different full names."""
    return rng.sample([f"{first} {last}" for first in FIRST for last in LAST], count)


def draw_email(rng: random.Random, name: str) -> str:
    """An address for a name, like amy.lee42@mail.com."""
    return f"{name.lower().replace(' ', '.')}{rng.randint(10, 99)}@mail.com"


def draw_address(rng: random.Random) -> str:
    """Any address, like 12 Oak Street, Denver 80202."""
    street = f"{rng.randint(2, 99)} {rng.choice(STREETS)} Street"
    return f"{street}, {rng.choice(CITIES)} {rng.randint(10000, 99999)}"


def of_split(people: tuple[str, ...], split: Split) -> tuple[str, ...]:
    """The people of a split: train has the first 80%, validation and test 10% each."""
    first, last = SHARES[split]
    return people[round(first * len(people)) : round(last * len(people))]


def nth(people: tuple[str, ...], order: str, number: int) -> str:
    """The person of number `number` in an order named by a text; nobody comes twice before all have come once."""
    shuffled = random.Random(f"{order}/{number // len(people)}").sample(people, len(people))
    return shuffled[number % len(people)]
