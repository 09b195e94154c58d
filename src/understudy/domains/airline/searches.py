"""Searches: what a user looks for among the flights of a date, and how a perfect agent finds it and reckons with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from understudy.domains.airline import phrases
from understudy.domains.airline.drafts import Draft
from understudy.domains.airline.itineraries import Offer, offers, paths
from understudy.domains.airline.state import Cabin, Trip
from understudy.domains.airline.wants import refused
from understudy.domains.days import month_day
from understudy.domains.drafts import Want, call, say
from understudy.errors import TaskError
from understudy.messages import Message


@dataclass(frozen=True)
class Search:
    """What a user looks for: a way on a date, and which of its offers."""

    origin: str
    goal: str
    date: str
    cabin: Cabin
    wanted: str
    """cheapest, earliest or latest."""
    found: Offer

    @property
    def calls(self) -> tuple[Message, ...]:
        """Search direct flights, and connections where there are none."""
        arguments = {"origin": self.origin, "destination": self.goal, "date": self.date, "cabin": self.cabin}
        connect = (call("search_one_stop", **arguments),) if self.found.via else ()
        return (call("search_direct", **arguments), *connect)

    @property
    def said(self) -> str:
        """As the agent calls it."""
        return f"{' and '.join(self.found.flights)} on {month_day(self.date)}"


def search(
    draft: Draft,
    way: tuple[str, str],
    dates: Sequence[str],
    cabin: Cabin,
    avoid: Sequence[Trip] = (),
    wishes: Sequence[str] = tuple(phrases.BEST),
) -> Search:
    """A search on one of the dates whose wish fits one offer alone, with seats enough, at another fare than `avoid`."""
    state = draft.state()
    found = paths(state, *way, 0) or paths(state, *way, 1)
    fares = [trip.fare for trip in avoid]
    for date in draft.random.sample(dates, len(dates)):
        made = [one for one in offers(state, found, date, cabin) if one.seats != "sold out"]
        for wanted in draft.random.sample(wishes, len(wishes)) if made else ():
            best = _best(made, wanted)
            if len(best) == 1 and best[0].fare not in fares:
                return Search(*way, date, cabin, wanted, best[0])
    raise TaskError(f"no flights from {way[0]} to {way[1]} in {cabin} can be asked for on any of {', '.join(dates)}")


def same(draft: Draft, trip: Trip, cabin: Cabin) -> Search:
    """Search the same flights in another cabin."""
    found = offers(draft.state(), [trip.flights], trip.date, cabin)[0]
    origin, goal = trip.route.split("-")
    return Search(origin, goal, trip.date, cabin, "", found)


def difference(fares: Sequence[tuple[Decimal, Decimal]], heads: int) -> tuple[Decimal, Message]:
    """From old to new fares, for all passengers; and how a perfect agent calculates it."""
    text = " + ".join(f"{new} - {old}" for old, new in fares)
    amount = heads * sum((new - old for old, new in fares), Decimal(0))
    return amount, calculate(text, heads)


def calculate(text: str, heads: int, more: str = "") -> Message:
    """Calculate a sum for all passengers, and what comes to it."""
    each = f"({text})" if " " in text else text
    return call("calculate", expression=(text if heads == 1 else f"{each} * {heads}") + more)


def sold_out(draft: Draft, want: Want, searched: Search, easy: bool, reads: tuple[Message, ...]) -> Want:
    """The request refused because no offer of a search has seats left."""
    state = draft.state()
    for flights in paths(state, searched.origin, searched.goal, 1 if searched.found.via else 0):
        draft.leave(flights[0], searched.date, searched.cabin, 0)
    text = f"All flights on {month_day(searched.date)} are sold out in {searched.cabin}, so I cannot do that."
    return refused(draft, want, say(text), "sold out|fully booked|no seats", easy, reads)


def at_price(amount: Decimal) -> str:
    """A difference in price as a proposal names it."""
    return f"for {amount} more" if amount > 0 else f"with {-amount} back"


def named(amount: Decimal) -> str:
    """What a proposal has to name of a difference in price; what is paid back may be written as less than nothing."""
    back = -amount
    return f"{amount}" if amount > 0 else f"{back}|{back:,}|{int(back)}|{int(back):,}"


def _best(found: Sequence[Offer], wanted: str) -> list[Offer]:
    """The offers that are what a user wants of them: more than one where the wish does not tell them apart."""
    if wanted == "cheapest":
        least = min(offer.fare for offer in found)
        return [offer for offer in found if offer.fare == least]
    times = [offer.departs for offer in found]
    time = min(times) if wanted == "earliest" else max(times)
    return [offer for offer in found if offer.departs == time]
