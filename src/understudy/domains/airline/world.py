"""The world: 400 customers, 700 reservations, and a network with two hubs. A seed always gives the same world.

Each customer, with their reservations, belongs to one split. All splits share airports and flights.
"""

import functools
import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal

from understudy.domains.airline import route_network
from understudy.domains.airline.itineraries import day_key, find_paths
from understudy.domains.airline.policy_rules import INSURANCE_PRICE, bags_price
from understudy.domains.airline.state import (
    TODAY,
    AirlineState,
    Cabin,
    Customer,
    MembershipLevel,
    Reservation,
    Trip,
)
from understudy.domains.authoring.payments import Payment
from understudy.domains.authoring.people import FIRST_NAMES, draw_address, draw_counts, draw_email, draw_names
from understudy.envs.dates import add_days

CUSTOMERS = 400
LETTERS, DIGITS = "ABCDEFGHJLMNPRSTUVWXYZ", "23456789"
PAST_DATES, FUTURE_DATES = route_network.DATES[:7], route_network.DATES[9:18]
"""Dates of past and of future trips."""


@functools.cache
def build_world(seed: int = 0) -> AirlineState:
    """Return the state before any task. It is shared, so fork it before changing it."""
    rng = random.Random(f"airline/{seed}")
    timetable = route_network.draw_flights(rng)
    days = route_network.draw_days(rng, timetable)
    state = AirlineState(flights=timetable, days=days, airports=route_network.build_airports())
    customers: dict[str, Customer] = {}
    reservations: dict[str, Reservation] = {}
    codes = _distinct(lambda: draw_reservation_code(rng))
    addresses = _distinct(lambda: draw_address(rng))
    names, counts = draw_names(rng, CUSTOMERS), draw_counts(rng, 150, 200, 50)
    for name, count in zip(names, counts, strict=True):
        address, keys = next(addresses), tuple(next(codes) for _ in range(count))
        level: MembershipLevel = rng.choice(("regular", "regular", "silver", "gold"))
        customer = Customer(name=name, address=address, payments=_payments(rng), reservations=keys, level=level)
        customers[draw_email(rng, name)] = customer
        reservations |= {r.id: r for r in _reservations(rng, state, customer)}
    return AirlineState(
        customers=customers, reservations=reservations, flights=timetable, days=days, airports=state.airports
    )


def draw_reservation_code(rng: random.Random) -> str:
    """Return a reservation code like RX4MP7. It resembles no word, no number and no flight (KA210)."""
    return "".join(rng.choice(signs) for signs in (LETTERS, LETTERS, DIGITS) * 2)


def home_airport(customer: Customer) -> str:
    """Return the airport of the city where the customer lives."""
    return next(code for code in route_network.AIRPORTS if f" {route_network.city_of(code)} " in customer.address)


def make_trip(state: AirlineState, flights: tuple[str, ...], when: str, cabin: Cabin) -> Trip:
    """Return a trip at the fares of its date."""
    first, last = state.flights[flights[0]], state.flights[flights[-1]]
    places = [state.days[day_key(flight, when)].cabins[cabin] for flight in flights]
    fare = sum((place.fare for place in places), Decimal("0.00"))
    return Trip(date=when, route=f"{first.origin}-{last.destination}", flights=flights, fare=fare)


def set_price(customer: Customer, reservation: Reservation) -> Reservation:
    """Return the reservation with the price of its flights, bags and insurance as paid."""
    fares = sum((trip.fare for trip in reservation.trips), Decimal("0.00"))
    heads = len(reservation.passengers)
    bags = bags_price(customer, reservation.replace(bags=0), reservation.bags)
    return reservation.replace(paid=heads * (fares + INSURANCE_PRICE * reservation.insurance) + bags)


def _distinct(draw: Callable[[], str]) -> Iterator[str]:
    """Yield what `draw` returns, but nothing whose last word has come before, such as the zip code of an address."""
    seen: set[str] = set()
    for text in iter(draw, ""):
        if (last := text.split()[-1]) not in seen:
            seen.add(last)
            yield text


def _payments(rng: random.Random) -> dict[str, Payment]:
    """Return a credit card, and sometimes a gift card and a travel certificate."""
    others = rng.choice(((), ("gift",), ("certificate",), ("gift", "certificate")))
    numbers = rng.sample(range(10, 100), 1 + len(others))
    balances = {"gift": Decimal(rng.randint(5, 60) * 10), "certificate": Decimal(rng.randint(5, 30) * 10)}
    kinds = zip(("card", *others), numbers, strict=True)
    return {f"{kind}_{n}": Payment(balance=balances[kind]) if kind in balances else Payment() for kind, n in kinds}


def _reservations(rng: random.Random, state: AirlineState, customer: Customer) -> Iterator[Reservation]:
    """Yield reservations from home to different cities, so that a city identifies a reservation."""
    home = home_airport(customer)
    destinations = rng.sample([code for code in route_network.AIRPORTS if code != home], 3)
    for code, destination in zip(customer.reservations, destinations, strict=False):
        yield set_price(customer, _reservation(rng, state, customer, code, (home, destination)))


def _reservation(
    rng: random.Random, state: AirlineState, customer: Customer, code: str, ends: tuple[str, str]
) -> Reservation:
    cabin: Cabin = rng.choice(("basic economy", "economy", "economy", "business"))
    out = rng.choice(PAST_DATES if rng.random() < 0.2 else FUTURE_DATES)
    dates = [out] if rng.random() < 0.5 else [out, add_days(out, rng.randint(2, 6))]
    paths = [find_paths(state, *route, 0) or find_paths(state, *route, 1) for route in (ends, ends[::-1])]
    trips = [make_trip(state, rng.choice(flights), day, cabin) for day, flights in zip(dates, paths, strict=False)]
    first, last = customer.name.split(" ", 1)
    booked = draw_booking_time(rng, min(out, TODAY))
    relatives = rng.sample([name for name in FIRST_NAMES if name != first], rng.choice((0, 0, 0, 1, 1, 2)))
    return Reservation(
        id=code,
        booked=booked,
        cabin=cabin,
        trips=tuple(trips),
        passengers=(customer.name, *(f"{name} {last}" for name in relatives)),
        payment=rng.choice([key for key in customer.payments if not key.startswith("certificate")]),
        paid=Decimal(0),
        bags=rng.choice((0, 0, 1, 2)),
        insurance=rng.random() < 0.3,
    )


def draw_booking_time(rng: random.Random, before: str) -> str:
    """Return a booking time, 3 to 40 days before a date."""
    start = datetime.fromisoformat(before) - timedelta(days=rng.randint(3, 40))
    return f"{start + timedelta(minutes=rng.randint(7 * 60, 22 * 60)):%Y-%m-%d %H:%M}"
