"""A domain in one file: a hotel, whose guests book rooms and cancel stays. See docs/database.md."""

import random
from typing import Literal

from understudy import Domain, Record, Scenario, State, Table, Task, ToolError, Toolkit, UserGoal, gold_call, gold_text


class Room(Record):
    """A room. `guest` is empty if the room is free."""

    beds: int
    guest: str = ""
    breakfast: bool = False


class Hotel(State):
    """All rooms, by number."""

    rooms: Table[Room]


def build_world() -> Hotel:
    """Return 90 rooms, of which every second is occupied."""
    return Hotel(rooms={str(n): Room(beds=1 + n % 3, guest=f"Guest {n}" if n % 2 else "") for n in range(90)})


class HotelTools(Toolkit):
    """The agent's tools."""

    _state: Hotel

    def get_room(self, number: str) -> Room:
        """Look at a room."""
        if number not in self._state.rooms:
            raise ToolError(f"there is no room {number}")
        return self._state.rooms[number]

    def book_room(self, number: str, guest: str, board: Literal["none", "breakfast"] = "none") -> Room:
        """Book a free room for a guest."""
        room = self.get_room(number)
        if room.guest:
            raise ToolError(f"room {number} is taken")
        self._state.rooms[number] = room.replace(guest=guest, breakfast=board == "breakfast")
        return self._state.rooms[number]

    def cancel_stay(self, number: str, guest: str) -> Room:
        """Cancel the stay of the guest who has a room."""
        room = self.get_room(number)
        if room.guest != guest:
            raise ToolError(f"room {number} is not {guest}'s", "forbidden")
        self._state.rooms[number] = room.replace(guest="", breakfast=False)
        return self._state.rooms[number]


def book(rng: random.Random) -> Task:
    """Return a task to book a free room. Only a medium task has breakfast."""
    number, guest = str(rng.randrange(0, 90, 2)), rng.choice(["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn"])
    board = rng.choice(["none", "breakfast"])
    text = f"Please book room {number} for {guest}" + (", with breakfast." if board == "breakfast" else ".")
    goal = UserGoal(text=text, required_terms=(number, guest, *(["breakfast"] if board == "breakfast" else [])))
    return Task(
        difficulty="easy" if board == "none" else "medium",
        scenario=Scenario(instructions=text, opening=f"Hello! {text}", goals=(goal,)),
        gold=(
            gold_call("get_room", number=number),
            gold_text(f"I will book room {number} for {guest}, board: {board}. Shall I go ahead?"),
            gold_call("book_room", number=number, guest=guest, board=board),
            gold_text("That is done."),
        ),
    )


def cancel(rng: random.Random) -> Task:
    """Return a task to cancel the stay of a guest."""
    number = str(rng.randrange(1, 90, 2))
    text = f"I am Guest {number}, and I have to leave: please cancel my stay in room {number}."
    goal = UserGoal(text=text, required_terms=(number,))
    return Task(
        scenario=Scenario(instructions=text, opening=f"Hello! {text}", goals=(goal,)),
        gold=(
            gold_call("get_room", number=number),
            gold_text(f"I will cancel the stay of Guest {number} in room {number}. Shall I go ahead?"),
            gold_call("cancel_stay", number=number, guest=f"Guest {number}"),
            gold_text("That is done."),
        ),
    )


POLICY = """
You work at the reception of a hotel.

- Look at a room before you book it or cancel a stay in it.
- Before each change, tell the guest what you will do and ask whether to go ahead. One yes covers one change.
- A room that is taken cannot be booked, and only the guest who has a room can cancel the stay.
- Settle all that the guest wants. A message is either tool calls or a text.
"""

DOMAIN = Domain(__name__, build_world, HotelTools, {"book": book, "cancel": cancel}, policy=POLICY)
