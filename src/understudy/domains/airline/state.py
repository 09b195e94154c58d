"""The airline's database. Tools return its records, so fields with default values are left out.

All times are in Denver time, as in "2025-05-15 10:00"; a date alone is "2025-05-15".
"""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

from understudy.core.records import Record
from understudy.domains.authoring.money import Money
from understudy.domains.authoring.payments import Payment
from understudy.envs.state import State, Table

NOW = datetime(2025, 5, 15, 10)
"""The current time of all tasks."""
TODAY = f"{NOW:%Y-%m-%d}"

Cabin = Literal["basic economy", "economy", "business"]
MembershipLevel = Literal["regular", "silver", "gold"]
TripDirection = Literal["outbound", "return"]
FlightStatus = Literal["scheduled", "on time", "delayed", "departed", "landed", "cancelled"]
Reason = Literal["change of plans", "illness", "flight cancelled"]


class Airport(Record):
    """An airport, by its code."""

    city: str


class Flight(Record):
    """A daily flight, by its number."""

    origin: str
    destination: str
    departs: str
    arrives: str

    @property
    def route(self) -> str:
        """The route, as in "DEN-BOS"."""
        return f"{self.origin}-{self.destination}"


class CabinInventory(Record):
    """A cabin of a flight on one date: seats left, and the fare per passenger."""

    seats: int
    fare: Money


class FlightDate(Record):
    """A flight on one date; the key is "KA210 2025-05-20"."""

    cabins: dict[Cabin, CabinInventory]
    status: FlightStatus = "scheduled"
    delay: int = 0
    """The delay in minutes."""


class Customer(Record):
    """A customer, by email address."""

    name: str
    address: str
    """House number, street, city and zip, as in "12 Oak Street, Denver 80202"."""
    payments: dict[str, Payment]
    """Credit cards, gift cards and travel certificates."""
    reservations: tuple[str, ...]
    level: MembershipLevel = "regular"


class Trip(Record):
    """One direction of a reservation: a flight, or two connecting flights on the same date."""

    date: str
    route: str
    flights: tuple[str, ...]
    fare: Money
    """The fare per passenger."""


class Reservation(Record):
    """A reservation, by its code: an outbound trip and perhaps a return, in one cabin, for up to four passengers."""

    id: str
    booked: str
    cabin: Cabin
    trips: tuple[Trip, ...]
    passengers: tuple[str, ...]
    payment: str
    """The card or gift card that was charged."""
    paid: Money
    """The total: fares, bags and insurance."""
    bags: int = 0
    """Checked bags of all passengers."""
    insurance: bool = False
    certificate: Money = Decimal("0.00")
    """The part of `paid` that a travel certificate covered."""
    charged: dict[str, Money] = {}
    """The parts of `paid` that other cards and gift cards than `payment` paid for changes."""
    cancelled: Reason | None = None
    """The reason for the cancellation."""
    compensated: str = ""
    """The flight for which compensation was given."""

    @property
    def flights(self) -> tuple[tuple[str, str], ...]:
        """The number and the date of each flight."""
        return tuple((flight, trip.date) for trip in self.trips for flight in trip.flights)

    @property
    def shares(self) -> dict[str, Decimal]:
        """What each card and gift card has paid, in the order in which they were first charged."""
        others = sum(self.charged.values(), self.certificate)
        return {self.payment: max(Decimal("0.00"), self.paid - others), **self.charged}

    @property
    def age(self) -> timedelta:
        """The time since booking."""
        return NOW - datetime.fromisoformat(self.booked)


class AirlineState(State):
    """All tables of the airline. `customer` is the current customer; `transferred` is whether they were transferred."""

    customers: Table[Customer]
    reservations: Table[Reservation]
    flights: Table[Flight]
    days: Table[FlightDate]
    airports: Table[Airport]
    customer: str = ""
    transferred: bool = False
