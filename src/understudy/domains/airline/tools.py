"""What the agent can do. Every tool acts on the identified customer's own data, and refuses what the policy forbids."""

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Literal

from understudy.domains.airline.desk import Desk, Done, Found
from understudy.domains.airline.itineraries import Offer, day, day_key, off, offers, paths
from understudy.domains.airline.state import NOW, Cabin, Customer, FlightStatus, Reason, Reservation, Trip, Way
from understudy.domains.airline.terms import (
    COOLING_OFF,
    INSURANCE,
    LONG_DELAY,
    MISSPELT,
    MOST_BAGS,
    MOST_PASSENGERS,
    bags_price,
    compensation,
    misspelt,
)
from understudy.domains.airline.world import draw_code, priced
from understudy.domains.arithmetic import calculated
from understudy.domains.wallet import Payment, balance
from understudy.errors import ToolError
from understudy.records import Record

Date = Annotated[str, "like 2025-05-20"]
Flights = Annotated[tuple[str, ...], "one number, or two with a change of planes"]
Code = Annotated[str, "airport code"]


class Standing(Record):
    """A flight on a date."""

    flight: str
    route: str
    departs: str
    arrives: str
    status: FlightStatus
    delay: int = 0
    """Minutes."""


class AirlineTools(Desk):
    """The desk's tools."""

    def find_customer(self, email: str) -> Found:
        """Find the customer by email. Do this first."""
        return self._identify(email.strip().casefold(), f"no customer has the email {email!r}")

    def find_customer_by_name(self, name: str, zip: str) -> Found:
        """Find the customer by full name and zip, if the email is not known."""
        name, zip = " ".join(name.split()).casefold(), zip.strip()
        customers = self._state.customers.items()
        found = (e for e, c in customers if c.name.casefold() == name and c.address.endswith(f" {zip}"))
        return self._identify(next(found, ""), f"no customer has the name {name!r} and the zip {zip!r}")

    def get_customer(self) -> Customer:
        """Read the customer's address, membership level, ways to pay and reservations."""
        return self._customer()

    def get_reservation(self, reservation_id: str) -> Reservation:
        """Read one reservation."""
        reservation = self._reservation(reservation_id)
        self._read.add(reservation_id)
        return reservation

    def list_airports(self) -> dict[str, str]:
        """List all airports: code and city."""
        self._customer()
        return {code: airport.city for code, airport in self._state.airports.items()}

    def search_direct(self, origin: Code, destination: Code, date: Date, cabin: Cabin) -> list[Offer]:
        """Search flights without a stop: times, fare for each passenger, seats left."""
        return self._search(origin, destination, date, cabin, 0)

    def search_one_stop(self, origin: Code, destination: Code, date: Date, cabin: Cabin) -> list[Offer]:
        """Search connections of two flights: times, fare for each passenger, seats left."""
        return self._search(origin, destination, date, cabin, 1)

    def get_flight_status(self, flight: Annotated[str, "like KA210"], date: Date) -> Standing:
        """Read how a flight stands on a date; a delay is in minutes."""
        self._customer()
        found = day(self._state, flight, date)
        if found is None:
            raise ToolError(f"there is no flight {flight!r} on {date!r}")
        self._checked.add(day_key(flight, date))
        plan = self._state.flights[flight]
        return Standing(
            flight=flight,
            route=plan.route,
            departs=plan.departs,
            arrives=plan.arrives,
            status=found.status,
            delay=found.delay,
        )

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
    ) -> Done:
        """Book flights that a search has offered. A certificate pays first, the payment pays the rest."""
        customer, names = self._customer(), _names(passengers)
        if bool(return_flights) != bool(return_date):
            raise ToolError("a trip back needs return_flights and return_date; a trip one way has neither")
        ways = [(flights, date)] + ([(return_flights, return_date)] if return_flights else [])
        trips = tuple(self._trip(numbers, when, cabin, len(names)) for numbers, when in ways)
        _back(trips)
        self._in_order(trips)
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
        self._take(trips, cabin, len(names))
        return self._pay(priced(customer, booking), certificate_id)

    def cancel_reservation(self, reservation_id: str, reason: Reason) -> Done:
        """Cancel a whole reservation and refund what was not paid by certificate."""
        reservation = self._ahead(reservation_id)
        self._may_cancel(reservation, reason)
        refund = reservation.paid - reservation.certificate
        self._charge(reservation.payment, -refund)
        self._take(reservation.trips, reservation.cabin, -len(reservation.passengers))
        self._save(reservation.replace(cancelled=reason))
        return Done(status="cancelled", refund=refund)

    def change_flights(self, reservation_id: str, way: Way, flights: Flights, date: Date, payment_id: str = "") -> Done:
        """Replace the outbound or return trip by flights that a search has offered, on the same route and cabin."""
        reservation = self._valid(reservation_id)
        index = ("outbound", "return").index(way)
        if index >= len(reservation.trips):
            raise ToolError(f"reservation {reservation_id} has no return trip")
        old, heads = reservation.trips[index], len(reservation.passengers)
        self._not_flown([old])
        _not_basic(reservation)
        new = self._trip(flights, date, reservation.cabin, heads)
        if (new.flights, new.date) == (old.flights, old.date) or new.route != old.route:
            raise ToolError(f"the new flights have to be other ones on the route {old.route}")
        trips = tuple(new if trip is old else trip for trip in reservation.trips)
        self._in_order(trips)
        self._take([old], reservation.cabin, -heads)
        self._take([new], reservation.cabin, heads)
        changed = reservation.replace(trips=trips)
        return self._settle(changed, heads * (new.fare - old.fare), payment_id, "flights changed")

    def change_cabin(self, reservation_id: str, cabin: Literal["economy", "business"], payment_id: str = "") -> Done:
        """Change the cabin of all trips and passengers. Search the same flights in the new cabin first."""
        reservation = self._ahead(reservation_id)
        _not_basic(reservation)
        if cabin == reservation.cabin:
            raise ToolError(f"reservation {reservation_id} is in {cabin} already")
        heads, old = len(reservation.passengers), reservation.trips
        trips = tuple(self._trip(trip.flights, trip.date, cabin, heads) for trip in old)
        self._take(old, reservation.cabin, -heads)
        self._take(trips, cabin, heads)
        difference = heads * (_fares(trips) - _fares(old))
        return self._settle(reservation.replace(trips=trips, cabin=cabin), difference, payment_id, "cabin changed")

    def correct_name(self, reservation_id: str, name: str, new_name: str) -> Done:
        """Correct up to three letters of a passenger's name. `name` is the name as it stands in the reservation."""
        reservation, new_name = self._ahead(reservation_id), " ".join(new_name.split())
        if name not in reservation.passengers or new_name in reservation.passengers:
            raise ToolError(f"the passengers are {', '.join(reservation.passengers)}")
        if misspelt(name.casefold(), new_name.casefold()) > MISSPELT:
            raise ToolError(f"{new_name!r} differs from {name!r} in more than {MISSPELT} letters: another passenger")
        names = tuple(new_name if passenger == name else passenger for passenger in reservation.passengers)
        self._save(reservation.replace(passengers=names))
        return Done(status="name corrected")

    def add_bags(self, reservation_id: str, bags: Annotated[int, "how many more"], payment_id: str = "") -> Done:
        """Add checked bags. The reservation's payment is charged unless another card or gift card is given."""
        reservation = self._ahead(reservation_id)
        if bags < 1:
            raise ToolError("bags can be added, one or more, and not taken off")
        total = _bags(reservation.bags + bags, len(reservation.passengers))
        price = bags_price(self._customer(), reservation, bags)
        return self._settle(reservation.replace(bags=total), price, payment_id, "bags added")

    def add_insurance(self, reservation_id: str, payment_id: str = "") -> Done:
        """Insure all passengers, within 24 hours of booking."""
        reservation = self._ahead(reservation_id)
        if reservation.insurance:
            raise ToolError(f"reservation {reservation_id} is insured already")
        self._recent(reservation, "it can no longer be insured")
        price = INSURANCE * len(reservation.passengers)
        return self._settle(reservation.replace(insurance=True), price, payment_id, "insured")

    def issue_certificate(self, reservation_id: str, flight: str) -> Done:
        """Compensate the passengers of a cancelled or long delayed flight by a travel certificate."""
        reservation = self._valid(reservation_id)
        _not_basic(reservation)
        amount = self._compensation(reservation, flight)
        customer, certificate = self._customer(), f"certificate_{reservation_id}"
        payments = {**customer.payments, certificate: Payment(balance=amount)}
        self._save_customer(customer.replace(payments=payments))
        self._save(reservation.replace(compensated=flight))
        return Done(status=f"certificate of {amount} issued", certificate=certificate)

    def calculate(self, expression: Annotated[str, "like (121 - 96) * 2"]) -> str:
        """Calculate with numbers, + - * / and brackets."""
        return calculated(expression)

    def transfer_to_human(self, summary: str) -> Done:
        """Hand over to a human agent, for what no tool can do. This is your last call."""
        self._customer()
        self._state.transferred = True
        return Done(status="transferred")

    def _search(self, origin: str, destination: str, date: str, cabin: Cabin, stops: int) -> list[Offer]:
        self._customer()
        for code in (origin, destination):
            if code not in self._state.airports:
                raise ToolError(f"there is no airport {code!r}; list_airports shows all codes")
        found = offers(self._state, paths(self._state, origin, destination, stops), date, cabin)
        self._offered |= {(one.flights, date, cabin) for one in found}
        return found

    def _new_code(self) -> str:
        """The next reservation's code: the same one whatever else has been done."""
        rng = random.Random(f"{self._state.customer}/{len(self._customer().reservations)}")
        return next(code for code in iter(lambda: draw_code(rng), "") if code not in self._state.reservations)

    def _pay(self, booking: Reservation, certificate_id: str) -> Done:
        """Pay a new booking. What a certificate holds beyond the price is lost."""
        customer, covered = self._customer(), Decimal("0.00")
        if certificate_id:
            held = balance(customer.payments, certificate_id)
            if not certificate_id.startswith("certificate") or held is None:
                raise ToolError(f"{certificate_id} is no certificate")
            covered = min(held, booking.paid)
            kept = {key: payment for key, payment in customer.payments.items() if key != certificate_id}
            customer = customer.replace(payments=kept)
        self._save_customer(customer.replace(reservations=(*customer.reservations, booking.id)))
        self._charge(booking.payment, booking.paid - covered)
        self._save(booking.replace(certificate=covered))
        return Done(status="booked", reservation=booking.id, charge=booking.paid - covered)

    def _may_cancel(self, reservation: Reservation, reason: Reason) -> None:
        if reservation.age <= COOLING_OFF or reservation.cabin == "business":
            return
        if reason == "flight cancelled":
            if not off(self._state, reservation):
                raise ToolError(f"the airline has cancelled no flight of reservation {reservation.id}")
            return
        if reason != "illness" or not reservation.insurance:
            covers = "insurance covers illness alone" if reservation.insurance else "without insurance"
            self._recent(reservation, f"it is {reservation.cabin}, {covers}")

    def _compensation(self, reservation: Reservation, flight: str) -> Decimal:
        date = next((date for number, date in reservation.flights if number == flight), "")
        if not date:
            raise ToolError(f"reservation {reservation.id} has no flight {flight!r}")
        if day_key(flight, date) not in self._checked:
            raise ToolError(f"read the status of flight {flight} on {date} first")
        if reservation.compensated:
            raise ToolError(f"reservation {reservation.id} was compensated for flight {reservation.compensated}")
        found = self._state.days[day_key(flight, date)]
        if found.status != "cancelled" and found.delay < LONG_DELAY:
            raise ToolError(f"flight {flight} of {date} is {found.status}, its delay {found.delay} minutes")
        return compensation(reservation, cancelled=found.status == "cancelled")


def _names(passengers: Sequence[str]) -> tuple[str, ...]:
    names = tuple(sorted(" ".join(name.split()) for name in passengers))
    if not 1 <= len(set(names)) == len(names) <= MOST_PASSENGERS:
        raise ToolError(f"name each passenger once: one to {MOST_PASSENGERS}")
    return names


def _bags(bags: int, heads: int) -> int:
    if not 0 <= bags <= MOST_BAGS * heads:
        raise ToolError(f"{heads} passengers can have at most {MOST_BAGS * heads} bags, not {bags}")
    return bags


def _not_basic(reservation: Reservation) -> None:
    if reservation.cabin == "basic economy":
        raise ToolError(f"reservation {reservation.id} is basic economy: neither changed nor compensated")


def _fares(trips: Sequence[Trip]) -> Decimal:
    return sum((trip.fare for trip in trips), Decimal("0.00"))


def _back(trips: Sequence[Trip]) -> None:
    """A trip back goes from where the trip out leads to where it began."""
    if len(trips) > 1 and trips[1].route.split("-") != trips[0].route.split("-")[::-1]:
        raise ToolError(f"the return flights have to lead back on the route {trips[0].route}, not {trips[1].route}")
