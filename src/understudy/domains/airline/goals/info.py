"""Questions of customers: nothing changes, and the agent must tell a fact that a tool shows."""

from understudy.domains.airline.goals.flight_search import FlightSearch, draw_flight_search
from understudy.domains.airline.goals.reservation import NUMBERS, calculate_total, format_more_bags, read_flight_status
from understudy.domains.airline.itineraries import day_key, find_paths, is_past
from understudy.domains.airline.policy_rules import BAG_PRICE, INSURANCE_PRICE, MAX_BAGS, bags_price
from understudy.domains.airline.route_network import AIRPORTS, HUBS
from understudy.domains.airline.state import TODAY, Cabin, FlightStatus, Reservation
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.airline.world import FUTURE_DATES
from understudy.domains.authoring.request import Draw, answer
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.envs.dates import format_month_day
from understudy.envs.gold import gold_call

_STATUS_TEXTS: dict[FlightStatus, str] = {
    "scheduled": "is scheduled",
    "on time": "is on time",
    "delayed": "is delayed",
    "departed": "has departed",
    "landed": "has landed",
    "cancelled": "is cancelled",
}
_STATUS_TERMS: dict[FlightStatus, str] = {"cancelled": "cancelled|canceled", "delayed": "delayed|late"}


def ask_flight_status(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Ask for the status of a flight."""
    mention = b.reservation_mention(draw)
    now = b.set_today(draw.entity) if b.draw_bool(0.75) else b.set_upcoming(draw.entity, one_way=True)
    trip = now.trips[0]
    flight = trip.flights[0]
    status, delay = _draw_status(b, flight, trip.date)
    which = "the flight of" if len(trip.flights) == 1 else "the first flight of"
    goal = GoalSpec(b.phrase("status", which=which), mention, kind="text")
    text = f"Flight {flight} on {format_month_day(trip.date)} {_STATUS_TEXTS[status]}"
    text += f" by {delay} minutes." if delay else "."
    outputs = (_STATUS_TERMS.get(status, status), *([f"{delay}"] if delay and not draw.easy else []))
    return answer(goal, text, *outputs, reads=[read_flight_status(flight, trip.date)])


def ask_flight_time(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Ask for the departure or arrival time of a trip."""
    mention, departure = b.reservation_mention(draw), b.draw_bool(0.5)
    trip = b.set_upcoming(draw.entity, one_way=True).trips[0]
    number = trip.flights[0 if departure else -1]
    flight = b.world.flights[number]
    verb, time = ("departs", flight.departs) if departure else ("arrives", flight.arrives)
    goal = GoalSpec(b.phrase(verb), mention, kind="text")
    hour, minute = time.split(":")
    twelve_hour = f"{(int(hour) - 1) % 12 + 1}:{minute} {'AM' if int(hour) < 12 else 'PM'}"
    reads = [read_flight_status(number, trip.date)]
    return answer(goal, f"Flight {number} {verb} at {time}.", f"{time}|{twelve_hour}", reads=reads)


def ask_price_paid(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Ask what a reservation cost."""
    mention = b.reservation_mention(draw)
    price = f"{b.current_state().reservations[draw.entity.id].paid}"
    goal = GoalSpec(b.phrase("paid"), mention, kind="number")
    return answer(goal, f"The total of reservation {draw.entity.id} was {price}.", price)


def ask_bags_price(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Ask for the price of further bags."""
    mention, now = b.reservation_mention(draw), b.set_upcoming(draw.entity)
    room = MAX_BAGS * len(now.passengers) - now.bags
    prices = {number: bags_price(b.customer, now, number) for number in range(1, room + 1)}
    charged = [number for number, price in prices.items() if price][:3]
    if not charged:
        return ask_price_paid(b, draw)
    number = b.rng.choice(charged)
    price = prices[number]
    goal = GoalSpec(b.phrase("bags_price", bags=format_more_bags(number)), mention, kind="number")
    reads = calculate_total(BAG_PRICE, int(price / BAG_PRICE))
    return answer(goal, f"That would be {price}.", f"{price}", reads=reads)


def ask_fare(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Ask for the lowest fare of a route, or unless easy for the total of several people with insurance."""
    search = _draw_direct_search(b)
    price, number = search.offer.fare, b.rng.randint(2, 4)
    origin, destination = search.spoken_route(with_codes=draw.easy)
    words = {"origin": origin, "goal": destination, "date": format_month_day(search.date), "cabin": search.cabin}
    if draw.easy:
        goal = GoalSpec(b.phrase("fare", **words), kind="number")
        text = f"The cheapest one is {search.offer.flights[0]} for {price}."
        return answer(goal, text, f"{price}", reads=search.lookup_turns)
    goal = GoalSpec(b.phrase("quote", number=NUMBERS[number], **words), kind="number")
    total = number * (price + INSURANCE_PRICE)
    calculation = gold_call("calculate", expression=f"({price} + {INSURANCE_PRICE}) * {number}")
    reads = (gold_call("list_airports"), *search.lookup_turns, calculation)
    return answer(goal, f"That would be {total} in total.", f"{total}", reads=reads)


def _draw_direct_search(b: AirlineTaskBuilder) -> FlightSearch:
    """Draw a search for the cheapest direct flight between a hub and any other city."""
    hub = b.rng.choice(HUBS)
    other = b.rng.choice([code for code in AIRPORTS if code != hub and find_paths(b.world, hub, code, 0)])
    route = (hub, other) if b.draw_bool(0.5) else (other, hub)
    cabin: Cabin = b.rng.choice(("basic economy", "economy", "business"))
    return draw_flight_search(b, route, FUTURE_DATES, cabin, preferences=("cheapest",))


def _draw_status(b: AirlineTaskBuilder, number: str, date: str) -> tuple[FlightStatus, int]:
    """Return status and delay of a flight. Draw them anew for a flight of today that the setup has not set."""
    key = day_key(number, date)
    day = b.current_state().days[key]
    if date != TODAY or "status" in b.setup.get("days", {}).get(key, {}):
        return day.status, day.delay
    flight = b.world.flights[number]
    status: FlightStatus = b.rng.choice(("on time", "delayed", "cancelled"))
    if is_past(date, flight.departs):
        status = "landed" if is_past(date, flight.arrives) else "departed"
    delay = 5 * b.rng.randint(3, 60) if status == "delayed" else 0
    b.patch("days", key, status=status, delay=delay)
    return status, delay
