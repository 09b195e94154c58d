"""The world: 400 customers, 700 reservations, and the network of two hubs, the same for the same seed.

Customers, and with them their reservations, belong to one split each; airports and flights are shared by all splits.
"""

import functools
import random
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal

from understudy.domains.airline import network
from understudy.domains.airline.itineraries import day_key, paths
from understudy.domains.airline.state import (
    TODAY,
    AirlineState,
    Cabin,
    Customer,
    Level,
    Reservation,
    Trip,
)
from understudy.domains.airline.terms import INSURANCE, bags_price
from understudy.domains.people import FIRST, draw_address, draw_email, draw_names, of_split
from understudy.domains.wallet import Payment
from understudy.tasks import Split

CUSTOMERS, RESERVATIONS = 400, 700
LETTERS, DIGITS = "ABCDEFGHJLMNPRSTUVWXYZ", "23456789"
PAST, COMING = network.DATES[:7], network.DATES[9:18]
"""Dates of trips that are over, and of trips to come."""


@functools.cache
def world(seed: int = 0) -> AirlineState:
    """The state before any task. It is shared: fork it."""
    rng = random.Random(f"airline/{seed}")
    timetable = network.flights(rng)
    days = network.days(rng, timetable)
    state = AirlineState(flights=timetable, days=days, airports=network.airports())
    customers: dict[str, Customer] = {}
    reservations: dict[str, Reservation] = {}
    codes, addresses = _codes(rng), _addresses(rng)
    for name, count in zip(draw_names(rng, CUSTOMERS), _counts(rng), strict=True):
        customer = _customer(rng, name, next(addresses), [next(codes) for _ in range(count)])
        customers[draw_email(rng, name)] = customer
        reservations |= {r.id: r for r in _reservations(rng, state, customer)}
    return AirlineState(
        customers=customers, reservations=reservations, flights=timetable, days=days, airports=state.airports
    )


@functools.cache
def emails(split: Split) -> tuple[str, ...]:
    """The customers of a split."""
    return of_split(tuple(world().customers), split)


def draw_code(rng: random.Random) -> str:
    """A reservation's code, like RX4MP7: no word, no number, and no flight (KA210)."""
    return "".join(rng.choice(signs) for signs in (LETTERS, LETTERS, DIGITS) * 2)


def home(customer: Customer) -> str:
    """The airport of the city where the customer lives."""
    return next(code for code in network.PLACES if f" {network.city(code)} " in customer.address)


def trip(state: AirlineState, flights: tuple[str, ...], when: str, cabin: Cabin) -> Trip:
    """A trip at the fares of its date."""
    first, last = state.flights[flights[0]], state.flights[flights[-1]]
    places = [state.days[day_key(flight, when)].cabins[cabin] for flight in flights]
    fare = sum((place.fare for place in places), Decimal("0.00"))
    return Trip(date=when, route=f"{first.origin}-{last.destination}", flights=flights, fare=fare)


def priced(customer: Customer, reservation: Reservation) -> Reservation:
    """The reservation with what it cost when everything was bought at once."""
    fares = sum((trip.fare for trip in reservation.trips), Decimal("0.00"))
    heads = len(reservation.passengers)
    bags = bags_price(customer, reservation.replace(bags=0), reservation.bags)
    return reservation.replace(paid=heads * (fares + INSURANCE * reservation.insurance) + bags)


def _codes(rng: random.Random) -> Iterator[str]:
    """Different codes."""
    seen: set[str] = set()
    for code in iter(lambda: draw_code(rng), ""):
        if code not in seen:
            seen.add(code)
            yield code


def _addresses(rng: random.Random) -> Iterator[str]:
    """Addresses of different zips."""
    seen: set[str] = set()
    for address in iter(lambda: draw_address(rng), ""):
        if (zip_code := address.split()[-1]) not in seen:
            seen.add(zip_code)
            yield address


def _counts(rng: random.Random) -> list[int]:
    """How many reservations each customer has: one, two or three."""
    counts = [1] * 150 + [2] * 200 + [3] * 50
    rng.shuffle(counts)
    return counts


def _customer(rng: random.Random, name: str, address: str, codes: list[str]) -> Customer:
    level: Level = rng.choice(("regular", "regular", "silver", "gold"))
    return Customer(name=name, address=address, payments=_payments(rng), reservations=tuple(codes), level=level)


def _payments(rng: random.Random) -> dict[str, Payment]:
    """A credit card, and perhaps a gift card and a travel certificate."""
    others = rng.choice(((), ("gift",), ("certificate",), ("gift", "certificate")))
    numbers = rng.sample(range(10, 100), 1 + len(others))
    balances = {"gift": Decimal(rng.randint(5, 60) * 10), "certificate": Decimal(rng.randint(5, 30) * 10)}
    kinds = zip(("card", *others), numbers, strict=True)
    return {f"{kind}_{n}": Payment(balance=balances[kind]) if kind in balances else Payment() for kind, n in kinds}


def _reservations(rng: random.Random, state: AirlineState, customer: Customer) -> Iterator[Reservation]:
    """Trips from home to different cities, so that any city tells the reservation."""
    origin = home(customer)
    for code, destination in zip(
        customer.reservations, rng.sample([c for c in network.PLACES if c != origin], 3), strict=False
    ):
        yield priced(customer, _reservation(rng, state, customer, code, (origin, destination)))


def _reservation(
    rng: random.Random, state: AirlineState, customer: Customer, code: str, ends: tuple[str, str]
) -> Reservation:
    cabin: Cabin = rng.choice(("basic economy", "economy", "economy", "business"))
    out = rng.choice(PAST if rng.random() < 0.2 else COMING)
    dates = [out] if rng.random() < 0.5 else [out, later(out, rng.randint(2, 6))]
    ways = [paths(state, *way, 0) or paths(state, *way, 1) for way in (ends, ends[::-1])]
    trips = [trip(state, rng.choice(found), when, cabin) for when, found in zip(dates, ways, strict=False)]
    return Reservation(
        id=code,
        booked=draw_booked(rng, min(out, TODAY)),
        cabin=cabin,
        trips=tuple(trips),
        passengers=_passengers(rng, customer.name),
        payment=rng.choice([key for key in customer.payments if not key.startswith("certificate")]),
        paid=Decimal(0),
        bags=rng.choice((0, 0, 1, 2)),
        insurance=rng.random() < 0.3,
    )


def draw_booked(rng: random.Random, before: str) -> str:
    """When it was booked: days or weeks before a date."""
    start = datetime.fromisoformat(before) - timedelta(days=rng.randint(3, 40))
    return f"{start + timedelta(minutes=rng.randint(7 * 60, 22 * 60)):%Y-%m-%d %H:%M}"


def later(when: str, count: int) -> str:
    """The date so many days later."""
    return f"{date.fromisoformat(when) + timedelta(days=count)}"


def _passengers(rng: random.Random, name: str) -> tuple[str, ...]:
    """The customer, perhaps with others of the family."""
    first, last = name.split(" ", 1)
    others = rng.sample([other for other in FIRST if other != first], rng.choice((0, 0, 0, 1, 1, 2)))
    return (name, *(f"{other} {last}" for other in others))
