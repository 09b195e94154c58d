"""Questions of customers: nothing changes, and the agent must tell a fact that a tool shows."""

from understudy.domains.airline.goals.base import NUMBERS, calculate_total, format_more_bags
from understudy.domains.airline.goals.flight_search import FlightSearch, draw_flight_search
from understudy.domains.airline.itineraries import day_key, find_paths, is_past
from understudy.domains.airline.policy_rules import BAG_PRICE, INSURANCE_PRICE, MAX_BAGS, bags_price
from understudy.domains.airline.route_network import AIRPORTS, HUBS, city_of
from understudy.domains.airline.state import TODAY, Cabin, FlightStatus, Reservation
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.airline.world import FUTURE_DATES
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_text
from understudy.envs.dates import format_month_day

_SAYS: dict[FlightStatus, str] = {
    "scheduled": "is scheduled",
    "on time": "is on time",
    "delayed": "is delayed",
    "departed": "has departed",
    "landed": "has landed",
    "cancelled": "is cancelled",
}
_WORDS: dict[FlightStatus, str] = {"cancelled": "cancelled|canceled", "delayed": "delayed|late"}


def ask_flight_status(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for the status of a flight."""
    mention = builder.reservation_mention(reservation, knowledge)
    now = builder.set_today(reservation) if builder.draw_bool(0.75) else builder.set_upcoming(reservation, one_way=True)
    trip = now.trips[0]
    number = trip.flights[0]
    stands, delay = _stands(builder, number, trip.date)
    text = builder.phrase("status", which="the flight of" if len(trip.flights) == 1 else "the first flight of")
    answer = f"Flight {number} on {format_month_day(trip.date)} {_SAYS[stands]}" + (
        f" by {delay} minutes." if delay else "."
    )
    turns = (gold_call("get_flight_status", flight=number, date=trip.date), gold_text(answer))
    outputs = (_WORDS.get(stands, stands), *((f"{delay}",) if delay and not easy else ()))
    return GoalSpec(text, mention, turns, "text", outputs=outputs)


def ask_flight_time(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for the departure or arrival time of a trip."""
    mention, starts = builder.reservation_mention(reservation, knowledge), builder.draw_bool(0.5)
    trip = builder.set_upcoming(reservation, one_way=True).trips[0]
    number = trip.flights[0 if starts else -1]
    flight = builder.world.flights[number]
    verb, time = ("departs", flight.departs) if starts else ("arrives", flight.arrives)
    text = builder.phrase("departs" if starts else "arrives")
    turns = (
        gold_call("get_flight_status", flight=number, date=trip.date),
        gold_text(f"Flight {number} {verb} at {time}."),
    )
    return GoalSpec(text, mention, turns, "text", outputs=(f"{time}|{_on_twelve(time)}",))


def ask_price_paid(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask what a reservation cost."""
    mention, price = (
        builder.reservation_mention(reservation, knowledge),
        f"{builder.current_state().reservations[reservation.id].paid}",
    )
    answer = gold_text(f"The total of reservation {reservation.id} was {price}.")
    return GoalSpec(builder.phrase("paid"), mention, (answer,), "number", outputs=(price,))


def ask_bags_price(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for the price of further bags."""
    mention, now = builder.reservation_mention(reservation, knowledge), builder.set_upcoming(reservation)
    room = MAX_BAGS * len(now.passengers) - now.bags
    dear = [more for more in range(1, room + 1) if bags_price(builder.customer, now, more)][:3]
    if not dear:
        return ask_price_paid(builder, reservation, knowledge, grantable, easy)
    more = builder.rng.choice(dear)
    price = bags_price(builder.customer, now, more)
    text = builder.phrase("bags_price", bags=format_more_bags(more))
    turns = (*calculate_total(BAG_PRICE, int(price / BAG_PRICE)), gold_text(f"That would be {price}."))
    return GoalSpec(text, mention, turns, "number", outputs=(f"{price}",))


def ask_fare(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for the lowest fare of a route, or unless `easy` for the total of several people with insurance."""
    found = _wanted(builder)
    price, number = found.offer.fare, builder.rng.randint(2, 4)
    origin, goal = (
        f"{city_of(code)} ({code})" if easy else city_of(code) for code in (found.origin, found.destination)
    )
    words = {"origin": origin, "goal": goal, "date": format_month_day(found.date), "cabin": found.cabin}
    if easy:
        answer = gold_text(f"The cheapest one is {found.offer.flights[0]} for {price}.")
        return GoalSpec(
            builder.phrase("fare", **words),
            None,
            (*found.lookup_turns, answer),
            "number",
            outputs=(f"{price}",),
        )
    total = number * (price + INSURANCE_PRICE)
    text = builder.phrase("quote", number=NUMBERS[number], **words)
    sums = gold_call("calculate", expression=f"({price} + {INSURANCE_PRICE}) * {number}")
    turns = (gold_call("list_airports"), *found.lookup_turns, sums, gold_text(f"That would be {total} in total."))
    return GoalSpec(text, None, turns, "number", outputs=(f"{total}",))


def _wanted(builder: AirlineTaskBuilder) -> FlightSearch:
    """Draw a search for the cheapest direct flight between a hub and any other city."""
    hub = builder.rng.choice(HUBS)
    other = builder.rng.choice([code for code in AIRPORTS if code != hub and find_paths(builder.world, hub, code, 0)])
    way = (hub, other) if builder.draw_bool(0.5) else (other, hub)
    cabin: Cabin = builder.rng.choice(("basic economy", "economy", "business"))
    return draw_flight_search(builder, way, FUTURE_DATES, cabin, preferences=("cheapest",))


def _stands(builder: AirlineTaskBuilder, number: str, date: str) -> tuple[FlightStatus, int]:
    """Return status and delay of a flight. Draw them anew for a flight of today that the setup has not set."""
    day = builder.current_state().days[day_key(number, date)]
    if date != TODAY or "status" in builder.setup.get("days", {}).get(day_key(number, date), {}):
        return day.status, day.delay
    flight = builder.world.flights[number]
    stands: FlightStatus = builder.rng.choice(("on time", "delayed", "cancelled"))
    if is_past(date, flight.departs):
        stands = "landed" if is_past(date, flight.arrives) else "departed"
    delay = 5 * builder.rng.randint(3, 60) if stands == "delayed" else 0
    builder.patch("days", day_key(number, date), status=stands, delay=delay)
    return stands, delay


def _on_twelve(time: str) -> str:
    """Return a time as in 2:05 PM."""
    hour, minute = time.split(":")
    return f"{(int(hour) - 1) % 12 + 1}:{minute} {'AM' if int(hour) < 12 else 'PM'}"
