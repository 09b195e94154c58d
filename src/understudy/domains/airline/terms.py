"""What the airline's policy says in numbers. Amounts are US dollars."""

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal

from understudy.domains.airline.state import Cabin, Customer, Level, Reservation

MOST_PASSENGERS, MOST_BAGS = 4, 5
"""Passengers of a reservation; checked bags of a passenger."""
BAG, INSURANCE = Decimal("40.00"), Decimal("30.00")
"""Each checked bag that is not free; insurance of each passenger."""
COOLING_OFF = timedelta(hours=24)
"""How long after booking a reservation may be cancelled or insured."""
LONG_DELAY = 180
"""Minutes from which a delay is compensated."""
MISSPELT = 3
"""How many letters of a passenger's name may be corrected."""

_OF_CABIN: Mapping[Cabin, int] = {"basic economy": 0, "economy": 1, "business": 2}
_OF_LEVEL: Mapping[Level, int] = {"regular": 0, "silver": 1, "gold": 2}


def free_bags(level: Level, cabin: Cabin, passengers: int) -> int:
    """How many checked bags of a reservation are free."""
    return passengers * (_OF_CABIN[cabin] + _OF_LEVEL[level])


def bags_price(customer: Customer, reservation: Reservation, more: int) -> Decimal:
    """What further checked bags cost. A bag once free stays free."""
    free = free_bags(customer.level, reservation.cabin, len(reservation.passengers))
    return BAG * (max(0, reservation.bags + more - free) - max(0, reservation.bags - free))


def compensation(reservation: Reservation, *, cancelled: bool) -> Decimal:
    """What the passengers of a flight get that was cancelled or long delayed."""
    return Decimal("120.00" if cancelled else "60.00") * len(reservation.passengers)


def misspelt(name: str, other: str) -> int:
    """How many letters have to be changed, added or left out to get from one name to the other (Levenshtein, 1966)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(name, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]
