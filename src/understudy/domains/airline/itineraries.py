"""Itineraries: which flights lead from one airport to another on a date, what they cost, and how they stand."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Literal

from understudy.domains.airline.state import NOW, AirlineState, Cabin, Day, Flight, Reservation, Trip
from understudy.domains.money import Money
from understudy.records import Record

SHORTEST, LONGEST = 45, 240
"""Minutes to change planes."""
_OPEN = ("scheduled", "on time", "delayed")
_GONE = ("departed", "landed")


class Offer(Record):
    """Flights that can be booked together."""

    flights: tuple[str, ...]
    departs: str
    arrives: str
    fare: Money
    """For each passenger."""
    seats: int | Literal["sold out"]
    via: str = ""


def day_key(flight: str, date: str) -> str:
    """The key of a flight's date."""
    return f"{flight} {date}"


def day(state: AirlineState, flight: str, date: str) -> Day | None:
    """A flight on a date, if it flies then."""
    return state.days.get(day_key(flight, date))


def paths(state: AirlineState, origin: str, destination: str, stops: int) -> list[tuple[str, ...]]:
    """The flights that lead from one airport to another: one flight each, or two with time to change planes."""
    flights = state.flights.items()
    first = [(key, f) for key, f in flights if f.origin == origin]
    if not stops:
        return [(key,) for key, f in first if f.destination == destination]
    second = [(key, f) for key, f in flights if f.destination == destination]
    return [(key, other) for key, f in first for other, g in second if _connects(f, g)]


def offers(state: AirlineState, found: Sequence[tuple[str, ...]], date: str, cabin: Cabin) -> list[Offer]:
    """What can be booked of these paths on a date, by departure; what is sold out is shown as that."""
    made = (offer(state, flights, date, cabin) for flights in found)
    return sorted((o for o in made if o), key=lambda o: (o.departs, o.arrives, o.flights))


def offer(state: AirlineState, flights: Sequence[str], date: str, cabin: Cabin) -> Offer | None:
    """One or two flights as an offer; None where one of them does not fly on the date, or not any more."""
    days = [day(state, flight, date) for flight in flights]
    places = [d.cabins[cabin] for d in days if d is not None and d.status in _OPEN]
    first, last = state.flights[flights[0]], state.flights[flights[-1]]
    if len(places) < len(flights) or past(date, first.departs):
        return None
    return Offer(
        flights=tuple(flights),
        departs=first.departs,
        arrives=last.arrives,
        fare=sum((place.fare for place in places), Decimal("0.00")),
        seats=min(place.seats for place in places) or "sold out",
        via=first.destination if len(flights) > 1 else "",
    )


def past(date: str, time: str) -> bool:
    """Whether a time is past by the airline's clock."""
    return datetime.fromisoformat(f"{date} {time}") <= NOW


def flown(state: AirlineState, trips: Sequence[Trip]) -> Iterator[tuple[str, str, str]]:
    """Number, date and status of the trips' flights that have departed or landed."""
    for trip in trips:
        for flight in trip.flights:
            found = day(state, flight, trip.date)
            if found is not None and found.status in _GONE:
                yield flight, trip.date, found.status


def off(state: AirlineState, reservation: Reservation) -> list[tuple[str, str]]:
    """Number and date of the reservation's flights that the airline has cancelled."""
    days = ((key, day(state, *key)) for key in reservation.flights)
    return [key for key, found in days if found is not None and found.status == "cancelled"]


def _connects(first: Flight, second: Flight) -> bool:
    wait = _minutes(second.departs) - _minutes(first.arrives)
    return first.destination == second.origin and SHORTEST <= wait <= LONGEST


def _minutes(time: str) -> int:
    hours, minutes = time.split(":")
    return 60 * int(hours) + int(minutes)
