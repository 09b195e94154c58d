"""The rows of the hotel's database."""

from understudy.core.records import Record
from understudy.envs.state import State, Table


class Room(Record):
    """A room. `guest` is empty if the room is free."""

    beds: int
    guest: str = ""
    breakfast: bool = False


class Hotel(State):
    """All rooms, by number."""

    rooms: Table[Room]
