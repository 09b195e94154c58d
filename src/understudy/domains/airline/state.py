"""The airline's database. Records are also what tools show, so they are short: fields with default values are left out.

All times are those of Denver, as in "2025-05-15 10:00"; a date alone is "2025-05-15".
"""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

from understudy.domains.money import Money
from understudy.domains.wallet import Payment
from understudy.records import Record
from understudy.state import State, Table

NOW = datetime(2025, 5, 15, 10)
"""The airline's clock: it stands still."""
TODAY = f"{NOW:%Y-%m-%d}"

Cabin = Literal["basic economy", "economy", "business"]
Level = Literal["regular", "silver", "gold"]
Way = Literal["outbound", "return"]
FlightStatus = Literal["scheduled", "on time", "delayed", "departed", "landed", "cancelled"]
Reason = Literal["change of plans", "illness", "flight cancelled"]


class Airport(Record):
    """An airport, by its code."""

    city: str


class Flight(Record):
    """A flight of every day, by its number."""

    origin: str
    destination: str
    departs: str
    arrives: str

    @property
    def route(self) -> str:
        """As in "DEN-BOS"."""
        return f"{self.origin}-{self.destination}"


class Place(Record):
    """What a cabin of a flight offers on one date, for each passenger."""

    seats: int
    fare: Money


class Day(Record):
    """A flight on one date; the key is "KA210 2025-05-20"."""

    cabins: dict[Cabin, Place]
    status: FlightStatus = "scheduled"
    delay: int = 0
    """Minutes."""


class Customer(Record):
    """A customer, by e-mail address."""

    name: str
    address: str
    """Street and number, city and zip, as in "12 Oak Street, Denver 80202"."""
    payments: dict[str, Payment]
    """Credit cards, gift cards and travel certificates."""
    reservations: tuple[str, ...]
    level: Level = "regular"


class Trip(Record):
    """One way of a reservation: a flight, or two with a change of planes on the same date."""

    date: str
    route: str
    flights: tuple[str, ...]
    fare: Money
    """What each passenger paid."""


class Reservation(Record):
    """A reservation by its code: the trip out and perhaps the one back, in one cabin, for some passengers."""

    id: str
    booked: str
    cabin: Cabin
    trips: tuple[Trip, ...]
    passengers: tuple[str, ...]
    payment: str
    """The card or gift card that paid."""
    paid: Money
    """All in all: fares, bags and insurance."""
    bags: int = 0
    """Checked bags of all passengers together."""
    insurance: bool = False
    certificate: Money = Decimal("0.00")
    """The part of it that a travel certificate paid."""
    cancelled: Reason | None = None
    """Why it was cancelled."""
    compensated: str = ""
    """The flight for which compensation was given."""

    @property
    def flights(self) -> tuple[tuple[str, str], ...]:
        """Number and date of every flight."""
        return tuple((flight, trip.date) for trip in self.trips for flight in trip.flights)

    @property
    def age(self) -> timedelta:
        """How long ago it was booked."""
        return NOW - datetime.fromisoformat(self.booked)


class AirlineState(State):
    """Customers by e-mail, reservations by code, flights by number, their dates, airports by code; whom the agent
    talks to, and whether it has handed over."""

    customers: Table[Customer]
    reservations: Table[Reservation]
    flights: Table[Flight]
    days: Table[Day]
    airports: Table[Airport]
    customer: str = ""
    transferred: bool = False
