"""A minimal domain for tests: an agent switches lamps on and off."""

import random
from collections.abc import Iterator, Sequence

from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import DIFFICULTIES, Difficulty, Scenario, Split, Task, UserGoal
from understudy.envs.domain import Domain
from understudy.envs.state import State, Table
from understudy.envs.task_generation import interleave_families
from understudy.envs.tools import Toolkit


class Lamp(Record):
    """A lamp in a room; only a small one may be switched on."""

    room: str
    on: bool = False


class House(State):
    """The world: all lamps by id."""

    lamps: Table[Lamp]


class LampTools(Toolkit):
    """The agent's tools: find a lamp and switch it."""

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


def build_house() -> House:
    """Return a world of ninety lamps that are off, thirty for each split."""
    return House(lamps={f"L{i}": Lamp(room=f"room{i}") for i in range(90)})


def generate(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Yield tasks that ask for one lamp (family `one`) or two lamps (family `two`) to be switched on."""
    first = {"train": 0, "validation": 30, "test": 60}[split]
    order = random.Random(f"{split}/{seed}").sample(range(first, first + 30), 30)
    for family, difficulty, index in interleave_families(families, difficulties):
        identity = f"toy/{split}/{seed}/{family}/{difficulty}/{index}"
        place = index * len(DIFFICULTIES) + DIFFICULTIES.index(difficulty) + 15 * (family == "two")
        lamps = [order[place % 30], order[(place + 1 + place // 30) % 30]][: 1 if family == "one" else 2]
        yield make_task(identity, split, family, difficulty, [f"L{i}" for i in lamps])


def make_task(task_id: str, split: Split, family: str, difficulty: Difficulty, lamps: Sequence[str]) -> Task:
    """Return a task to switch on the given lamps one after the other."""
    gold: list[Message] = []
    for lamp in lamps:
        call = ToolCall(name="switch_lamp", arguments={"lamp_id": lamp, "on": True})
        gold.append(Message(role="assistant", content=f"I will switch on lamp {lamp}. Do you want me to proceed?"))
        gold.append(Message(role="assistant", tool_calls=(call,)))
        gold.append(Message(role="assistant", content=f"Lamp {lamp} is on."))
    goals = tuple(UserGoal(text=f"Please switch on lamp {lamp}.", required_terms=(lamp,)) for lamp in lamps)
    scenario = Scenario(instructions=" ".join(w.text for w in goals), opening=f"Hello! {goals[0].text}", goals=goals)
    return Task(
        id=task_id,
        domain="toy",
        split=split,
        family=family,
        difficulty=difficulty,
        scenario=scenario,
        gold=tuple(gold),
    )


DOMAIN = Domain(__name__, build_house, LampTools, generate, ("one", "two"))
