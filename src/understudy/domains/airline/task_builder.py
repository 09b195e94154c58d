"""The random draws of one airline task: the customer, and reservations as customer and agent refer to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from understudy.core.messages import Message
from understudy.domains.airline.itineraries import day_key
from understudy.domains.airline.policy_rules import COOLING_OFF
from understudy.domains.airline.route_network import city_of
from understudy.domains.airline.state import (
    NOW,
    TODAY,
    AirlineState,
    Cabin,
    Customer,
    FlightStatus,
    Reservation,
    Trip,
)
from understudy.domains.airline.world import (
    FUTURE_DATES,
    PAST_DATES,
    draw_booking_time,
    make_trip,
    set_price,
)
from understudy.domains.authoring import task_builder
from understudy.domains.authoring.identification import entity_lookup
from understudy.domains.authoring.request import Draw
from understudy.envs.dates import add_days
from understudy.envs.gold import gold_call, gold_text

DEFAULT_SEATS = 5
"""Seats that are made available if a request needs them."""
_ASKED = (
    "reservation code", "reservation number", "confirmation", "booking code", "booking number", "booking reference",
    "which reservation", "which booking", "which trip", "which one", "record locator",
)  # fmt: skip


@dataclass(frozen=True)
class ReservationMention(task_builder.NumberedMention):
    """A reservation as user and agent refer to it. Its city differs from those of the user's others."""

    reservation: Reservation
    city: str
    """The destination of the outbound trip."""

    @property
    def proposal_phrase(self) -> str:
        """The agent's words for the reservation in a proposal, by which the user recognizes it."""
        return f"reservation {self.reservation.id}" + ("" if self.by_number else f" to {self.city}")

    @property
    def required_terms(self) -> tuple[str, ...]:
        """The terms that a proposal must contain for the user to recognize the reservation."""
        return (self.reservation.id,) if self.by_number else (f"{self.city}|{destination_airport(self.reservation)}",)


