"""The network: airports, the daily flights between them, and the status, seats and fares of each date.

Twelve airports have flights to two hubs, once or twice a day, so that one change of planes connects any two. A few
pairs have direct flights. No flight is in the air at midnight.
"""

import math
import random
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from decimal import Decimal

from understudy.domains.airline.itineraries import day_key, is_past
from understudy.domains.airline.state import (
    TODAY,
    Airport,
    Cabin,
    CabinInventory,
    Flight,
    FlightDate,
    FlightStatus,
)

AIRPORTS: Mapping[str, tuple[str, float, float]] = {
    "DEN": ("Denver", 39.9, -104.7),
    "DFW": ("Dallas", 32.9, -97.0),
    "AUS": ("Austin", 30.2, -97.7),
    "BOS": ("Boston", 42.4, -71.0),
    "ORD": ("Chicago", 42.0, -87.9),
    "FAT": ("Fresno", 36.8, -119.7),
    "IAH": ("Houston", 30.0, -95.3),
    "MEM": ("Memphis", 35.0, -90.0),
    "MIA": ("Miami", 25.8, -80.3),
    "OMA": ("Omaha", 41.3, -95.9),
    "PHX": ("Phoenix", 33.4, -112.0),
    "PDX": ("Portland", 45.6, -122.6),
    "SEA": ("Seattle", 47.4, -122.3),
    "TPA": ("Tampa", 28.0, -82.5),
}
"""City, latitude and longitude in degrees, by airport code."""
HUBS = ("DEN", "DFW")
DIRECT_PAIRS = (("BOS", "ORD"), ("SEA", "PDX"), ("MIA", "TPA"), ("AUS", "IAH"), ("PHX", "FAT"))
"""Pairs with direct flights."""
DATES = tuple(f"{date(2025, 5, 8) + timedelta(days=i)}" for i in range(24))
"""All dates that are on sale or just past: May 8 to May 31, 2025."""
FARE_RANGES: Mapping[Cabin, tuple[float, float]] = {
    "basic economy": (0.65, 0.8),
    "economy": (0.9, 1.3),
    "business": (2.4, 3.2),
}
"""The lowest and the highest fare of a cabin, as multiples of the route's price."""


def build_airports() -> dict[str, Airport]:
    """Return the airports by code."""
    return {code: Airport(city=city) for code, (city, _, _) in AIRPORTS.items()}


def city_of(code: str) -> str:
    """Return the city of an airport."""
    return AIRPORTS[code][0]


def draw_flights(rng: random.Random) -> dict[str, Flight]:
    """Return the flights by number, such as KA210."""
    numbers = iter(sorted(rng.sample(range(100, 1000), 200)))
    return {f"KA{next(numbers)}": flight for flight in _timetable(rng)}


def draw_days(rng: random.Random, timetable: Mapping[str, Flight]) -> dict[str, FlightDate]:
    """Return every flight on every date, by key."""
    drawn = {}
    for when in DATES:
        for number, flight in timetable.items():
            status, delay = _draw_status(rng, flight, when)
            drawn[day_key(number, when)] = FlightDate(cabins=_cabins(rng, flight), status=status, delay=delay)
    return drawn


def _timetable(rng: random.Random) -> Iterator[Flight]:
    """Yield the flights of the hubs. They arrive around noon, for some cities in the evening too, and depart
    afterwards.
    """
    spokes = [code for code in AIRPORTS if code not in HUBS]
    for hub in HUBS:
        for spoke in spokes:
            for meeting in (12, 16)[: 1 + (rng.random() < 0.6)]:
                yield _flight(rng, spoke, hub, meeting - _hours(spoke, hub), 60)
                yield _flight(rng, hub, spoke, meeting + 1.75, 75)
    for first, second in (HUBS, *DIRECT_PAIRS):
        yield _flight(rng, first, second, 7, 240)
        yield _flight(rng, second, first, 13, 240)


def _flight(rng: random.Random, origin: str, destination: str, hour: float, spread: int) -> Flight:
    """Return a flight that departs up to `spread` minutes after the hour."""
    start = 5 * round(12 * hour) + 5 * rng.randrange(spread // 5)
    end = start + 60 * _hours(origin, destination)
    return Flight(origin=origin, destination=destination, departs=_clock(start), arrives=_clock(round(end)))


def _hours(origin: str, destination: str) -> float:
    """Return the duration of a flight in hours, in steps of five minutes."""
    return (30 + 5 * round(_km(origin, destination) / 65)) / 60


def _draw_status(rng: random.Random, flight: Flight, when: str) -> tuple[FlightStatus, int]:
    """Return status and delay of a flight on a date, as of the airline's current time."""
    chance = rng.random()
    delay = rng.choice((0, 0, 0, 0, 15, 25, 40, 75, 190))
    if chance < 0.02:
        return "cancelled", 0
    if when > TODAY:
        return "scheduled", 0
    if is_past(when, flight.departs):
        return "landed" if is_past(when, flight.arrives) else "departed", delay
    return ("delayed", delay) if delay else ("on time", 0)


def _cabins(rng: random.Random, flight: Flight) -> dict[Cabin, CabinInventory]:
    """Return seats and fares by cabin. About one cabin in twenty is sold out."""
    price = 45 + _km(flight.origin, flight.destination) / 16
    return {
        cabin: CabinInventory(
            seats=0 if rng.random() < 0.05 else rng.randint(4, 9), fare=Decimal(round(price * rng.uniform(*span)))
        )
        for cabin, span in FARE_RANGES.items()
    }


def _km(origin: str, destination: str) -> float:
    """Return the great-circle distance in km."""
    (_, lat, lon), (_, lat2, lon2) = AIRPORTS[origin], AIRPORTS[destination]
    a, b, turn = math.radians(lat), math.radians(lat2), math.radians(lon2 - lon)
    return 6371 * math.acos(min(1.0, math.sin(a) * math.sin(b) + math.cos(a) * math.cos(b) * math.cos(turn)))


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"
