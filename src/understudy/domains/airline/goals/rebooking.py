"""Requests to change the flights or the cabin of a reservation."""

from dataclasses import replace

from understudy.domains.airline.goals.flight_search import (
    FlightSearch,
    calculate_fare_difference,
    draw_flight_search,
    format_price_difference,
    price_difference_variants,
    refuse_sold_out,
    same_flights_in_cabin,
)
from understudy.domains.airline.goals.reservation import (
    pay_with,
    refuse_basic_economy,
    refuse_flown,
    refuse_unchangeable,
)
from understudy.domains.airline.route_network import DATES
from understudy.domains.airline.state import Cabin, Reservation, TripDirection
from understudy.domains.airline.task_builder import AirlineTaskBuilder, ReservationMention
from understudy.domains.airline.world import FUTURE_DATES
from understudy.domains.authoring.payments import payment_kind
from understudy.domains.authoring.request import (
    VAGUE_SHARE,
    Draw,
    add_detail,
    extend,
    grant,
    plain_request,
)
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.envs.dates import date_variants, format_month_day
from understudy.envs.gold import gold_call

_WHICH_FLIGHT = {"only": "the flight of", "outbound": "the outbound flight of", "return": "the return flight of"}
_WHICH_DATE = ("which date", "what date", "which day", "what day", "when", "new date")


