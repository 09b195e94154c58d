"""The questions that a customer can have: nothing changes, and a fact that a tool has shown is to be told."""

from understudy.domains.airline import phrases
from understudy.domains.airline.drafts import Draft
from understudy.domains.airline.itineraries import day_key, past, paths
from understudy.domains.airline.network import HUBS, PLACES, city
from understudy.domains.airline.searches import Search, search
from understudy.domains.airline.state import TODAY, Cabin, FlightStatus, Reservation
from understudy.domains.airline.terms import BAG, INSURANCE, MOST_BAGS, bags_price
from understudy.domains.airline.wants import times
from understudy.domains.airline.world import COMING
from understudy.domains.callers import Knowledge
from understudy.domains.days import month_day
from understudy.domains.drafts import Want, call, say

_SAYS: dict[FlightStatus, str] = {
    "scheduled": "is scheduled",
    "on time": "is on time",
    "delayed": "is delayed",
    "departed": "has departed",
    "landed": "has landed",
    "cancelled": "is cancelled",
}
_WORDS: dict[FlightStatus, str] = {"cancelled": "cancelled|canceled", "delayed": "delayed|late"}


def status(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask how a flight stands."""
    ref = draft.ref(reservation, knows)
    now = draft.today(reservation) if draft.likely(0.75) else draft.ready(reservation, one_way=True)
    trip = now.trips[0]
    number = trip.flights[0]
    stands, delay = _stands(draft, number, trip.date)
    text = draft.pick(phrases.STATUS, which="the flight of" if len(trip.flights) == 1 else "the first flight of")
    answer = f"Flight {number} on {month_day(trip.date)} {_SAYS[stands]}" + (f" by {delay} minutes." if delay else ".")
    turns = (call("get_flight_status", flight=number, date=trip.date), say(answer))
    outputs = (_WORDS.get(stands, stands), *((f"{delay}",) if delay and not easy else ()))
    return Want(text, ref, turns, "text", outputs=outputs)


def times_of_day(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask when a trip begins or ends."""
    ref, starts = draft.ref(reservation, knows), draft.likely(0.5)
    trip = draft.ready(reservation, one_way=True).trips[0]
    number = trip.flights[0 if starts else -1]
    flight = draft.world.flights[number]
    verb, time = ("departs", flight.departs) if starts else ("arrives", flight.arrives)
    text = draft.pick(phrases.DEPARTS if starts else phrases.ARRIVES)
    turns = (call("get_flight_status", flight=number, date=trip.date), say(f"Flight {number} {verb} at {time}."))
    return Want(text, ref, turns, "text", outputs=(f"{time}|{_on_twelve(time)}",))


def paid(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask what a reservation cost."""
    ref, price = draft.ref(reservation, knows), f"{draft.state().reservations[reservation.id].paid}"
    answer = say(f"Reservation {reservation.id} was {price} in all.")
    return Want(draft.pick(phrases.PAID), ref, (answer,), "number", outputs=(price,))


def bags_quote(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask what further bags would cost."""
    ref, now = draft.ref(reservation, knows), draft.ready(reservation)
    room = MOST_BAGS * len(now.passengers) - now.bags
    dear = [more for more in range(1, room + 1) if bags_price(draft.customer, now, more)][:3]
    if not dear:
        return paid(draft, reservation, knows, ok, easy)
    more = draft.random.choice(dear)
    price = bags_price(draft.customer, now, more)
    text = draft.pick(phrases.BAGS_PRICE, bags=phrases.more_bags(more))
    turns = (*times(BAG, int(price / BAG)), say(f"That would be {price}."))
    return Want(text, ref, turns, "number", outputs=(f"{price}",))


def fare(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask for the lowest fare of a way; or, not as easy, for what some people would pay with insurance."""
    found = _wanted(draft)
    price, number = found.found.fare, draft.random.randint(2, 4)
    origin, goal = (f"{city(code)} ({code})" if easy else city(code) for code in (found.origin, found.goal))
    words = {"origin": origin, "goal": goal, "date": month_day(found.date), "cabin": found.cabin}
    if easy:
        answer = say(f"The cheapest one is {found.found.flights[0]} for {price}.")
        return Want(draft.pick(phrases.FARE, **words), None, (*found.calls, answer), "number", outputs=(f"{price}",))
    total = number * (price + INSURANCE)
    text = draft.pick(phrases.QUOTE, number=phrases.NUMBERS[number], **words)
    sums = call("calculate", expression=f"({price} + {INSURANCE}) * {number}")
    turns = (call("list_airports"), *found.calls, sums, say(f"That would be {total} in all."))
    return Want(text, None, turns, "number", outputs=(f"{total}",))


def _wanted(draft: Draft) -> Search:
    """A search for the cheapest direct flight between a hub and any other city."""
    hub = draft.random.choice(HUBS)
    other = draft.random.choice([code for code in PLACES if code != hub and paths(draft.world, hub, code, 0)])
    way = (hub, other) if draft.likely(0.5) else (other, hub)
    cabin: Cabin = draft.random.choice(("basic economy", "economy", "business"))
    return search(draft, way, COMING, cabin, wishes=("cheapest",))


def _stands(draft: Draft, number: str, date: str) -> tuple[FlightStatus, int]:
    """How a flight stands, drawn anew for one of today's that no other request is about."""
    day = draft.state().days[day_key(number, date)]
    if date != TODAY or "status" in draft.setup.get("days", {}).get(day_key(number, date), {}):
        return day.status, day.delay
    flight = draft.world.flights[number]
    stands: FlightStatus = draft.random.choice(("on time", "delayed", "cancelled"))
    if past(date, flight.departs):
        stands = "landed" if past(date, flight.arrives) else "departed"
    delay = 5 * draft.random.randint(3, 60) if stands == "delayed" else 0
    draft.patch("days", day_key(number, date), status=stands, delay=delay)
    return stands, delay


def _on_twelve(time: str) -> str:
    """A time as in 2:05 PM."""
    hour, minute = time.split(":")
    return f"{(int(hour) - 1) % 12 + 1}:{minute} {'AM' if int(hour) < 12 else 'PM'}"
