"""Lamps to ask after: a domain for benchmarks with one thing to learn, which no text tells and only rewards do.

An episode is a call and a text: read how bright the lamp of a room is at some time of the day, and tell it. Which time
is meant is not said; each family of tasks means another. A model that has imitated all of them speaks without a slip
and guesses the time; of one family it can learn from rewards which is meant. No room is asked after in two splits. A
brightness that no tool has shown does not count as told.
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
TIMES = ("morning", "noon", "evening", "night")
"""What a lamp is set for, and the families of tasks that mean it."""
ROOMS = {"train": range(100, 700), "validation": range(700, 800), "test": range(800, 900)}
"""Those that are asked after, by split."""
LEVELS = range(11, 99)
"""How bright a lamp can be."""


class Lamp(Record):
    """The lamp of a room."""

    levels: dict[str, int]
    """How bright it is, by the time of the day; another at each."""


class House(State):
    """Its lamps, by the number of their room."""

    lamps: Table[Lamp]


class LampTools(Toolkit):
    """What can be known of lamps."""

    _state: House

    def read(self, room: Annotated[str, "its number"], time: Annotated[str, "of the day"]) -> int:
        """Read how bright the lamp of a room is in the morning, at noon, in the evening or at night."""
        if room not in self._state.lamps:
            raise ToolError("no such room")
        if time not in TIMES:
            raise ToolError(f"time is {', '.join(TIMES)}")
        return self._state.lamps[room].levels[time]


class Lamps(Domain):
    """The domain: its frozen tasks are made, like all others."""

    def tasks(self, split: Split) -> list[Task]:
        """The first tasks of a split."""
        return self.sample(split, FROZEN)


def house() -> House:
    """With a lamp in each room."""
    draw = random.Random(0)
    rooms = (room for rooms in ROOMS.values() for room in rooms)
    return House(
        lamps={str(room): Lamp(levels=dict(zip(TIMES, draw.sample(LEVELS, len(TIMES)), strict=True))) for room in rooms}
    )


HOUSE = house()


def generate(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Somebody asks how bright a room is, over and over."""
    for family, difficulty, index in interleave(families, difficulties):
        identity = f"lamps/{split}/{seed}/{family}/{difficulty}/{index}"
        yield task(identity, split, family, difficulty, str(random.Random(identity).choice(ROOMS[split])))


def task(identity: str, split: Split, family: str, difficulty: Difficulty, room: str) -> Task:
    """The task to tell how bright a room is at the time that the family means."""
    level = str(HOUSE.lamps[room].levels[family])
    says = f"How bright is room {room}?"
    call = ToolCall(name="read", arguments={"room": room, "time": family})
    return Task(
        id=identity,
        domain="lamps",
        split=split,
        family=family,
        difficulty=difficulty,
        scenario=Scenario(instructions=says, opening=says),
        gold=(Message(role="assistant", tool_calls=(call,)), Message(role="assistant", content=f"It is at {level}.")),
        outputs=(level,),
    )


def alone(scenario: Scenario, seed: int, device: Device | None) -> NoUser:
    """A user who asks once, and hears one answer."""
    return NoUser(scenario.opening)


DOMAIN = Lamps(__name__, house, LampTools, generate, TIMES, shared=("lamps",), user=alone)
