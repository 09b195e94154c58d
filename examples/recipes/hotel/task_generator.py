"""Generator of any number of tasks for the hotel. A task's id determines its content, and splits share no room."""

import random
from collections.abc import Iterator, Sequence

from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import DIFFICULTIES, SPLITS, Difficulty, Scenario, Split, Task, UserGoal
from understudy.envs.domains.base import interleave_families

FAMILIES = ("book", "free")
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal")


def generate(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Yield tasks to book a free room and tasks to return an occupied one. Easy bookings have no breakfast."""
    order = random.Random(f"{split}/{seed}").sample(range(15), 15)
    for family, difficulty, index in interleave_families(families, difficulties):
        identity = f"hotel/{split}/{seed}/{family}/{difficulty}/{index}"
        choice = random.Random(identity)
        place = order[(3 * index + DIFFICULTIES.index(difficulty)) % 15]
        number = 30 * SPLITS.index(split) + place + 15 * (family == "free")
        task = make_booking_task if family == "book" else make_checkout_task
        yield task(identity, split, difficulty, str(number), choice)


def make_booking_task(task_id: str, split: Split, difficulty: Difficulty, number: str, choice: random.Random) -> Task:
    """Return a task to book a room."""
    guest, board = choice.choice(NAMES), "none" if difficulty == "easy" else "breakfast"
    says = f"Please book room {number} for {guest}" + (", with breakfast." if board == "breakfast" else ".")
    asks = f"I will book room {number} for {guest}, board: {board}. Shall I go ahead?"
    call = ToolCall(name="book_room", arguments={"number": number, "guest": guest, "board": board})
    names = (number, guest) if board == "none" else (number, guest, "breakfast")
    return make_task(task_id, split, "book", difficulty, UserGoal(text=says, required_terms=names), asks, call)


def make_checkout_task(task_id: str, split: Split, difficulty: Difficulty, number: str, _: random.Random) -> Task:
    """Return a task to return a room."""
    guest = f"Guest {number}"
    asks = f"I will give back room {number} for {guest}. Shall I go ahead?"
    call = ToolCall(name="free_room", arguments={"number": number, "guest": guest})
    goal = UserGoal(text=f"I am {guest}, and I leave: please take back room {number}.", required_terms=(number,))
    return make_task(task_id, split, "free", difficulty, goal, asks, call)


def make_task(
    task_id: str, split: Split, family: str, difficulty: Difficulty, user_goal: UserGoal, proposal: str, call: ToolCall
) -> Task:
    """Return the task. Its gold turns read the room, ask for consent, change the room and report it."""
    look = ToolCall(name="get_room", arguments={"number": call.arguments["number"]})
    gold = (
        Message(role="assistant", tool_calls=(look,)),
        Message(role="assistant", content=proposal),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="assistant", content="That is done."),
    )
    scenario = Scenario(instructions=user_goal.text, opening=f"Hello! {user_goal.text}", goals=(user_goal,))
    return Task(
        id=task_id,
        domain="hotel",
        split=split,
        family=family,
        difficulty=difficulty,
        scenario=scenario,
        gold=gold,
    )
