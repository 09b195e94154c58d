"""Requests to change the flights or the cabin of a reservation. `base` defines `grantable`."""

from dataclasses import replace
from typing import Any

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.airline.goals.base import (
    add_flown_refusal,
    add_refusal,
    add_unchangeable_refusal,
    payment_kind,
)
from understudy.domains.airline.goals.flight_search import (
    FlightSearch,
    add_sold_out_refusal,
    calculate_fare_difference,
    draw_flight_search,
    format_price_difference,
    price_difference_variants,
    same_flights_in_cabin,
)
from understudy.domains.airline.route_network import DATES
from understudy.domains.airline.state import Cabin, Reservation, TripDirection
from understudy.domains.airline.task_builder import AirlineTaskBuilder, ReservationMention
from understudy.domains.airline.world import FUTURE_DATES
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change, gold_text
from understudy.envs.dates import date_variants, format_month_day

_WHICH_FLIGHT = {"only": "the flight of", "outbound": "the outbound flight of", "return": "the return flight of"}
_DATE = ("which date", "what date", "which day", "what day", "when", "new date")


def change_flights(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Change the date of a trip."""
    mention = builder.reservation_mention(reservation, knowledge)
    cause = "" if grantable else builder.rng.choice(("basic", "sold out") if easy else ("basic", "sold out", "flown"))
    cabin: Cabin = "basic economy" if cause == "basic" else builder.rng.choice(("economy", "economy", "business"))
    now = builder.set_upcoming(reservation, cabin=cabin, one_way=easy)
    direction, new = _other_date(builder, now)
    vague = not easy and builder.draw_bool(0.3)
    date = Fact(
        text=builder.phrase("new_date", date=format_month_day(new.date)),
        keywords=_DATE,
        in_opening=not vague,
    )
    text = _flights_text(builder, now, direction, new, vague)
    text += f" I'd like {builder.phrase(f'vague_best.{new.preference}')}." if vague else ""
    is_dearer = new.offer.fare > now.trips[direction == "return"].fare
    payer = "" if easy or not is_dearer or builder.draw_bool(0.6) else builder.pick_other_card(now.payment)
    text += f" {builder.phrase('difference_by', kind=payment_kind(payer))}" if payer else ""
    goal = GoalSpec(text, mention, required_terms=(*mention.required_terms, date_variants(new.date)), facts=(date,))
    asks = (gold_text("Which date do you want to change to?"),) if vague else ()
    if cause == "flown":
        return add_flown_refusal(builder, goal, reservation, "change it", asks, cabin=cabin)
    if cause == "basic":
        refusal = gold_text(f"Reservation {now.id} is basic economy, so I cannot change its flights.")
        return add_refusal(builder, goal, refusal, "basic economy", easy, asks)
    if cause == "sold out":
        return add_sold_out_refusal(builder, goal, new, easy, (*asks, *new.lookup_turns))
    return _changing(builder, goal, mention, now, direction, new, asks, payer)


def correct_date(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for one date, then for another one when asked to confirm."""
    mention = builder.reservation_mention(reservation, knowledge)
    cabin: Cabin = builder.rng.choice(("economy", "business"))
    now = builder.set_upcoming(reservation, cabin=cabin, one_way=True)
    direction, first = _other_date(builder, now)
    later_on = [date for date in FUTURE_DATES if date not in (first.date, now.trips[0].date)]
    then = draw_flight_search(builder, (first.origin, first.destination), later_on, cabin, now.trips)
    goal = GoalSpec(
        _flights_text(builder, now, direction, first, False),
        mention,
        required_terms=(*mention.required_terms, date_variants(then.date)),
    )
    asked = _changing(builder, goal, mention, now, direction, first, ())
    meant = f"{builder.phrase('change_of_mind')} {_flights_text(builder, now, direction, then, False)}"
    return replace(_changing(builder, goal, mention, now, direction, then, asked.gold_turns[:-2]), final_text=meant)


def _other_date(builder: AirlineTaskBuilder, now: Reservation) -> tuple[TripDirection, FlightSearch]:
    """Return a trip of the reservation, and flights for it on another date that keeps the order of trips."""
    out, *back = now.trips
    free = [date for date in DATES[9:] if date != out.date and all(date < trip.date for trip in back)]
    direction: TripDirection = "return" if back and (len(free) < 4 or builder.draw_bool(0.5)) else "outbound"
    trip = back[0] if direction == "return" else out
    if direction == "return":
        free = [date for date in DATES if date > out.date and date != trip.date]
    origin, goal = trip.route.split("-")
    return direction, draw_flight_search(builder, (origin, goal), free, now.cabin, [trip])


def _flights_text(
    builder: AirlineTaskBuilder, now: Reservation, direction: TripDirection, new: FlightSearch, vague: bool
) -> str:
    which = _WHICH_FLIGHT[direction if len(now.trips) > 1 else "only"]
    best = builder.phrase(f"best.{new.preference}")
    name = "flights_vague" if vague else "flights"
    return builder.phrase(name, which=which, date=format_month_day(new.date), best=best)


def _changing(
    builder: AirlineTaskBuilder,
    goal: GoalSpec,
    mention: ReservationMention,
    now: Reservation,
    direction: TripDirection,
    new: FlightSearch,
    asks: tuple[Message, ...],
    payer: str = "",
) -> GoalSpec:
    old, heads = now.trips[direction == "return"], len(now.passengers)
    amount, reads = calculate_fare_difference([(old.fare, new.offer.fare)], heads)
    builder.ensure_balance(payer or now.payment, amount)
    arguments: dict[str, Any] = {"reservation_id": now.id, "way": direction, "flights": list(new.offer.flights)}
    arguments["date"] = new.date
    price = format_price_difference(amount)
    proposal = f"change the {direction} trip of {mention.proposal_phrase} to {new.proposal_phrase} {price}"
    names, get = (*goal.required_terms, price_difference_variants(amount)), tuple[Message, ...]()
    if payer:
        arguments["payment_id"], get = payer, (gold_call("get_customer"),)
        proposal += f", with your {payment_kind(payer)} {payer}"
        names += (f"{payment_kind(payer)}|{payer}",)
    do = gold_change(proposal, gold_call("change_flights", **arguments), "The flights have been changed.")
    return replace(goal, required_terms=names, gold_turns=(*asks, *new.lookup_turns, reads, *get, *do))


def change_cabin(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Change the cabin."""
    mention = builder.reservation_mention(reservation, knowledge)
    down = not easy and builder.draw_bool(0.3)
    old: Cabin = "business" if down else "economy"
    new: Cabin = "economy" if down else "business"
    goal = GoalSpec(builder.phrase("cabin", cabin=new), mention, required_terms=(*mention.required_terms, new))
    cause = "" if grantable else builder.rng.choice(("basic", "sold out", "other"))
    if cause == "other":
        return add_unchangeable_refusal(builder, goal, reservation, "change its cabin", easy, cabin=old)
    now = builder.set_upcoming(reservation, cabin="basic economy" if cause == "basic" else old, one_way=easy)
    if cause == "basic":
        refusal = gold_text(f"Reservation {now.id} is basic economy, so I cannot change its cabin.")
        return add_refusal(builder, goal, refusal, "basic economy", easy)
    for flight, date in now.flights:
        builder.ensure_seats(flight, date, new)
    full = builder.rng.choice(now.flights) if cause else None
    if full:
        builder.set_seats(*full, new, 0)
    searches = [same_flights_in_cabin(builder, trip, new) for trip in now.trips]
    calls = tuple(message for one in searches for message in one.lookup_turns)
    if full:
        which = next(i for i, trip in enumerate(now.trips) if full[0] in trip.flights)
        return add_sold_out_refusal(
            builder, goal, searches[which], easy, sum((s.lookup_turns for s in searches[: which + 1]), ())
        )
    pairs = [(trip.fare, one.offer.fare) for trip, one in zip(now.trips, searches, strict=True)]
    amount, reads = calculate_fare_difference(pairs, len(now.passengers))
    builder.ensure_balance(now.payment, amount)
    do = gold_call("change_cabin", reservation_id=now.id, cabin=new)
    turns = gold_change(
        f"change {mention.proposal_phrase} to {new} {format_price_difference(amount)}",
        do,
        "The cabin has been changed.",
    )
    return replace(
        goal,
        required_terms=(*goal.required_terms, price_difference_variants(amount)),
        gold_turns=(*calls, reads, *turns),
    )
