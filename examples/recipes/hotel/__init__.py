"""A domain: the reception of a hotel, where guests book and return rooms. A recipe: see docs/extending.md."""

from hotel.state import Hotel, Room
from hotel.task_generator import FAMILIES, generate
from hotel.tools import HotelTools
from understudy.envs.domains.base import Domain


def build_world() -> Hotel:
    """Return 90 rooms, 30 for each split. In each split the last 15 are occupied."""
    return Hotel(rooms={str(n): Room(beds=1 + n % 2, guest=f"Guest {n}" if n % 30 >= 15 else "") for n in range(90)})


DOMAIN = Domain(__name__, build_world, HotelTools, generate, FAMILIES)
