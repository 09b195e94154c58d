"""Requests to fly otherwise than booked: on other flights, or in another cabin. `wants` says what `ok` means."""

from dataclasses import replace
from typing import Any

from understudy.domains.airline import phrases
from understudy.domains.airline.drafts import Draft, Ref
from understudy.domains.airline.network import DATES
from understudy.domains.airline.searches import Search, at_price, difference, named, same, search, sold_out
from understudy.domains.airline.state import Cabin, Reservation, Way
from understudy.domains.airline.wants import kind_of, landed, refused, unchangeable
from understudy.domains.airline.world import COMING
from understudy.domains.callers import Knowledge
from understudy.domains.days import any_day, month_day
from understudy.domains.drafts import Want, call, change, say
from understudy.domains.talks import MIND
from understudy.messages import Message
from understudy.tasks import Fact

_DATE = ("which date", "what date", "which day", "what day", "when", "new date")


def change_flights(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Fly on another date."""
    ref = draft.ref(reservation, knows)
    cause = "" if ok else draft.random.choice(("basic", "sold out") if easy else ("basic", "sold out", "flown"))
    cabin: Cabin = "basic economy" if cause == "basic" else draft.random.choice(("economy", "economy", "business"))
    now = draft.ready(reservation, cabin=cabin, one_way=easy)
    way, new = _other_date(draft, now)
    vague = not easy and draft.likely(0.3)
    date = Fact(says=f"To {month_day(new.date)}.", cues=_DATE, opened=not vague)
    text = _flights_text(draft, now, way, new, vague)
    text += f" {draft.pick(phrases.BEST[new.wanted])}, please." if vague else ""
    payer = "" if easy or draft.likely(0.6) else draft.other_card(now.payment)
    text += f" The difference goes to my {kind_of(payer)}." if payer else ""
    want = Want(text, ref, names=(*ref.names, any_day(new.date)), facts=(date,))
    asks = (say("To which date do you want to change?"),) if vague else ()
    if cause == "flown":
        return landed(draft, want, reservation, "change it", asks, cabin=cabin)
    if cause == "basic":
        refusal = say(f"Reservation {now.id} is basic economy, so I cannot change its flights.")
        return refused(draft, want, refusal, "basic economy", easy, asks)
    if cause == "sold out":
        return sold_out(draft, want, new, easy, (*asks, *new.calls))
    return _changing(draft, want, ref, now, way, new, asks, payer)


def other_date(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Name one date, and another one when asked to confirm it."""
    ref = draft.ref(reservation, knows)
    cabin: Cabin = draft.random.choice(("economy", "business"))
    now = draft.ready(reservation, cabin=cabin, one_way=True)
    way, first = _other_date(draft, now)
    later_on = [date for date in COMING if date not in (first.date, now.trips[0].date)]
    then = search(draft, (first.origin, first.goal), later_on, cabin, now.trips)
    want = Want(_flights_text(draft, now, way, first, False), ref, names=(*ref.names, any_day(then.date)))
    asked = _changing(draft, want, ref, now, way, first, ())
    meant = f"{draft.pick(MIND)} {_flights_text(draft, now, way, then, False)}"
    return replace(_changing(draft, want, ref, now, way, then, asked.turns[:-2]), meant=meant)


def _other_date(draft: Draft, now: Reservation) -> tuple[Way, Search]:
    """A trip of the reservation, and flights for it on another date that keeps the order of the trips."""
    out, *back = now.trips
    free = [date for date in DATES[9:] if date != out.date and all(date < trip.date for trip in back)]
    way: Way = "return" if back and (len(free) < 4 or draft.likely(0.5)) else "outbound"
    trip = back[0] if way == "return" else out
    if way == "return":
        free = [date for date in DATES if date > out.date and date != trip.date]
    origin, goal = trip.route.split("-")
    return way, search(draft, (origin, goal), free, now.cabin, [trip])


def _flights_text(draft: Draft, now: Reservation, way: Way, new: Search, vague: bool) -> str:
    which = phrases.WHICH[way if len(now.trips) > 1 else "only"]
    best = draft.pick(phrases.BEST[new.wanted])
    texts = phrases.FLIGHTS_VAGUE if vague else phrases.FLIGHTS
    return draft.pick(texts, which=which, date=month_day(new.date), best=best)


def _changing(
    draft: Draft,
    want: Want,
    ref: Ref,
    now: Reservation,
    way: Way,
    new: Search,
    asks: tuple[Message, ...],
    payer: str = "",
) -> Want:
    old, heads = now.trips[way == "return"], len(now.passengers)
    amount, reads = difference([(old.fare, new.found.fare)], heads)
    draft.covers(payer or now.payment, amount)
    arguments: dict[str, Any] = {"reservation_id": now.id, "way": way, "flights": list(new.found.flights)}
    arguments["date"] = new.date
    proposal = f"change the {way} trip of {ref.named} to {new.said} {at_price(amount)}"
    names, get = (*want.names, named(amount)), tuple[Message, ...]()
    if payer:
        arguments["payment_id"], get = payer, (call("get_customer"),)
        proposal += f", with your {kind_of(payer)} {payer}"
        names += (f"{kind_of(payer)}|{payer}",)
    do = change(proposal, call("change_flights", **arguments), "The flights are changed.")
    return replace(want, names=names, turns=(*asks, *new.calls, reads, *get, *do))


def change_cabin(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Fly in another cabin."""
    ref = draft.ref(reservation, knows)
    down = not easy and draft.likely(0.3)
    old: Cabin = "business" if down else "economy"
    new: Cabin = "economy" if down else "business"
    want = Want(draft.pick(phrases.CABIN, cabin=new), ref, names=(*ref.names, new))
    cause = "" if ok else draft.random.choice(("basic", "sold out", "other"))
    if cause == "other":
        return unchangeable(draft, want, reservation, "change its cabin", easy, cabin=old)
    now = draft.ready(reservation, cabin="basic economy" if cause == "basic" else old, one_way=easy)
    if cause == "basic":
        refusal = say(f"Reservation {now.id} is basic economy, so I cannot change its cabin.")
        return refused(draft, want, refusal, "basic economy", easy)
    for flight, date in now.flights:
        draft.offer(flight, date, new)
    full = draft.random.choice(now.flights) if cause else None
    if full:
        draft.leave(*full, new, 0)
    searches = [same(draft, trip, new) for trip in now.trips]
    calls = tuple(message for one in searches for message in one.calls)
    if full:
        which = next(i for i, trip in enumerate(now.trips) if full[0] in trip.flights)
        return sold_out(draft, want, searches[which], easy, sum((s.calls for s in searches[: which + 1]), ()))
    pairs = [(trip.fare, one.found.fare) for trip, one in zip(now.trips, searches, strict=True)]
    amount, reads = difference(pairs, len(now.passengers))
    draft.covers(now.payment, amount)
    do = call("change_cabin", reservation_id=now.id, cabin=new)
    turns = change(f"change {ref.named} to {new} {at_price(amount)}", do, "The cabin is changed.")
    return replace(want, names=(*want.names, named(amount)), turns=(*calls, reads, *turns))
