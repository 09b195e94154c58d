"""Flight searches: the flight that a user wants on a date, and the gold turns that find and price it."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from understudy.core.errors import TaskError
from understudy.core.messages import Message
from understudy.domains.airline.goals.base import add_refusal
from understudy.domains.airline.itineraries import FlightOffer, find_paths, list_offers
from understudy.domains.airline.state import Cabin, Trip
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_text
from understudy.envs.dates import format_month_day


@dataclass(frozen=True)
class FlightSearch:
    """A flight that a user wants: route, date, cabin, and a preference that selects one offer."""

    origin: str
    destination: str
    date: str
    cabin: Cabin
    preference: str
    """The preference: cheapest, earliest or latest."""
    offer: FlightOffer

    @property
    def lookup_turns(self) -> tuple[Message, ...]:
        """Return the gold calls: search direct flights, then connections if there are none."""
        arguments = {"origin": self.origin, "destination": self.destination, "date": self.date, "cabin": self.cabin}
        connect = (gold_call("search_one_stop", **arguments),) if self.offer.via else ()
        return (gold_call("search_direct", **arguments), *connect)

    @property
    def proposal_phrase(self) -> str:
        """The agent's words for the flights."""
        return f"{' and '.join(self.offer.flights)} on {format_month_day(self.date)}"


PREFERENCES = ("cheapest", "earliest", "latest")
"""Which of several offers the user wants: lists of the tables `best` and `vague_best` of phrases.toml."""


def draw_flight_search(
    builder: AirlineTaskBuilder,
    way: tuple[str, str],
    dates: Sequence[str],
    cabin: Cabin,
    avoid: Sequence[Trip] = (),
    preferences: Sequence[str] = PREFERENCES,
) -> FlightSearch:
    """Draw a search that exactly one offer of its date satisfies. Its fare differs from those of `avoid`.

    Raise `TaskError` if none of the dates allows that.
    """
    state = builder.current_state()
    found = find_paths(state, *way, 0) or find_paths(state, *way, 1)
    fares = [trip.fare for trip in avoid]
    for date in builder.rng.sample(dates, len(dates)):
        made = [one for one in list_offers(state, found, date, cabin) if one.seats != "sold out"]
        for wanted in builder.rng.sample(preferences, len(preferences)) if made else ():
            best = _best(made, wanted)
            if len(best) == 1 and best[0].fare not in fares:
                return FlightSearch(*way, date, cabin, wanted, best[0])
    raise TaskError(f"no offer from {way[0]} to {way[1]} in {cabin} is unique on any of {', '.join(dates)}")


def same_flights_in_cabin(builder: AirlineTaskBuilder, trip: Trip, cabin: Cabin) -> FlightSearch:
    """Return the search for the same flights in another cabin."""
    found = list_offers(builder.current_state(), [trip.flights], trip.date, cabin)[0]
    origin, goal = trip.route.split("-")
    return FlightSearch(origin, goal, trip.date, cabin, "", found)


def calculate_fare_difference(
    fares: Sequence[tuple[Decimal, Decimal]], passenger_count: int
) -> tuple[Decimal, Message]:
    """Return the difference between old and new fares for all passengers, and the gold call that calculates it."""
    text = " + ".join(f"{new} - {old}" for old, new in fares)
    amount = passenger_count * sum((new - old for old, new in fares), Decimal(0))
    return amount, calculate_for_passengers(text, passenger_count)


def calculate_for_passengers(text: str, passenger_count: int, more: str = "") -> Message:
    """Return the gold call that calculates a sum for all passengers, plus `more`."""
    each = f"({text})" if " " in text else text
    return gold_call("calculate", expression=(text if passenger_count == 1 else f"{each} * {passenger_count}") + more)


def add_sold_out_refusal(
    builder: AirlineTaskBuilder, goal: GoalSpec, searched: FlightSearch, easy: bool, reads: tuple[Message, ...]
) -> GoalSpec:
    """Refuse the request because no offer of the search has seats left."""
    state = builder.current_state()
    for flights in find_paths(state, searched.origin, searched.destination, 1 if searched.offer.via else 0):
        builder.set_seats(flights[0], searched.date, searched.cabin, 0)
    text = f"All flights on {format_month_day(searched.date)} are sold out in {searched.cabin}, so I cannot do that."
    return add_refusal(builder, goal, gold_text(text), "sold out|fully booked|no seats", easy, reads)


def format_price_difference(amount: Decimal) -> str:
    """Return a price difference in the words of a proposal."""
    return f"for {amount} more" if amount > 0 else f"with a refund of {-amount}"


def price_difference_variants(amount: Decimal) -> str:
    """Return the accepted forms of a price difference. A refund may be written as a negative number."""
    back = -amount
    return f"{amount}" if amount > 0 else f"{back}|{back:,}|{int(back)}|{int(back):,}"


def _best(found: Sequence[FlightOffer], preference: str) -> list[FlightOffer]:
    """Return the offers that satisfy the user's preference; more than one if it is ambiguous."""
    if preference == "cheapest":
        least = min(offer.fare for offer in found)
        return [offer for offer in found if offer.fare == least]
    times = [offer.departs for offer in found]
    time = min(times) if preference == "earliest" else max(times)
    return [offer for offer in found if offer.departs == time]
