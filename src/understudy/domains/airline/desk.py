"""The desk behind the tools: whom it serves, what has been read, what may change, and what moves money and seats."""

from collections.abc import Sequence
from decimal import Decimal

from understudy.domains.airline.itineraries import day_key, flown, offer
from understudy.domains.airline.state import AirlineState, Cabin, Customer, Reservation, Trip
from understudy.domains.airline.terms import COOLING_OFF
from understudy.domains.clerk import Clerk
from understudy.domains.money import Money
from understudy.domains.wallet import charged
from understudy.errors import ToolError
from understudy.records import Record
from understudy.state import State


class Found(Record):
    """Who was found."""

    name: str
    level: str
    reservations: tuple[str, ...]


class Done(Record):
    """What a change has led to."""

    status: str
    reservation: str = ""
    certificate: str = ""
    refund: Money | None = None
    charge: Money | None = None


class Desk(Clerk[Customer]):
    """What several tools need. It has no tools of its own."""

    _state: AirlineState

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._checked: set[str] = set()
        self._offered: set[tuple[tuple[str, ...], str, Cabin]] = set()

    def _identify(self, email: str, unknown: str) -> Found:
        customer = self._find(email, unknown)
        return Found(name=customer.name, level=customer.level, reservations=customer.reservations)

    def _reservation(self, reservation_id: str) -> Reservation:
        return self._own("reservation", reservation_id, self._customer().reservations, self._state.reservations)

    def _valid(self, reservation_id: str) -> Reservation:
        """A reservation that has been read and is not cancelled."""
        reservation = self._reservation(reservation_id)
        if reservation_id not in self._read:
            raise ToolError(f"read reservation {reservation_id} first")
        if reservation.cancelled:
            raise ToolError(f"reservation {reservation_id} is cancelled")
        return reservation

    def _ahead(self, reservation_id: str) -> Reservation:
        """One that, moreover, nobody has begun to fly."""
        reservation = self._valid(reservation_id)
        self._not_flown(reservation.trips)
        return reservation

    def _not_flown(self, trips: Sequence[Trip]) -> None:
        for flight, date, status in flown(self._state, trips):
            raise ToolError(f"flight {flight} of {date} has {status}")

    def _recent(self, reservation: Reservation, what: str) -> None:
        if reservation.age > COOLING_OFF:
            raise ToolError(
                f"reservation {reservation.id} was booked on {reservation.booked}, more than 24 hours ago; {what}"
            )

    def _trip(self, flights: Sequence[str], date: str, cabin: Cabin, heads: int) -> Trip:
        """Flights that a search has offered, with seats for all passengers."""
        key, what = (tuple(flights), date, cabin), f"{' and '.join(flights)} on {date} in {cabin}"
        if key not in self._offered:
            raise ToolError(f"no search has offered {what}; search first")
        found = offer(self._state, flights, date, cabin)
        assert found is not None
        if found.seats == "sold out" or found.seats < heads:
            left = "is sold out" if found.seats == "sold out" else f"has {found.seats} seats for {heads} passengers"
            raise ToolError(f"{what} {left}")
        first, last = self._state.flights[flights[0]], self._state.flights[flights[-1]]
        return Trip(date=date, route=f"{first.origin}-{last.destination}", flights=tuple(flights), fare=found.fare)

    def _in_order(self, trips: Sequence[Trip]) -> None:
        """The trip back departs after the trip out has arrived."""
        if len(trips) > 1:
            out, back = trips
            arrives = f"{out.date} {self._state.flights[out.flights[-1]].arrives}"
            departs = f"{back.date} {self._state.flights[back.flights[0]].departs}"
            if departs <= arrives:
                raise ToolError(f"the return on {departs} would be before the outbound arrives on {arrives}")

    def _take(self, trips: Sequence[Trip], cabin: Cabin, heads: int) -> None:
        """Take seats; a negative number of heads gives them back."""
        for key in (day_key(flight, trip.date) for trip in trips for flight in trip.flights):
            day = self._state.days[key]
            place = day.cabins[cabin]
            cabins = {**day.cabins, cabin: place.replace(seats=place.seats - heads)}
            self._state.days[key] = day.replace(cabins=cabins)

    def _settle(self, reservation: Reservation, amount: Decimal, payment_id: str, status: str) -> Done:
        """Charge an amount to the payment given, or else the reservation's; a negative one is paid back."""
        self._charge(payment_id or reservation.payment, amount)
        self._save(reservation.replace(paid=reservation.paid + amount))
        return Done(status=status, charge=amount if amount > 0 else None, refund=-amount if amount < 0 else None)

    def _charge(self, payment_id: str, amount: Decimal) -> None:
        customer = self._customer()
        if payment_id.startswith("certificate"):
            raise ToolError(f"{payment_id} pays for new bookings only; a card or a gift card is needed here")
        payments = charged(customer.payments, payment_id, amount)
        if payments != customer.payments:
            self._save_customer(customer.replace(payments=payments))

    def _save(self, reservation: Reservation) -> None:
        self._state.reservations[reservation.id] = reservation
