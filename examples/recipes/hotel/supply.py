"""The hotel's endless supply of tasks; a task is a function of its id, and splits share no room."""

import random
from collections.abc import Iterator, Sequence

from understudy.domains.base import interleave
from understudy.messages import Message, ToolCall
from understudy.tasks import DIFFICULTIES, SPLITS, Difficulty, Scenario, Split, Task, Wish

FAMILIES = ("book", "free")
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal")


def generate(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Book a free room, with breakfast where it is not easy; or give back one that is taken."""
    order = random.Random(f"{split}/{seed}").sample(range(15), 15)
    for family, difficulty, index in interleave(families, difficulties):
        identity = f"hotel/{split}/{seed}/{family}/{difficulty}/{index}"
        choice = random.Random(identity)
        place = order[(3 * index + DIFFICULTIES.index(difficulty)) % 15]
        number = 30 * SPLITS.index(split) + place + 15 * (family == "free")
        task = booking if family == "book" else giving_back
        yield task(identity, split, difficulty, str(number), choice)


def booking(identity: str, split: Split, difficulty: Difficulty, number: str, choice: random.Random) -> Task:
    """Somebody wants a room."""
    guest, board = choice.choice(NAMES), "none" if difficulty == "easy" else "breakfast"
    says = f"Please book room {number} for {guest}" + (", with breakfast." if board == "breakfast" else ".")
    asks = f"I will book room {number} for {guest}, board: {board}. Shall I go ahead?"
    call = ToolCall(name="book_room", arguments={"number": number, "guest": guest, "board": board})
    names = (number, guest) if board == "none" else (number, guest, "breakfast")
    return task_of(identity, split, "book", difficulty, Wish(says=says, names=names), asks, call)


def giving_back(identity: str, split: Split, difficulty: Difficulty, number: str, _: random.Random) -> Task:
    """A guest leaves."""
    guest = f"Guest {number}"
    asks = f"I will give back room {number} for {guest}. Shall I go ahead?"
    call = ToolCall(name="free_room", arguments={"number": number, "guest": guest})
    wish = Wish(says=f"I am {guest}, and I leave: please take back room {number}.", names=(number,))
    return task_of(identity, split, "free", difficulty, wish, asks, call)


def task_of(
    identity: str, split: Split, family: str, difficulty: Difficulty, wish: Wish, asks: str, call: ToolCall
) -> Task:
    """The task, with its gold turns: look, ask, do, tell."""
    look = ToolCall(name="get_room", arguments={"number": call.arguments["number"]})
    gold = (
        Message(role="assistant", tool_calls=(look,)),
        Message(role="assistant", content=asks),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="assistant", content="That is done."),
    )
    scenario = Scenario(instructions=wish.says, opening=f"Hello! {wish.says}", wishes=(wish,))
    return Task(
        id=identity,
        domain="hotel",
        split=split,
        family=family,
        difficulty=difficulty,
        scenario=scenario,
        gold=gold,
    )
