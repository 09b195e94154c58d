"""Lamps to ask after: a domain for benchmarks, as simple as a random model of 115 thousand parameters needs it.

An episode is two calls and a text: find the lamp of the hall, read its level, tell it. So small a model is long in
learning to copy, so lamp and level are the same each time. Who asks is another each time, and nobody in two splits.
What there is to learn is to say long calls without a slip: a level that no tool has shown does not count as told.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Annotated

from understudy.domains.base import Domain, interleave
from understudy.errors import ToolError
from understudy.messages import Message, ToolCall
from understudy.records import Record
from understudy.state import State, Table
from understudy.tasks import Difficulty, Scenario, Split, Task
from understudy.tools import Device, Toolkit
from understudy.users import NoUser

FROZEN = 40
"""Tasks of a split that are called its frozen ones."""
NAMES = {"train": ("Ann", "Ben", "Eva", "Leo", "Mia", "Tom"), "validation": ("Ida", "Max"), "test": ("Amy", "Jan")}
"""Who asks."""


class Lamp(Record):
    """A lamp in a room."""

    room: str
    level: str
    """How bright it is."""


class House(State):
    """Its lamps, by id."""

    lamps: Table[Lamp]


class LampTools(Toolkit):
    """What can be known of lamps."""

    _state: House

    def find(self, room: Annotated[str, "its name"]) -> str:
        """Find the lamp of a room."""
        found = [key for key, lamp in self._state.lamps.items() if lamp.room == room]
        if not found:
            raise ToolError("no such room")
        return found[0]

    def read(self, lamp: Annotated[str, "its id"]) -> str:
        """Read how bright a lamp is."""
        if lamp not in self._state.lamps:
            raise ToolError("no such lamp")
        return self._state.lamps[lamp].level


class Lamps(Domain):
    """The domain: its frozen tasks are made, like all others."""

    def tasks(self, split: Split) -> list[Task]:
        """The first tasks of a split."""
        return self.sample(split, FROZEN)


def house() -> House:
    """With one lamp."""
    return House(lamps={"L7": Lamp(room="hall", level="B3")})


def generate(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Somebody asks how bright the hall is, over and over."""
    for family, difficulty, index in interleave(families, difficulties):
        identity = f"lamps/{split}/{seed}/{family}/{difficulty}/{index}"
        draw = random.Random(identity)
        yield task(identity, split, family, difficulty, f"{draw.choice(NAMES[split])} in room {draw.randrange(100)}")


def task(identity: str, split: Split, family: str, difficulty: Difficulty, who: str) -> Task:
    """The task to tell somebody how bright the hall is."""
    calls = ToolCall(name="find", arguments={"room": "hall"}), ToolCall(name="read", arguments={"lamp": "L7"})
    says = f"I am {who}. How bright is the hall?"
    told = Message(role="assistant", content="It is at B3.")
    return Task(
        id=identity,
        domain="lamps",
        split=split,
        family=family,
        difficulty=difficulty,
        scenario=Scenario(instructions=says, opening=says),
        gold=(*(Message(role="assistant", tool_calls=(call,)) for call in calls), told),
        outputs=("B3",),
    )


def alone(scenario: Scenario, seed: int, device: Device | None) -> NoUser:
    """A user who asks once, and hears one answer."""
    return NoUser(scenario.opening)


DOMAIN = Lamps(__name__, house, LampTools, generate, ("bright",), shared=("lamps",), user=alone)
