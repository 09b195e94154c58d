"""Lamps to ask after: a domain for benchmarks, as simple as a random model of 115 thousand parameters needs it.

An episode is two calls and a text: find the lamp of a room, read its level, tell it. All that has to be copied from
one to the next is a digit, the last that was said, because so small a model has to learn to copy first. A level that no
tool has shown does not count as told, and a room and its lamp are never those of another split's task.
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


class Lamp(Record):
    """A lamp in a room."""

    room: str
    level: str
    """How bright it is, from B0 to B9."""


class House(State):
    """Its lamps, by id."""

    lamps: Table[Lamp]


class LampTools(Toolkit):
    """What can be known of lamps."""

    _state: House

    def find(self, room: Annotated[str, "its number"]) -> str:
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
    """Without a lamp: each task brings its own."""
    return House(lamps={})


def pairs(split: Split) -> list[tuple[int, int]]:
    """The rooms of a split, each with a lamp; every digit is in each split, at both places."""
    places = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}[split]
    return [(room, lamp) for room in range(10) for lamp in range(10) if (room + lamp) % 5 in places]


def generate(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Ask after one lamp, over and over."""
    known = pairs(split)
    for family, difficulty, index in interleave(families, difficulties):
        identity = f"lamps/{split}/{seed}/{family}/{difficulty}/{index}"
        draw = random.Random(identity)
        room, number = draw.choice(known)
        lamp = Lamp(room=str(room), level=f"B{draw.randrange(10)}")
        yield task(identity, split, family, difficulty, f"L{number}", lamp)


def task(identity: str, split: Split, family: str, difficulty: Difficulty, key: str, lamp: Lamp) -> Task:
    """The task to tell how bright a lamp is."""
    calls = ToolCall(name="find", arguments={"room": lamp.room}), ToolCall(name="read", arguments={"lamp": key})
    says = f"How bright is room {lamp.room}?"
    told = Message(role="assistant", content=f"It is at {lamp.level}.")
    return Task(
        id=identity,
        domain="lamps",
        split=split,
        family=family,
        difficulty=difficulty,
        scenario=Scenario(instructions=says, opening=says),
        setup={"lamps": {key: lamp.model_dump()}},
        gold=(*(Message(role="assistant", tool_calls=(call,)) for call in calls), told),
        outputs=(lamp.level,),
    )


def alone(scenario: Scenario, seed: int, device: Device | None) -> NoUser:
    """A user who asks once, and hears one answer."""
    return NoUser(scenario.opening)


DOMAIN = Lamps(__name__, house, LampTools, generate, ("bright",), shared=("lamps",), user=alone)
