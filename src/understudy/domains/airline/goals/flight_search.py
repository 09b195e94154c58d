"""Flight searches: the flight that a user wants on a date, and the gold turns that find and price it."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from understudy.core.errors import TaskError
from understudy.core.messages import Message
from understudy.domains.airline.itineraries import FlightOffer, find_paths, list_offers
from understudy.domains.airline.route_network import city_of
from understudy.domains.airline.state import Cabin, Reservation, Trip
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.authoring.request import Draw, refuse
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.envs.dates import format_month_day
from understudy.envs.gold import gold_call


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

    def spoken_route(self, *, with_codes: bool) -> tuple[str, str]:
        """Return the two cities, as in "Denver" or "Denver (DEN)"."""
        origin, destination = (
            f"{city_of(code)} ({code})" if with_codes else city_of(code) for code in (self.origin, self.destination)
        )
        return origin, destination

    @property
    def proposal_phrase(self) -> str:
        """The agent's words for the flights."""
        return f"{' and '.join(self.offer.flights)} on {format_month_day(self.date)}"


PREFERENCES = ("cheapest", "earliest", "latest")
"""Which of several offers the user wants: lists of the tables `best` and `vague_best` of phrases.toml."""


def draw_flight_search(
    b: AirlineTaskBuilder,
    route: tuple[str, str],
    dates: Sequence[str],
    cabin: Cabin,
    avoid: Sequence[Trip] = (),
    preferences: Sequence[str] = PREFERENCES,
) -> FlightSearch:
    """Draw a search that exactly one offer of its date satisfies. Its fare differs from those of `avoid`.

    Raise `TaskError` if none of the dates allows that.
    """
    state = b.current_state()
    paths = find_paths(state, *route, 0) or find_paths(state, *route, 1)
    fares = [trip.fare for trip in avoid]
    for date in b.rng.sample(dates, len(dates)):
        offers = [offer for offer in list_offers(state, paths, date, cabin) if offer.seats != "sold out"]
        for preference in b.rng.sample(preferences, len(preferences)) if offers else ():
            best = _best_offers(offers, preference)
            if len(best) == 1 and best[0].fare not in fares:
                return FlightSearch(*route, date, cabin, preference, best[0])
    raise TaskError(f"no offer from {route[0]} to {route[1]} in {cabin} is unique on any of {', '.join(dates)}")


def same_flights_in_cabin(b: AirlineTaskBuilder, trip: Trip, cabin: Cabin) -> FlightSearch:
    """Return the search for the same flights in another cabin."""
    offer = list_offers(b.current_state(), [trip.flights], trip.date, cabin)[0]
    origin, destination = trip.route.split("-")
    return FlightSearch(origin, destination, trip.date, cabin, "", offer)


def calculate_fare_difference(
    fares: Sequence[tuple[Decimal, Decimal]], passenger_count: int
) -> tuple[Decimal, Message]:
    """Return the difference between old and new fares for all passengers, and the gold call that calculates it."""
    text = " + ".join(f"{new} - {old}" for old, new in fares)
    amount = passenger_count * sum((new - old for old, new in fares), Decimal(0))
    return amount, calculate_for_passengers(text, passenger_count)


def calculate_for_passengers(text: str, passenger_count: int, more: str = "") -> Message:
    """Return the gold call that calculates a sum for all passengers, plus `more`."""
    if passenger_count > 1:
        text = f"({text}) * {passenger_count}" if " " in text else f"{text} * {passenger_count}"
    return gold_call("calculate", expression=text + more)


def refuse_sold_out(
    b: AirlineTaskBuilder,
    draw: Draw[Reservation],
    goal: GoalSpec,
    search: FlightSearch,
    before: Sequence[Message] = (),
) -> GoalSpec:
    """Refuse the request because no offer of the search has seats left."""
    paths = find_paths(b.current_state(), search.origin, search.destination, 1 if search.offer.via else 0)
    for flights in paths:
        b.set_seats(flights[0], search.date, search.cabin, 0)
    reason = f"All flights on {format_month_day(search.date)} are sold out in {search.cabin}, so I cannot do that."
    reads = (*before, *search.lookup_turns)
    return refuse(b, goal, reason, "sold out|fully booked|no seats", easy=draw.easy, reads=reads)


def format_price_difference(amount: Decimal) -> str:
    """Return a price difference in the words of a proposal."""
    return f"for {amount} more" if amount > 0 else f"with a refund of {-amount}"


def price_difference_variants(amount: Decimal) -> str:
    """Return the accepted forms of a price difference. A refund may be written as a negative number."""
    refund = -amount
    return f"{amount}" if amount > 0 else f"{refund}|{refund:,}|{int(refund)}|{int(refund):,}"


def _best_offers(offers: Sequence[FlightOffer], preference: str) -> list[FlightOffer]:
    """Return the offers that satisfy the user's preference; more than one if it is ambiguous."""
    if preference == "cheapest":
        lowest = min(offer.fare for offer in offers)
        return [offer for offer in offers if offer.fare == lowest]
    times = [offer.departs for offer in offers]
    time = min(times) if preference == "earliest" else max(times)
    return [offer for offer in offers if offer.departs == time]
