"""The tools of the reception. Each public method is a tool, and its docstring is the description for the model."""

from typing import Literal

from hotel.state import Hotel, Room
from understudy.core.errors import ToolError
from understudy.envs.tools import Toolkit


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

    def free_room(self, number: str, guest: str) -> Room:
        """Give back a room, for the guest who has it."""
        room = self.get_room(number)
        if room.guest != guest:
            raise ToolError(f"room {number} is not {guest}'s", "forbidden")
        self._state.rooms[number] = room.replace(guest="", breakfast=False)
        return self._state.rooms[number]
