"""What is drawn for one airline task: the customer, and reservations as the customer and the agent call them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from understudy.domains import drafts
from understudy.domains.airline import phrases
from understudy.domains.airline.itineraries import day_key
from understudy.domains.airline.network import city
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
from understudy.domains.airline.terms import COOLING_OFF
from understudy.domains.airline.world import COMING, PAST, draw_booked, later, priced, trip
from understudy.domains.callers import BY_NUMBER, Knowledge, search
from understudy.domains.drafts import call, say
from understudy.messages import Message
from understudy.tasks import Fact

ENOUGH = 5
"""Seats for whoever wants them."""
_ASKED = (
    "reservation code", "reservation number", "confirmation", "booking code", "booking number", "booking reference",
    "which reservation", "which booking", "which trip", "which one", "record locator",
)  # fmt: skip


@dataclass(frozen=True)
class Ref(drafts.Mention):
    """A reservation as the user and the agent call it; its city tells it from the user's others."""

    reservation: Reservation
    city: str
    """Where the trip out leads."""
    knows: Knowledge

    @property
    def named(self) -> str:
        """As the agent calls it in a proposal: so that the user can tell it is the right one."""
        return f"reservation {self.reservation.id}" + ("" if self.by_code else f" to {self.city}")

    @property
    def by_code(self) -> bool:
        """Whether the user knows the code."""
        return self.knows in BY_NUMBER

    @property
    def names(self) -> tuple[str, ...]:
        """What a proposal has to name for the user to recognize the reservation."""
        return (self.reservation.id,) if self.by_code else (f"{self.city}|{goal(self.reservation)}",)


