"""The rows of the hotel's database."""

from understudy.records import Record
from understudy.state import State, Table


class Room(Record):
    """A room, and who has it."""

    beds: int
    guest: str = ""
    breakfast: bool = False


class Hotel(State):
    """All rooms, by number."""

    rooms: Table[Room]