@dataclass
class AirlineTaskBuilder(task_builder.TaskBuilder):
    """The random draws of one task."""

    world: AirlineState
    email: str

    @property
    def customer(self) -> Customer:
        """The customer."""
        return self.world.customers[self.email]

    def identity(self) -> dict[str, str]:
        """Return what identifies the customer."""
        return {"email": self.email, "name": self.customer.name, "zip": self.customer.address.split()[-1]}

    def current_state(self) -> AirlineState:
        """Return the world with the setup so far."""
        state = self.world.fork()
        state.patch(self.setup)
        return state

    def reservations(self) -> list[Reservation]:
        """Return the customer's reservations in random order."""
        reservations = [self.world.reservations[key] for key in self.customer.reservations]
        return self.rng.sample(reservations, len(reservations))

    def reservation_mention(self, draw: Draw[Reservation]) -> ReservationMention:
        """Return the reservation as the user refers to it."""
        reservation, knowledge = draw.entity, draw.knowledge
        others = [key for key in self.customer.reservations if key != reservation.id]
        if knowledge == "wrong" and not others:
            knowledge = "asked"
        city, code = city_of(destination_airport(reservation)), f"reservation {reservation.id}"
        facts = (self.entity_fact(knowledge, _ASKED, "code", "no_code", id=reservation.id, city=city),)
        described = self.phrase("described", city=city)
        doubt: tuple[Message, ...] = ()
        if knowledge == "wrong":
            wrong = self.rng.choice(others)
            said, known = f"reservation {wrong} to {city}", code
            doubt = (_read(wrong), gold_text(f"Reservation {wrong} does not go to {city}. Which reservation is it?"))
        else:
            said = {"told": code, "described": described}.get(knowledge) or self.phrase("vague")
            known = code if knowledge in ("told", "asked") else described
        reads = entity_lookup(_read, self.customer.reservations, reservation.id, knowledge, *doubt)
        return ReservationMention(
            "trip", said, known, reservation, city, knowledge=knowledge, facts=facts, lookup_turns=reads
        )

    def set_upcoming(self, reservation: Reservation, *, one_way: bool = False, **fields: Any) -> Reservation:
        """Set up a valid reservation in the future, with some fields changed."""
        trips = reservation.trips[: 1 if one_way else 2]
        if trips[0].date <= TODAY:
            trips = _moved(trips, self.rng.choice(FUTURE_DATES))
        for flight, when in reservation.replace(trips=trips).flights:
            self.set_flight_status(flight, when, "scheduled")
        return self.set_fields(reservation, trips=trips, **fields)

    def set_past(self, reservation: Reservation, *, one_way: bool = False, **fields: Any) -> Reservation:
        """Set up a reservation whose outbound trip is in the past."""
        trips = reservation.trips[: 1 if one_way else 2]
        choices = [moved for moved in (_moved(trips, first) for first in PAST_DATES) if moved[-1].date != TODAY]
        trips = self.rng.choice(choices)
        for flight, when in reservation.replace(trips=trips).flights:
            self.set_flight_status(flight, when, "landed" if when < TODAY else "scheduled")
        fields.setdefault("booked", draw_booking_time(self.rng, trips[0].date))
        return self.set_fields(reservation, trips=trips, **fields)

    def set_today(self, reservation: Reservation) -> Reservation:
        """Set up a reservation whose only trip is today. The caller sets the status of its flights."""
        return self.set_fields(reservation, trips=_moved(reservation.trips[:1], TODAY))

    def set_fields(self, reservation: Reservation, **fields: Any) -> Reservation:
        """Change fields of a reservation, and update its fares and price to its dates and cabin."""
        changed = reservation.replace(**fields)
        trips = tuple(make_trip(self.world, t.flights, t.date, changed.cabin) for t in changed.trips)
        changed = set_price(self.customer, changed.replace(trips=trips))
        before, after = (r.model_dump(mode="json") for r in (reservation, changed))
        if differing := {name: value for name, value in after.items() if value != before[name]}:
            self.patch("reservations", reservation.id, **differing)
        return changed

    def draw_booking_time(self, *, recent: bool, clear: bool) -> str:
        """Draw a time of booking: within the last 24 hours if `recent`, else earlier.

        With `clear`, the time is not close to the limit of 24 hours.
        """
        if not recent and (clear or self.draw_bool(0.5)):
            return draw_booking_time(self.rng, TODAY)
        if recent and clear:
            return f"{NOW - timedelta(minutes=self.rng.randint(20, 300)):%Y-%m-%d %H:%M}"
        margin = timedelta(minutes=self.rng.randint(5, 240))
        return f"{NOW - COOLING_OFF + (margin if recent else -margin):%Y-%m-%d %H:%M}"

    def set_flight_status(self, flight: str, when: str, status: FlightStatus, delay: int = 0) -> None:
        """Set the status of a flight on a date."""
        key = day_key(flight, when)
        day, known = self.world.days[key], self.setup.get("days", {})
        if key in known or (day.status, day.delay) != (status, delay):
            self.patch("days", key, status=status, delay=delay)

    def set_seats(self, flight: str, when: str, cabin: Cabin, seats: int) -> None:
        """Set the number of available seats of a cabin."""
        key = day_key(flight, when)
        day, known = self.world.days[key], self.setup.get("days", {})
        if key in known or day.cabins[cabin].seats != seats:
            self.patch("days", key, cabins={**known.get(key, {}).get("cabins", {}), cabin: {"seats": seats}})

    def ensure_seats(self, flight: str, when: str, cabin: Cabin) -> None:
        """Make sure that a cabin has seats."""
        if not self.world.days[day_key(flight, when)].cabins[cabin].seats:
            self.set_seats(flight, when, cabin, DEFAULT_SEATS)

    def set_balance(self, payment_id: str, balance: str) -> None:
        """Set the balance of a gift card. A credit card has none."""
        if self.customer.payments[payment_id].balance is not None:
            self.patch("customers", self.email, payments={payment_id: {"balance": balance}})

    def ensure_balance(self, payment_id: str, amount: Decimal) -> None:
        """Make sure that a gift card covers an amount."""
        self.set_balance(payment_id, f"{max(0, int(amount)) + 10 * self.rng.randint(0, 20)}.00")

    def find_payment(self, kind: str) -> str:
        """Return the customer's payment of this kind, or an empty string."""
        return next((key for key in self.customer.payments if key.startswith(kind)), "")

    def pick_other_card(self, current: str) -> str:
        """Return another credit card or gift card of the customer, or an empty string."""
        cards = [key for key in self.customer.payments if key != current and not key.startswith("certificate")]
        return self.rng.choice(cards) if cards else ""


def destination_airport(reservation: Reservation) -> str:
    """Return the destination of the outbound trip."""
    return reservation.trips[0].route.split("-")[1]


def _moved(trips: Sequence[Trip], first: str) -> tuple[Trip, ...]:
    """Move the trips so that the first is on this date, with the same days between them."""
    start = date.fromisoformat(trips[0].date)
    return tuple(t.replace(date=add_days(first, (date.fromisoformat(t.date) - start).days)) for t in trips)


def _read(code: str) -> Message:
    return gold_call("get_reservation", reservation_id=code)
