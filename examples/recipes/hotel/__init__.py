"""Hotel: the reception of a small hotel, where rooms are booked and given back. A recipe: see docs/extending.md."""

from hotel.state import Hotel, Room
from hotel.supply import FAMILIES, generate
from hotel.tools import HotelTools
from understudy.domains.base import Domain


def world() -> Hotel:
    """Ninety rooms, thirty for each split; in each split the upper fifteen are taken."""
    return Hotel(rooms={str(n): Room(beds=1 + n % 2, guest=f"Guest {n}" if n % 30 >= 15 else "") for n in range(90)})


DOMAIN = Domain(__name__, world, HotelTools, generate, FAMILIES)