@dataclass
class Draft(drafts.Draft):
    """One task's draws."""

    world: AirlineState
    email: str

    @property
    def customer(self) -> Customer:
        """Who speaks."""
        return self.world.customers[self.email]

    def state(self) -> AirlineState:
        """The world as it is set up so far."""
        state = self.world.fork()
        state.patch(self.setup)
        return state

    def reservations(self) -> list[Reservation]:
        """The customer's reservations in random order."""
        own = [self.world.reservations[key] for key in self.customer.reservations]
        return self.random.sample(own, len(own))

    def ref(self, reservation: Reservation, knows: Knowledge) -> Ref:
        """The reservation with what the user knows of it."""
        others = [key for key in self.customer.reservations if key != reservation.id]
        if knows == "wrong" and not others:
            knows = "asked"
        where, code = city(goal(reservation)), f"reservation {reservation.id}"
        facts = (self._asked(reservation, where, knows),)
        described = self.pick(phrases.DESCRIBED, city=where)
        if knows == "wrong":
            wrong = self.random.choice(others)
            said = f"reservation {wrong} to {where}"
            doubt = (_read(wrong), say(f"Reservation {wrong} does not go to {where}. Which reservation is it?"))
            reads = search(_read, self.customer.reservations, reservation.id, knows, *doubt)
            return Ref("trip", said, code, reservation, where, knows, facts=facts, reads=reads)
        said = {"told": code, "described": described}.get(knows) or self.pick(phrases.VAGUE)
        known = code if knows in ("told", "asked") else described
        reads = search(_read, self.customer.reservations, reservation.id, knows)
        return Ref("trip", said, known, reservation, where, knows, facts=facts, reads=reads)

    def ready(self, reservation: Reservation, *, one_way: bool = False, **fields: Any) -> Reservation:
        """Set a reservation up so that it is valid and all of it lies ahead, with some fields drawn otherwise."""
        trips = reservation.trips[: 1 if one_way else 2]
        if trips[0].date <= TODAY:
            trips = _moved(trips, self.random.choice(COMING))
        for flight, when in reservation.replace(trips=trips).flights:
            self.stand(flight, when, "scheduled")
        return self.shape(reservation, trips=trips, **fields)

    def over(self, reservation: Reservation, *, one_way: bool = False, **fields: Any) -> Reservation:
        """Set a reservation up so that its trip out is a thing of the past."""
        trips = reservation.trips[: 1 if one_way else 2]
        choices = [moved for moved in (_moved(trips, first) for first in PAST) if moved[-1].date != TODAY]
        trips = self.random.choice(choices)
        for flight, when in reservation.replace(trips=trips).flights:
            self.stand(flight, when, "landed" if when < TODAY else "scheduled")
        fields.setdefault("booked", draw_booked(self.random, trips[0].date))
        return self.shape(reservation, trips=trips, **fields)

    def today(self, reservation: Reservation) -> Reservation:
        """Set a reservation up so that its only trip is today's; how its flights stand is for the caller to say."""
        return self.shape(reservation, trips=_moved(reservation.trips[:1], TODAY))

    def shape(self, reservation: Reservation, **fields: Any) -> Reservation:
        """Draw fields of a reservation otherwise, at the fares of its dates and cabin."""
        changed = reservation.replace(**fields)
        trips = tuple(trip(self.world, t.flights, t.date, changed.cabin) for t in changed.trips)
        changed = priced(self.customer, changed.replace(trips=trips))
        before, after = (r.model_dump(mode="json") for r in (reservation, changed))
        if differing := {name: value for name, value in after.items() if value != before[name]}:
            self.patch("reservations", reservation.id, **differing)
        return changed

    def booked(self, *, recent: bool, plain: bool) -> str:
        """A time of booking within the last 24 hours or before; `plain` where the dates alone tell."""
        if not recent and (plain or self.likely(0.5)):
            return draw_booked(self.random, TODAY)
        if recent and plain:
            return f"{NOW - timedelta(minutes=self.random.randint(20, 300)):%Y-%m-%d %H:%M}"
        margin = timedelta(minutes=self.random.randint(5, 240))
        return f"{NOW - COOLING_OFF + (margin if recent else -margin):%Y-%m-%d %H:%M}"

    def stand(self, flight: str, when: str, status: FlightStatus, delay: int = 0) -> None:
        """Put a flight in a status on a date."""
        key = day_key(flight, when)
        day, known = self.world.days[key], self.setup.get("days", {})
        if key in known or (day.status, day.delay) != (status, delay):
            self.patch("days", key, status=status, delay=delay)

    def leave(self, flight: str, when: str, cabin: Cabin, seats: int) -> None:
        """Leave so many seats of a cabin."""
        key = day_key(flight, when)
        day, known = self.world.days[key], self.setup.get("days", {})
        if key in known or day.cabins[cabin].seats != seats:
            self.patch("days", key, cabins={**known.get(key, {}).get("cabins", {}), cabin: {"seats": seats}})

    def offer(self, flight: str, when: str, cabin: Cabin) -> None:
        """Have seats in a cabin."""
        if not self.world.days[day_key(flight, when)].cabins[cabin].seats:
            self.leave(flight, when, cabin, ENOUGH)

    def holds(self, payment_id: str, balance: str) -> None:
        """Put a balance on a gift card; a credit card has none."""
        if self.customer.payments[payment_id].balance is not None:
            self.patch("customers", self.email, payments={payment_id: {"balance": balance}})

    def covers(self, payment_id: str, amount: Decimal) -> None:
        """Put enough on a gift card for an amount."""
        self.holds(payment_id, f"{max(0, int(amount)) + 10 * self.random.randint(0, 20)}.00")

    def payment(self, kind: str) -> str:
        """The customer's payment of this kind, if there is any."""
        return next((key for key in self.customer.payments if key.startswith(kind)), "")

    def other_card(self, current: str) -> str:
        """Another credit card or gift card of the customer, if there is any."""
        cards = [key for key in self.customer.payments if key != current and not key.startswith("certificate")]
        return self.random.choice(cards) if cards else ""

    def _asked(self, reservation: Reservation, where: str, knows: Knowledge) -> Fact:
        """What the user says when asked for the reservation."""
        if knows in ("described", "vague"):
            return Fact(says=self.pick(phrases.NO_CODE, city=where), cues=_ASKED)
        texts = phrases.MISTAKEN if knows == "wrong" else phrases.CODE
        return Fact(says=self.pick(texts, id=reservation.id), cues=_ASKED, opened=knows == "told")


def goal(reservation: Reservation) -> str:
    """The airport where the trip out leads."""
    return reservation.trips[0].route.split("-")[1]


def _moved(trips: Sequence[Trip], first: str) -> tuple[Trip, ...]:
    """The trips with their distance kept, the first on this date."""
    start = date.fromisoformat(trips[0].date)
    return tuple(t.replace(date=later(first, (date.fromisoformat(t.date) - start).days)) for t in trips)


def _read(code: str) -> Message:
    return call("get_reservation", reservation_id=code)
