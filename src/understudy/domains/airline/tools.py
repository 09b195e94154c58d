"""The airline agent's tools. They act on the identified customer's data and reject what the policy forbids."""

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Literal

from understudy.core.errors import ToolError
from understudy.core.records import Record
from understudy.domains.airline.itineraries import (
    FlightOffer,
    day_key,
    find_day,
    find_paths,
    list_cancelled,
    list_flown,
    list_offers,
    make_offer,
)
from understudy.domains.airline.policy_rules import (
    COOLING_OFF,
    INSURANCE_PRICE,
    MAX_BAGS,
    MAX_NAME_EDITS,
    MAX_PASSENGERS,
    MIN_COMPENSATED_DELAY,
    bags_price,
    compensation,
    edit_distance,
)
from understudy.domains.airline.state import (
    NOW,
    AirlineState,
    Cabin,
    Customer,
    FlightStatus,
    Reason,
    Reservation,
    Trip,
    TripDirection,
)
from understudy.domains.airline.world import draw_reservation_code, set_price
from understudy.domains.authoring.customer_toolkit import CustomerToolkit
from understudy.domains.authoring.money import Money
from understudy.domains.authoring.payments import Payment, apply_charge, get_balance
from understudy.envs.calculator import evaluate_expression
from understudy.envs.state import State

Date = Annotated[str, "like 2025-05-20"]
Flights = Annotated[tuple[str, ...], "one flight number, or two for a connection"]
Code = Annotated[str, "airport code"]


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


class FlightStatusReport(Record):
    """A flight on a date."""

    flight: str
    route: str
    departs: str
    arrives: str
    status: FlightStatus
    delay: int = 0
    """Minutes."""


