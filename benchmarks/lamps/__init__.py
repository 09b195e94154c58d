"""Lamps: a domain for benchmarks in which rewards teach one fact that no text states.

An episode is a call and a text: read the brightness of a room's lamp at one of four times of the day, and report it.
The user does not say which time; each family of tasks means another one. A model fine-tuned on all families makes no
formal mistakes but guesses the time. Trained on one family, it can learn the time from rewards. No room occurs in two
splits. A reported brightness counts only if a tool has shown it.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Annotated

from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import Difficulty, Scenario, Split, Task
from understudy.envs.domain import Domain
from understudy.envs.state import State, Table
from understudy.envs.task_generation import interleave_families
from understudy.envs.tools import Toolkit, UserTools
from understudy.envs.users import OpeningOnlyUser

FROZEN = 40
"""Number of frozen tasks per split."""
TIMES = ("morning", "noon", "evening", "night")
"""The times of the day, which are also the families of tasks."""
ROOMS = {"train": range(100, 700), "validation": range(700, 800), "test": range(800, 900)}
"""Rooms of the tasks, by split."""
LEVELS = range(11, 99)
"""Possible brightness values."""


class Lamp(Record):
    """The lamp of a room."""

    levels: dict[str, int]
    """Brightness by time of the day; no two are equal."""


class House(State):
    """The lamps by room number."""

    lamps: Table[Lamp]


class LampTools(Toolkit):
    """The agent's tool."""

    _state: House

    def read(self, room: Annotated[str, "its number"], time: Annotated[str, "of the day"]) -> int:
        """Read how bright the lamp of a room is in the morning, at noon, in the evening or at night."""
        if room not in self._state.lamps:
            raise ToolError("no such room")
        if time not in TIMES:
            raise ToolError(f"time is {', '.join(TIMES)}")
        return self._state.lamps[room].levels[time]


class Lamps(Domain):
    """The domain. Its frozen tasks are generated."""

    def tasks(self, split: Split) -> list[Task]:
        """Return the frozen tasks of a split."""
        return self.sample(split, FROZEN)


def build_house() -> House:
    """Return a house with a lamp in each room."""
    draw = random.Random(0)
    rooms = (room for rooms in ROOMS.values() for room in rooms)
    return House(
        lamps={str(room): Lamp(levels=dict(zip(TIMES, draw.sample(LEVELS, len(TIMES)), strict=True))) for room in rooms}
    )


HOUSE = build_house()


def generate(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Yield tasks endlessly."""
    for family, difficulty, index in interleave_families(families, difficulties):
        identity = f"lamps/{split}/{seed}/{family}/{difficulty}/{index}"
        yield make_task(identity, split, family, difficulty, str(random.Random(identity).choice(ROOMS[split])))


def make_task(task_id: str, split: Split, family: str, difficulty: Difficulty, room: str) -> Task:
    """Return the task to report a room's brightness at the family's time."""
    level = str(HOUSE.lamps[room].levels[family])
    says = f"How bright is room {room}?"
    call = ToolCall(name="read", arguments={"room": room, "time": family})
    return Task(
        id=task_id,
        domain="lamps",
        split=split,
        family=family,
        difficulty=difficulty,
        scenario=Scenario(instructions=says, opening=says),
        gold=(Message(role="assistant", tool_calls=(call,)), Message(role="assistant", content=f"It is at {level}.")),
        outputs=(level,),
    )


def alone(scenario: Scenario, seed: int, device: UserTools | None) -> OpeningOnlyUser:
    """Return a user who asks once and leaves after one answer."""
    return OpeningOnlyUser(scenario.opening)


DOMAIN = Lamps(__name__, build_house, LampTools, generate, TIMES, shared_tables=("lamps",), user_factory=alone)
