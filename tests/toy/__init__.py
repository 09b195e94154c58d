"""A domain as small as one can be, lamps to switch; it has all that `Domain` wants."""

import random
from collections.abc import Iterator, Sequence

from understudy.domains.base import Domain, interleave
from understudy.errors import ToolError
from understudy.messages import Message, ToolCall
from understudy.records import Record
from understudy.state import State, Table
from understudy.tasks import DIFFICULTIES, Difficulty, Scenario, Split, Task, Wish
from understudy.tools import Toolkit


class Lamp(Record):
    """A lamp in a room; only a small one may be switched on."""

    room: str
    on: bool = False


class House(State):
    """All lamps, by id."""

    lamps: Table[Lamp]


class LampTools(Toolkit):
    """What can be done with lamps."""

    _state: House

    def find_lamp(self, room: str) -> str:
        """Find the lamp of a room."""
        found = [key for key, lamp in self._state.lamps.items() if lamp.room == room]
        if not found:
            raise ToolError(f"no lamp in room {room}")
        return found[0]

    def switch_lamp(self, lamp_id: str, on: bool) -> Lamp:
        """Switch a lamp on or off."""
        if lamp_id not in self._state.lamps:
            raise ToolError(f"no lamp {lamp_id}")
        self._state.lamps[lamp_id] = self._state.lamps[lamp_id].replace(on=on)
        return self._state.lamps[lamp_id]


def house() -> House:
    """Ninety lamps that are off, thirty for each split."""
    return House(lamps={f"L{i}": Lamp(room=f"room{i}") for i in range(90)})


def generate(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Switch on one lamp (`one`) or two (`two`)."""
    first = {"train": 0, "validation": 30, "test": 60}[split]
    order = random.Random(f"{split}/{seed}").sample(range(first, first + 30), 30)
    for family, difficulty, index in interleave(families, difficulties):
        identity = f"toy/{split}/{seed}/{family}/{difficulty}/{index}"
        place = index * len(DIFFICULTIES) + DIFFICULTIES.index(difficulty) + 15 * (family == "two")
        lamps = [order[place % 30], order[(place + 1 + place // 30) % 30]][: 1 if family == "one" else 2]
        yield task(identity, split, family, difficulty, [f"L{i}" for i in lamps])


def task(identity: str, split: Split, family: str, difficulty: Difficulty, lamps: Sequence[str]) -> Task:
    """The task to switch on some lamps, one after the other."""
    gold: list[Message] = []
    for lamp in lamps:
        call = ToolCall(name="switch_lamp", arguments={"lamp_id": lamp, "on": True})
        gold.append(Message(role="assistant", content=f"I will switch on lamp {lamp}. Do you want me to proceed?"))
        gold.append(Message(role="assistant", tool_calls=(call,)))
        gold.append(Message(role="assistant", content=f"Lamp {lamp} is on."))
    wishes = tuple(Wish(says=f"Please switch on lamp {lamp}.", names=(lamp,)) for lamp in lamps)
    scenario = Scenario(
        instructions=" ".join(w.says for w in wishes), opening=f"Hello! {wishes[0].says}", wishes=wishes
    )
    return Task(
        id=identity,
        domain="toy",
        split=split,
        family=family,
        difficulty=difficulty,
        scenario=scenario,
        gold=tuple(gold),
    )


DOMAIN = Domain(__name__, house, LampTools, generate, ("one", "two"))