class AirlineTools(CustomerToolkit[Customer]):
    """The tools of airline support."""

    _state: AirlineState

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._checked: set[str] = set()
        """Keys of the flights and dates whose status was read."""
        self._offered: set[tuple[tuple[str, ...], str, Cabin]] = set()
        """Flights, date and cabin of the offers that searches have returned."""

    def find_customer(self, email: str) -> AirlineCustomerSummary:
        """Find the customer by email. Do this first."""
        return self._identify(email.strip().casefold(), f"no customer has the email {email!r}")

    def find_customer_by_name(self, name: str, zip: str) -> AirlineCustomerSummary:
        """Find the customer by full name and zip code, if the email is unknown."""
        name, zip = " ".join(name.split()).casefold(), zip.strip()
        customers = self._state.customers.items()
        emails = (e for e, c in customers if c.name.casefold() == name and c.address.endswith(f" {zip}"))
        return self._identify(next(emails, ""), f"no customer has the name {name!r} and the zip {zip!r}")

    def get_customer(self) -> Customer:
        """Get the customer's address, membership level, payment methods and reservations."""
        return self._customer()

    def get_reservation(self, reservation_id: str) -> Reservation:
        """Get one reservation."""
        reservation = self._reservation(reservation_id)
        self._read.add(reservation_id)
        return reservation

    def list_airports(self) -> dict[str, str]:
        """List the codes and cities of all airports."""
        self._customer()
        return {code: airport.city for code, airport in self._state.airports.items()}

    def search_direct(self, origin: Code, destination: Code, date: Date, cabin: Cabin) -> list[FlightOffer]:
        """Search direct flights: times, fare per passenger, seats left."""
        return self._search(origin, destination, date, cabin, 0)

    def search_one_stop(self, origin: Code, destination: Code, date: Date, cabin: Cabin) -> list[FlightOffer]:
        """Search connections of two flights: times, fare per passenger, seats left."""
        return self._search(origin, destination, date, cabin, 1)

    def get_flight_status(self, flight: Annotated[str, "like KA210"], date: Date) -> FlightStatusReport:
        """Get the status of a flight on a date. Delays are in minutes."""
        self._customer()
        day = find_day(self._state, flight, date)
        if day is None:
            raise ToolError(f"there is no flight {flight!r} on {date!r}")
        self._checked.add(day_key(flight, date))
        plan = self._state.flights[flight]
        times = {"departs": plan.departs, "arrives": plan.arrives}
        return FlightStatusReport(flight=flight, route=plan.route, **times, status=day.status, delay=day.delay)

    def book_flights(
        self,
        flights: Flights,
        date: Date,
        passengers: tuple[str, ...],
        cabin: Cabin,
        payment_id: str,
        return_flights: Flights = (),
        return_date: str = "",
        bags: int = 0,
        insurance: bool = False,
        certificate_id: str = "",
    ) -> AirlineActionResult:
        """Book flights from a search. A certificate is used first; the payment covers the rest."""
        customer, names = self._customer(), _names(passengers)
        if bool(return_flights) != bool(return_date):
            raise ToolError("a round trip needs return_flights and return_date; a one-way trip has neither")
        directions = [(flights, date)] + ([(return_flights, return_date)] if return_flights else [])
        trips = tuple(self._trip(numbers, when, cabin, len(names)) for numbers, when in directions)
        if return_flights and trips[1].route.split("-") != trips[0].route.split("-")[::-1]:
            out, back = (trip.route for trip in trips)
            raise ToolError(f"the return flights have to lead back on the route {out}, not {back}")
        self._validate_order(trips)
        booking = Reservation(
            id=self._new_code(),
            booked=f"{NOW:%Y-%m-%d %H:%M}",
            cabin=cabin,
            trips=trips,
            passengers=names,
            payment=payment_id,
            paid=Decimal(0),
            bags=_bags(bags, len(names)),
            insurance=insurance,
        )
        self._take_seats(trips, cabin, len(names))
        return self._pay(set_price(customer, booking), certificate_id)

    def cancel_reservation(self, reservation_id: str, reason: Reason) -> AirlineActionResult:
        """Cancel a whole reservation and refund what was not paid by certificate."""
        reservation = self._upcoming_reservation(reservation_id)
        self._may_cancel(reservation, reason)
        for payment_id, share in reservation.shares.items():
            self._charge(payment_id, -share)
        self._take_seats(reservation.trips, reservation.cabin, -len(reservation.passengers))
        self._save(reservation.replace(cancelled=reason))
        return AirlineActionResult(status="cancelled", refund=sum(reservation.shares.values(), Decimal("0.00")))

    def change_flights(
        self, reservation_id: str, way: TripDirection, flights: Flights, date: Date, payment_id: str = ""
    ) -> AirlineActionResult:
        """Change the outbound or return trip to flights from a search, with the same route and cabin."""
        reservation = self._readable_reservation(reservation_id)
        index = ("outbound", "return").index(way)
        if index >= len(reservation.trips):
            raise ToolError(f"reservation {reservation_id} has no return trip")
        old, heads = reservation.trips[index], len(reservation.passengers)
        self._validate_not_flown([old])
        _not_basic(reservation)
        new = self._trip(flights, date, reservation.cabin, heads)
        if (new.flights, new.date) == (old.flights, old.date) or new.route != old.route:
            raise ToolError(f"the new flights must be different ones on the route {old.route}")
        trips = tuple(new if trip is old else trip for trip in reservation.trips)
        self._validate_order(trips)
        self._take_seats([old], reservation.cabin, -heads)
        self._take_seats([new], reservation.cabin, heads)
        changed = reservation.replace(trips=trips)
        return self._settle(changed, heads * (new.fare - old.fare), payment_id, "flights changed")

    def change_cabin(
        self, reservation_id: str, cabin: Literal["economy", "business"], payment_id: str = ""
    ) -> AirlineActionResult:
        """Change the cabin of all trips and passengers. Search the same flights in the new cabin first."""
        reservation = self._upcoming_reservation(reservation_id)
        _not_basic(reservation)
        if cabin == reservation.cabin:
            raise ToolError(f"reservation {reservation_id} is already in {cabin}")
        heads, old = len(reservation.passengers), reservation.trips
        trips = tuple(self._trip(trip.flights, trip.date, cabin, heads) for trip in old)
        self._take_seats(old, reservation.cabin, -heads)
        self._take_seats(trips, cabin, heads)
        difference = heads * sum((new.fare - trip.fare for new, trip in zip(trips, old, strict=True)), Decimal("0.00"))
        return self._settle(reservation.replace(trips=trips, cabin=cabin), difference, payment_id, "cabin changed")

    def correct_name(self, reservation_id: str, name: str, new_name: str) -> AirlineActionResult:
        """Correct up to three letters of a passenger's name. `name` is the current name in the reservation."""
        reservation, new_name = self._upcoming_reservation(reservation_id), " ".join(new_name.split())
        if name not in reservation.passengers or new_name in reservation.passengers:
            raise ToolError(f"the passengers are {', '.join(reservation.passengers)}")
        if edit_distance(name.casefold(), new_name.casefold()) > MAX_NAME_EDITS:
            raise ToolError(
                f"{new_name!r} differs from {name!r} in more than {MAX_NAME_EDITS} letters, so it is another passenger"
            )
        names = tuple(new_name if passenger == name else passenger for passenger in reservation.passengers)
        self._save(reservation.replace(passengers=names))
        return AirlineActionResult(status="name corrected")

    def add_bags(
        self, reservation_id: str, bags: Annotated[int, "how many more"], payment_id: str = ""
    ) -> AirlineActionResult:
        """Add checked bags. Charges the reservation's payment unless another card or gift card is given."""
        reservation = self._upcoming_reservation(reservation_id)
        if bags < 1:
            raise ToolError("only one or more bags can be added; bags cannot be removed")
        total = _bags(reservation.bags + bags, len(reservation.passengers))
        price = bags_price(self._customer(), reservation, bags)
        return self._settle(reservation.replace(bags=total), price, payment_id, "bags added")

    def add_insurance(self, reservation_id: str, payment_id: str = "") -> AirlineActionResult:
        """Insure all passengers, within 24 hours of booking."""
        reservation = self._upcoming_reservation(reservation_id)
        if reservation.insurance:
            raise ToolError(f"reservation {reservation_id} is already insured")
        self._validate_recent(reservation, "it can no longer be insured")
        price = INSURANCE_PRICE * len(reservation.passengers)
        return self._settle(reservation.replace(insurance=True), price, payment_id, "insured")

    def issue_certificate(self, reservation_id: str, flight: str) -> AirlineActionResult:
        """Compensate the passengers of a cancelled or long-delayed flight with a travel certificate."""
        reservation = self._readable_reservation(reservation_id)
        _not_basic(reservation)
        amount = self._compensation(reservation, flight)
        customer, certificate = self._customer(), f"certificate_{reservation_id}"
        payments = {**customer.payments, certificate: Payment(balance=amount)}
        self._save_customer(customer.replace(payments=payments))
        self._save(reservation.replace(compensated=flight))
        return AirlineActionResult(status=f"certificate of {amount} issued", certificate=certificate)

    def calculate(self, expression: Annotated[str, "like (121 - 96) * 2"]) -> str:
        """Calculate with numbers, + - * / and parentheses."""
        return evaluate_expression(expression)

    def transfer_to_human(self, summary: str) -> AirlineActionResult:
        """Transfer the customer to a human agent for what no tool can do. This is your last call."""
        self._customer()
        self._state.transferred = True
        return AirlineActionResult(status="transferred")

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
        what = f"{' and '.join(flights)} on {date} in {cabin}"
        if (tuple(flights), date, cabin) not in self._offered:
            raise ToolError(f"no search has offered {what}; search first")
        offer = make_offer(self._state, flights, date, cabin)
        assert offer is not None
        if offer.seats == "sold out":
            raise ToolError(f"{what} is sold out")
        if offer.seats < passenger_count:
            raise ToolError(f"{what} has {offer.seats} seats for {passenger_count} passengers")
        first, last = self._state.flights[flights[0]], self._state.flights[flights[-1]]
        return Trip(date=date, route=f"{first.origin}-{last.destination}", flights=tuple(flights), fare=offer.fare)

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

    def _search(self, origin: str, destination: str, date: str, cabin: Cabin, stops: int) -> list[FlightOffer]:
        self._customer()
        for code in (origin, destination):
            if code not in self._state.airports:
                raise ToolError(f"there is no airport {code!r}; list_airports shows all codes")
        offers = list_offers(self._state, find_paths(self._state, origin, destination, stops), date, cabin)
        self._offered |= {(offer.flights, date, cabin) for offer in offers}
        return offers

    def _new_code(self) -> str:
        """Return the code of the next reservation, independent of other changes."""
        rng = random.Random(f"{self._state.customer}/{len(self._customer().reservations)}")
        return next(
            code for code in iter(lambda: draw_reservation_code(rng), "") if code not in self._state.reservations
        )

    def _pay(self, booking: Reservation, certificate_id: str) -> AirlineActionResult:
        """Pay a new booking. The rest of a certificate is lost."""
        customer, covered = self._customer(), Decimal("0.00")
        if certificate_id:
            balance = get_balance(customer.payments, certificate_id)
            if not certificate_id.startswith("certificate") or balance is None:
                raise ToolError(f"{certificate_id} is not a certificate")
            covered = min(balance, booking.paid)
            remaining = {key: payment for key, payment in customer.payments.items() if key != certificate_id}
            customer = customer.replace(payments=remaining)
        self._save_customer(customer.replace(reservations=(*customer.reservations, booking.id)))
        self._charge(booking.payment, booking.paid - covered)
        self._save(booking.replace(certificate=covered))
        return AirlineActionResult(status="booked", reservation=booking.id, charge=booking.paid - covered)

    def _may_cancel(self, reservation: Reservation, reason: Reason) -> None:
        if reservation.age <= COOLING_OFF or reservation.cabin == "business":
            return
        if reason == "flight cancelled":
            if not list_cancelled(self._state, reservation):
                raise ToolError(f"no flight of reservation {reservation.id} was cancelled by the airline")
            return
        if reason != "illness" or not reservation.insurance:
            covers = "and the insurance only covers illness" if reservation.insurance else "and not insured"
            self._validate_recent(reservation, f"it is {reservation.cabin} {covers}")

    def _compensation(self, reservation: Reservation, flight: str) -> Decimal:
        date = next((date for number, date in reservation.flights if number == flight), "")
        if not date:
            raise ToolError(f"reservation {reservation.id} has no flight {flight!r}")
        if day_key(flight, date) not in self._checked:
            raise ToolError(f"read the status of flight {flight} on {date} first")
        if reservation.compensated:
            raise ToolError(f"reservation {reservation.id} was compensated for flight {reservation.compensated}")
        day = self._state.days[day_key(flight, date)]
        if day.status != "cancelled" and day.delay < MIN_COMPENSATED_DELAY:
            raise ToolError(f"flight {flight} on {date} has the status {day.status} and a delay of {day.delay} minutes")
        return compensation(reservation, cancelled=day.status == "cancelled")


def _names(passengers: Sequence[str]) -> tuple[str, ...]:
    names = tuple(sorted(" ".join(name.split()) for name in passengers))
    if not 1 <= len(set(names)) == len(names) <= MAX_PASSENGERS:
        raise ToolError(f"name each passenger once: one to {MAX_PASSENGERS}")
    return names


def _bags(bags: int, passenger_count: int) -> int:
    if not 0 <= bags <= MAX_BAGS * passenger_count:
        raise ToolError(f"{passenger_count} passengers can have at most {MAX_BAGS * passenger_count} bags, not {bags}")
    return bags


def _not_basic(reservation: Reservation) -> None:
    if reservation.cabin == "basic economy":
        raise ToolError(f"reservation {reservation.id} is basic economy: neither changed nor compensated")