def change_flights(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Change the date of a trip."""
    mention = b.reservation_mention(draw)
    causes = ("basic", "sold out") if draw.easy else ("basic", "sold out", "flown")
    cause = "" if draw.grantable else b.rng.choice(causes)
    cabin: Cabin = "basic economy" if cause == "basic" else b.rng.choice(("economy", "economy", "business"))
    now = b.set_upcoming(draw.entity, cabin=cabin, one_way=draw.easy)
    direction, new = _draw_other_date(b, now)
    if cause == "flown" and direction == "return":  # which is still ahead, and so can be changed
        cause = "sold out"
    vague = not draw.easy and b.draw_bool(VAGUE_SHARE)
    date = b.phrase("new_date", date=format_month_day(new.date))
    text = b.phrase("flights_vague" if vague else "flights", **_flight_words(b, now, direction, new))
    goal = plain_request(text, mention, date_variants(new.date))
    goal = add_detail(goal, date, "Which date do you want to change to?", _WHICH_DATE, vague=vague)
    if vague:
        goal = extend(goal, f"I'd like {b.phrase(f'vague_best.{new.preference}')}.")
    dearer = new.offer.fare > now.trips[direction == "return"].fare
    payer = "" if draw.easy or not dearer or b.draw_bool(0.6) else b.pick_other_card(now.payment)
    if payer:
        goal = extend(goal, b.phrase("difference_by", kind=payment_kind(payer)))
    if cause == "flown":
        return refuse_flown(b, draw, goal, "change it", cabin=cabin)
    if cause == "basic":
        return refuse_basic_economy(b, draw, goal, "change its flights")
    if cause == "sold out":
        return refuse_sold_out(b, draw, goal, new)
    return _grant_flights(b, goal, mention, now, direction, new, payer)


def correct_date(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Ask for one date, then for another one when asked to confirm."""
    mention = b.reservation_mention(draw)
    cabin: Cabin = b.rng.choice(("economy", "business"))
    now = b.set_upcoming(draw.entity, cabin=cabin, one_way=True)
    direction, first = _draw_other_date(b, now)
    other_dates = [date for date in FUTURE_DATES if date not in (first.date, now.trips[0].date)]
    second = draw_flight_search(b, (first.origin, first.destination), other_dates, cabin, now.trips)
    text = b.phrase("flights", **_flight_words(b, now, direction, first))
    goal = plain_request(text, mention, date_variants(second.date))
    proposed = _grant_flights(b, goal, mention, now, direction, first).gold_turns[:-2]
    wish = b.phrase("change_of_mind")
    wish += f" {b.phrase('flights', **_flight_words(b, now, direction, second))}"
    goal = replace(goal, gold_turns=proposed, final_text=wish)
    return _grant_flights(b, goal, mention, now, direction, second)


def _draw_other_date(b: AirlineTaskBuilder, now: Reservation) -> tuple[TripDirection, FlightSearch]:
    """Return a trip of the reservation, and flights for it on another date that keeps the order of trips."""
    outbound, *back = now.trips
    dates = [date for date in DATES[9:] if date != outbound.date and all(date < trip.date for trip in back)]
    direction: TripDirection = "return" if back and (len(dates) < 4 or b.draw_bool(0.5)) else "outbound"
    trip = back[0] if direction == "return" else outbound
    if direction == "return":
        dates = [date for date in DATES if date > outbound.date and date != trip.date]
    origin, destination = trip.route.split("-")
    return direction, draw_flight_search(b, (origin, destination), dates, now.cabin, [trip])


def _flight_words(
    b: AirlineTaskBuilder, now: Reservation, direction: TripDirection, new: FlightSearch
) -> dict[str, str]:
    which = _WHICH_FLIGHT[direction if len(now.trips) > 1 else "only"]
    return {"which": which, "date": format_month_day(new.date), "best": b.phrase(f"best.{new.preference}")}


def _grant_flights(
    b: AirlineTaskBuilder,
    goal: GoalSpec,
    mention: ReservationMention,
    now: Reservation,
    direction: TripDirection,
    new: FlightSearch,
    payer: str = "",
) -> GoalSpec:
    fares = [(now.trips[direction == "return"].fare, new.offer.fare)]
    amount, calculation = calculate_fare_difference(fares, len(now.passengers))
    b.ensure_balance(payer or now.payment, amount)
    payment, payer_argument, payer_reads, payer_terms = pay_with(payer)
    arguments = {"reservation_id": now.id, "way": direction, "flights": list(new.offer.flights), "date": new.date}
    call = gold_call("change_flights", **arguments, **payer_argument)
    proposal = f"change the {direction} trip of {mention.proposal_phrase} to {new.proposal_phrase}"
    proposal += f" {format_price_difference(amount)}{payment}"
    reads = (*new.lookup_turns, calculation, *payer_reads)
    terms = (price_difference_variants(amount), *payer_terms)
    return grant(goal, proposal, call, "The flights have been changed.", reads, terms=terms)


def change_cabin(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Change the cabin."""
    mention = b.reservation_mention(draw)
    downgrade = not draw.easy and b.draw_bool(0.3)
    old: Cabin = "business" if downgrade else "economy"
    new: Cabin = "economy" if downgrade else "business"
    goal = plain_request(b.phrase("cabin", cabin=new), mention, new)
    cause = "" if draw.grantable else b.rng.choice(("basic", "sold out", "other"))
    if cause == "other":
        return refuse_unchangeable(b, draw, goal, "change its cabin", cabin=old)
    now = b.set_upcoming(draw.entity, cabin="basic economy" if cause == "basic" else old, one_way=draw.easy)
    if cause == "basic":
        return refuse_basic_economy(b, draw, goal, "change its cabin")
    for flight, date in now.flights:
        b.ensure_seats(flight, date, new)
    full = b.rng.choice(now.flights) if cause else None
    if full:
        b.set_seats(*full, new, 0)
    searches = [same_flights_in_cabin(b, trip, new) for trip in now.trips]
    reads = [turn for search in searches for turn in search.lookup_turns]
    if full:
        search = next(search for search, trip in zip(searches, now.trips, strict=True) if full[0] in trip.flights)
        before = searches[0].lookup_turns if search is not searches[0] else ()
        return refuse_sold_out(b, draw, goal, search, before)
    fares = [(trip.fare, search.offer.fare) for trip, search in zip(now.trips, searches, strict=True)]
    amount, calculation = calculate_fare_difference(fares, len(now.passengers))
    b.ensure_balance(now.payment, amount)
    call = gold_call("change_cabin", reservation_id=now.id, cabin=new)
    proposal = f"change {mention.proposal_phrase} to {new} {format_price_difference(amount)}"
    terms = [price_difference_variants(amount)]
    return grant(goal, proposal, call, "The cabin has been changed.", [*reads, calculation], terms=terms)
