"""Checks and changes that the airline's tools share: access to reservations, offers of searches, payments, seats."""

from collections.abc import Sequence
from decimal import Decimal

from understudy.core.errors import ToolError
from understudy.core.records import Record
from understudy.domains.airline.itineraries import day_key, list_flown, make_offer
from understudy.domains.airline.policy_rules import COOLING_OFF
from understudy.domains.airline.state import AirlineState, Cabin, Customer, Reservation, Trip
from understudy.domains.authoring.customer_toolkit import CustomerToolkit
from understudy.domains.authoring.money import Money
from understudy.domains.authoring.payments import apply_charge
from understudy.envs.state import State


class AirlineCustomerSummary(Record):
    """The customer who was found."""

    name: str
    level: str
    reservations: tuple[str, ...]


class AirlineActionResult(Record):
    """The result of a change."""

    status: str
    reservation: str = ""
    certificate: str = ""
    refund: Money | None = None
    charge: Money | None = None


class AirlineToolsBase(CustomerToolkit[Customer]):
    """Base of the airline's tools, without tools of its own."""

    _state: AirlineState

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._checked: set[str] = set()
        self._offered: set[tuple[tuple[str, ...], str, Cabin]] = set()

    def _identify(self, email: str, unknown: str) -> AirlineCustomerSummary:
        customer = self._find(email, unknown)
        return AirlineCustomerSummary(name=customer.name, level=customer.level, reservations=customer.reservations)

    def _reservation(self, reservation_id: str) -> Reservation:
        return self._own("reservation", reservation_id, self._customer().reservations, self._state.reservations)

    def _readable_reservation(self, reservation_id: str) -> Reservation:
        """Return a reservation that was read and is not cancelled. Raise `ToolError` otherwise."""
        reservation = self._reservation(reservation_id)
        if reservation_id not in self._read:
            raise ToolError(f"read reservation {reservation_id} first")
        if reservation.cancelled:
            raise ToolError(f"reservation {reservation_id} is cancelled")
        return reservation

    def _upcoming_reservation(self, reservation_id: str) -> Reservation:
        """Return a reservation that was read, is not cancelled, and of which no flight has departed."""
        reservation = self._readable_reservation(reservation_id)
        self._validate_not_flown(reservation.trips)
        return reservation

    def _validate_not_flown(self, trips: Sequence[Trip]) -> None:
        for flight, date, status in list_flown(self._state, trips):
            raise ToolError(f"flight {flight} of {date} has {status}")

    def _validate_recent(self, reservation: Reservation, what: str) -> None:
        if reservation.age > COOLING_OFF:
            raise ToolError(
                f"reservation {reservation.id} was booked on {reservation.booked}, more than 24 hours ago; {what}"
            )

    def _trip(self, flights: Sequence[str], date: str, cabin: Cabin, passenger_count: int) -> Trip:
        """Return a trip of flights that a search has offered and that have seats for all passengers."""
        key, what = (tuple(flights), date, cabin), f"{' and '.join(flights)} on {date} in {cabin}"
        if key not in self._offered:
            raise ToolError(f"no search has offered {what}; search first")
        found = make_offer(self._state, flights, date, cabin)
        assert found is not None
        if found.seats == "sold out" or found.seats < passenger_count:
            left = (
                "is sold out"
                if found.seats == "sold out"
                else f"has {found.seats} seats for {passenger_count} passengers"
            )
            raise ToolError(f"{what} {left}")
        first, last = self._state.flights[flights[0]], self._state.flights[flights[-1]]
        return Trip(date=date, route=f"{first.origin}-{last.destination}", flights=tuple(flights), fare=found.fare)

    def _validate_order(self, trips: Sequence[Trip]) -> None:
        """Raise `ToolError` unless the return departs after the outbound arrives."""
        if len(trips) > 1:
            out, back = trips
            arrives = f"{out.date} {self._state.flights[out.flights[-1]].arrives}"
            departs = f"{back.date} {self._state.flights[back.flights[0]].departs}"
            if departs <= arrives:
                raise ToolError(f"the return on {departs} would be before the outbound arrives on {arrives}")

    def _take_seats(self, trips: Sequence[Trip], cabin: Cabin, passenger_count: int) -> None:
        """Take seats. A negative number of passengers returns them."""
        for key in (day_key(flight, trip.date) for trip in trips for flight in trip.flights):
            day = self._state.days[key]
            place = day.cabins[cabin]
            cabins = {**day.cabins, cabin: place.replace(seats=place.seats - passenger_count)}
            self._state.days[key] = day.replace(cabins=cabins)

    def _settle(self, reservation: Reservation, amount: Decimal, payment_id: str, status: str) -> AirlineActionResult:
        """Charge an amount to the given payment method, by default the reservation's. A negative amount is a refund."""
        if amount < 0:
            return self._refund(reservation, -amount, payment_id, status)
        payment_id, charged = payment_id or reservation.payment, dict(reservation.charged)
        self._charge(payment_id, amount)
        if amount and payment_id != reservation.payment:
            charged[payment_id] = charged.get(payment_id, Decimal("0.00")) + amount
        self._save(reservation.replace(paid=reservation.paid + amount, charged=charged))
        return AirlineActionResult(status=status, charge=amount or None)

    def _refund(self, reservation: Reservation, amount: Decimal, payment_id: str, status: str) -> AirlineActionResult:
        """Refund an amount to the payment methods that have paid, the last one first.

        What a certificate has paid is refunded before that, and lost. Raise `ToolError` if `payment_id` names a
        payment method that has paid nothing.
        """
        shares = reservation.shares
        if payment_id and payment_id not in shares:
            raise ToolError(f"{payment_id} has not paid for reservation {reservation.id}; refunds go to what has paid")
        certificate = reservation.certificate - min(amount, reservation.certificate)
        refund = left = amount - (reservation.certificate - certificate)
        for name, share in reversed(shares.items()):
            back = min(left, share)
            self._charge(name, -back)
            shares[name] -= back
            left -= back
        charged = {name: share for name, share in shares.items() if share and name != reservation.payment}
        self._save(reservation.replace(paid=reservation.paid - amount, certificate=certificate, charged=charged))
        return AirlineActionResult(status=status, refund=refund)

    def _charge(self, payment_id: str, amount: Decimal) -> None:
        customer = self._customer()
        if payment_id.startswith("certificate"):
            raise ToolError(f"{payment_id} pays for new bookings only; a card or a gift card is needed here")
        payments = apply_charge(customer.payments, payment_id, amount)
        if payments != customer.payments:
            self._save_customer(customer.replace(payments=payments))

    def _save(self, reservation: Reservation) -> None:
        self._state.reservations[reservation.id] = reservation
