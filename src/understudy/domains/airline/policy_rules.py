"""The numbers of the airline's policy. Amounts are in US dollars."""

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal

from understudy.domains.airline.state import Cabin, Customer, MembershipLevel, Reservation

MAX_PASSENGERS, MAX_BAGS = 4, 5
"""Largest number of passengers in a reservation, and of checked bags per passenger."""
BAG_PRICE, INSURANCE_PRICE = Decimal("40.00"), Decimal("30.00")
"""Price of a checked bag that is not free, and of the insurance per passenger."""
COOLING_OFF = timedelta(hours=24)
"""Time after booking in which any reservation can be cancelled or insured."""
MIN_COMPENSATED_DELAY = 180
"""Shortest delay in minutes that is compensated."""
MAX_NAME_EDITS = 3
"""The most letters of a name that can be corrected."""

_OF_CABIN: Mapping[Cabin, int] = {"basic economy": 0, "economy": 1, "business": 2}
_OF_LEVEL: Mapping[MembershipLevel, int] = {"regular": 0, "silver": 1, "gold": 2}


def free_bags(level: MembershipLevel, cabin: Cabin, passengers: int) -> int:
    """Return the number of free checked bags of a reservation."""
    return passengers * (_OF_CABIN[cabin] + _OF_LEVEL[level])


def bags_price(customer: Customer, reservation: Reservation, more: int) -> Decimal:
    """Return the price of further checked bags. Free bags stay free."""
    free = free_bags(customer.level, reservation.cabin, len(reservation.passengers))
    return BAG_PRICE * (max(0, reservation.bags + more - free) - max(0, reservation.bags - free))


def compensation(reservation: Reservation, *, cancelled: bool) -> Decimal:
    """Return the compensation for a cancelled or long-delayed flight."""
    return Decimal("120.00" if cancelled else "60.00") * len(reservation.passengers)


def edit_distance(name: str, other: str) -> int:
    """Return the edit distance of two names (Levenshtein, 1966)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(name, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]
