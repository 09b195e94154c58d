"""Itineraries: the flights from one airport to another on a date, their fares and their status."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Literal

from understudy.core.records import Record
from understudy.domains.airline.state import NOW, AirlineState, Cabin, Flight, FlightDate, Reservation, Trip
from understudy.domains.authoring.money import Money

MIN_LAYOVER, MAX_LAYOVER = 45, 240
"""Minutes between two connecting flights."""
_OPEN = ("scheduled", "on time", "delayed")
_GONE = ("departed", "landed")


class FlightOffer(Record):
    """A flight, or two connecting flights, that can be booked."""

    flights: tuple[str, ...]
    departs: str
    arrives: str
    fare: Money
    """The fare per passenger."""
    seats: int | Literal["sold out"]
    via: str = ""


def day_key(flight: str, date: str) -> str:
    """Return the key of a flight on a date."""
    return f"{flight} {date}"


def find_day(state: AirlineState, flight: str, date: str) -> FlightDate | None:
    """Return a flight on a date, or None if it does not fly then."""
    return state.days.get(day_key(flight, date))


def find_paths(state: AirlineState, origin: str, destination: str, stops: int) -> list[tuple[str, ...]]:
    """Return the paths from one airport to another: single flights, or with `stops` two connecting flights."""
    flights = state.flights.items()
    first = [(key, f) for key, f in flights if f.origin == origin]
    if not stops:
        return [(key,) for key, f in first if f.destination == destination]
    second = [(key, f) for key, f in flights if f.destination == destination]
    return [(key, other) for key, f in first for other, g in second if _connects(f, g)]


def list_offers(state: AirlineState, paths: Sequence[tuple[str, ...]], date: str, cabin: Cabin) -> list[FlightOffer]:
    """Return the offers of these paths on a date, by departure. Sold-out offers are included and marked."""
    offers = (make_offer(state, flights, date, cabin) for flights in paths)
    return sorted((o for o in offers if o), key=lambda o: (o.departs, o.arrives, o.flights))


def make_offer(state: AirlineState, flights: Sequence[str], date: str, cabin: Cabin) -> FlightOffer | None:
    """Return the offer of one or two flights, or None if one of them is not bookable on the date."""
    days = [find_day(state, flight, date) for flight in flights]
    places = [d.cabins[cabin] for d in days if d is not None and d.status in _OPEN]
    first, last = state.flights[flights[0]], state.flights[flights[-1]]
    if len(places) < len(flights) or is_past(date, first.departs):
        return None
    return FlightOffer(
        flights=tuple(flights),
        departs=first.departs,
        arrives=last.arrives,
        fare=sum((place.fare for place in places), Decimal("0.00")),
        seats=min(place.seats for place in places) or "sold out",
        via=first.destination if len(flights) > 1 else "",
    )


def is_past(date: str, time: str) -> bool:
    """Return whether a time is past, as of the airline's current time."""
    return datetime.fromisoformat(f"{date} {time}") <= NOW


def list_flown(state: AirlineState, trips: Sequence[Trip]) -> Iterator[tuple[str, str, str]]:
    """Yield number, date and status of the trips' flights that have departed or landed."""
    for trip in trips:
        for flight in trip.flights:
            day = find_day(state, flight, trip.date)
            if day is not None and day.status in _GONE:
                yield flight, trip.date, day.status


def list_cancelled(state: AirlineState, reservation: Reservation) -> list[tuple[str, str]]:
    """Return number and date of the reservation's flights that the airline has cancelled."""
    days = ((key, find_day(state, *key)) for key in reservation.flights)
    return [key for key, day in days if day is not None and day.status == "cancelled"]


def _connects(first: Flight, second: Flight) -> bool:
    wait = _minutes(second.departs) - _minutes(first.arrives)
    return first.destination == second.origin and MIN_LAYOVER <= wait <= MAX_LAYOVER


def _minutes(time: str) -> int:
    hours, minutes = time.split(":")
    return 60 * int(hours) + int(minutes)
