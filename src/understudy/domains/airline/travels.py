"""Requests about where and how to fly: other flights, another cabin, a new booking. `wants` says what `ok` means."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from understudy.domains.airline import phrases
from understudy.domains.airline.drafts import Draft, Ref, dated, spoken
from understudy.domains.airline.itineraries import Offer, offers, paths
from understudy.domains.airline.network import DATES, PLACES, city
from understudy.domains.airline.state import Cabin, Reservation, Trip, Way
from understudy.domains.airline.terms import INSURANCE
from understudy.domains.airline.wants import kind_of, landed, refused, unchangeable
from understudy.domains.airline.world import COMING, home, later
from understudy.domains.callers import Knowledge
from understudy.domains.drafts import Want, call, change, say
from understudy.domains.people import FIRST
from understudy.domains.talks import MIND
from understudy.messages import Message
from understudy.tasks import Fact

_DATE = ("which date", "what date", "which day", "what day", "when", "new date")
_PAY = ("how do you want", "which payment", "what payment", "payment method", "pay with", "like to pay")
_WHO = ("who", "passenger", "how many", "alone", "anybody")
_BOOK = "book|booking|booked|reserve"


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
        return f"{' and '.join(self.found.flights)} on {spoken(self.date)}"


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
            best = phrases.best(made, wanted)
            if len(best) == 1 and best[0].fare not in fares:
                return Search(*way, date, cabin, wanted, best[0])
    raise AssertionError(f"no flights from {way[0]} to {way[1]} on any of {dates}")


def change_flights(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Fly on another date."""
    ref = draft.ref(reservation, knows)
    cause = "" if ok else draft.random.choice(("basic", "sold out") if easy else ("basic", "sold out", "flown"))
    cabin: Cabin = "basic economy" if cause == "basic" else draft.random.choice(("economy", "economy", "business"))
    now = draft.ready(reservation, cabin=cabin, one_way=easy)
    way, new = _other_date(draft, now)
    vague = not easy and draft.likely(0.3)
    date = Fact(says=f"To {spoken(new.date)}.", cues=_DATE, opened=not vague)
    text = _flights_text(draft, now, way, new, vague)
    want = Want(text, ref, names=(*ref.names, dated(new.date)), facts=(date,))
    if vague:
        want = replace(want, text=f"{text} {draft.pick(phrases.BEST[new.wanted])}, please.")
    asks = (say("To which date do you want to change?"),) if vague else ()
    if cause == "flown":
        return landed(draft, want, reservation, "change it", asks)
    if cause == "basic":
        refusal = say(f"Reservation {now.id} is basic economy, so I cannot change its flights.")
        return refused(draft, want, refusal, "basic economy", easy, asks)
    if cause == "sold out":
        return _sold_out(draft, want, new, easy, (*asks, *new.calls))
    return _changing(draft, want, ref, now, way, new, asks, easy)


def other_date(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Name one date, and another one when asked to confirm it."""
    ref = draft.ref(reservation, knows)
    cabin: Cabin = draft.random.choice(("economy", "business"))
    now = draft.ready(reservation, cabin=cabin, one_way=True)
    way, first = _other_date(draft, now)
    later_on = [date for date in COMING if date not in (first.date, now.trips[0].date)]
    then = search(draft, (first.origin, first.goal), later_on, cabin, now.trips)
    want = Want(_flights_text(draft, now, way, first, False), ref, names=(*ref.names, dated(then.date)))
    asked = _changing(draft, want, ref, now, way, first, (), True)
    meant = f"{draft.pick(MIND)} {_flights_text(draft, now, way, then, False)}"
    return replace(_changing(draft, want, ref, now, way, then, asked.turns[:-2], True), meant=meant)


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
    which = draft.pick(phrases.WHICH[way if len(now.trips) > 1 else "only"])
    best = draft.pick(phrases.BEST[new.wanted])
    texts = phrases.FLIGHTS_VAGUE if vague else phrases.FLIGHTS
    return draft.pick(texts, which=which, date=spoken(new.date), best=best)


def _changing(
    draft: Draft, want: Want, ref: Ref, now: Reservation, way: Way, new: Search, asks: tuple[Message, ...], easy: bool
) -> Want:
    old, heads = now.trips[way == "return"], len(now.passengers)
    amount, reads = difference([(old.fare, new.found.fare)], heads)
    payer = "" if easy or draft.likely(0.6) else _payer(draft, now.payment)
    draft.covers(payer or now.payment, amount)
    arguments: dict[str, Any] = {
        "reservation_id": now.id, "way": way, "flights": list(new.found.flights), "date": new.date
    }  # fmt: skip
    proposal = f"change the {way} trip of {ref.named} to {new.said} {_for(amount)}"
    names, text, get = (*want.names, f"{abs(amount)}"), want.text, tuple[Message, ...]()
    if payer:
        arguments["payment_id"], get = payer, (call("get_customer"),)
        proposal += f", with your {kind_of(payer)} {payer}"
        names, text = (*names, f"{kind_of(payer)}|{payer}"), f"{text} The difference goes to my {kind_of(payer)}."
    do = change(proposal, call("change_flights", **arguments), "The flights are changed.")
    return replace(want, text=text, names=names, turns=(*asks, *new.calls, reads, *get, *do))


def change_cabin(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Fly in another cabin."""
    ref = draft.ref(reservation, knows)
    down = not easy and draft.likely(0.3)
    old: Cabin = "business" if down else "economy"
    new: Cabin = "economy" if down else "business"
    want = Want(draft.pick(phrases.CABIN, cabin=new), ref, names=(*ref.names, new))
    cause = "" if ok else draft.random.choice(("basic", "sold out", "other"))
    if cause == "other":
        return unchangeable(draft, want, reservation, "change its cabin", easy)
    now = draft.ready(reservation, cabin="basic economy" if cause == "basic" else old, one_way=easy)
    if cause == "basic":
        refusal = say(f"Reservation {now.id} is basic economy, so I cannot change its cabin.")
        return refused(draft, want, refusal, "basic economy", easy)
    for flight, date in now.flights:
        draft.offer(flight, date, new)
    full = draft.random.choice(now.flights) if cause else None
    if full:
        draft.leave(*full, new, 0)
    searches = [_same(draft, trip, new) for trip in now.trips]
    calls = tuple(message for one in searches for message in one.calls)
    if full:
        which = next(i for i, trip in enumerate(now.trips) if full[0] in trip.flights)
        return _sold_out(draft, want, searches[which], easy, sum((s.calls for s in searches[: which + 1]), ()))
    pairs = [(trip.fare, one.found.fare) for trip, one in zip(now.trips, searches, strict=True)]
    amount, reads = difference(pairs, len(now.passengers))
    draft.covers(now.payment, amount)
    do = call("change_cabin", reservation_id=now.id, cabin=new)
    turns = change(f"change {ref.named} to {new} {_for(amount)}", do, "The cabin is changed.")
    return replace(want, names=(*want.names, f"{abs(amount)}"), turns=(*calls, reads, *turns))


def _same(draft: Draft, trip: Trip, cabin: Cabin) -> Search:
    """Search the same flights in another cabin."""
    found = offers(draft.state(), [trip.flights], trip.date, cabin)[0]
    origin, goal = trip.route.split("-")
    return Search(origin, goal, trip.date, cabin, "", found)


def book(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Book a trip: for two and with insurance or a certificate, where it is not easy."""
    cabin: Cabin = draft.random.choice(("basic economy", "economy", "business"))
    trips = _journey(draft, cabin, easy)
    others = [] if easy or draft.likely(0.5) else [_relative(draft)]
    insured = not easy and draft.likely(0.3)
    names = [draft.customer.name, *others]
    total = len(names) * (sum((t.found.fare for t in trips), Decimal(0)) + INSURANCE * insured)
    gift = draft.payment("gift")
    short = not ok and bool(gift) and draft.likely(0.5)
    payer = gift if gift and (short or draft.likely(0.3)) else draft.payment("card")
    told = easy or draft.likely(0.6)
    pays, who = Fact(says=draft.pick(phrases.PAY, kind=kind_of(payer)), cues=_PAY, opened=told), _who(draft, others)
    text = " ".join((*_book_text(draft, trips, easy, insured), who, *([pays.says] if told else [])))
    asks = () if told else (say("How do you want to pay?"),)
    want = Want(text, facts=(pays,), names=(_BOOK, *_proposed(trips), f"{total:.2f}", f"{kind_of(payer)}|{payer}"))
    reads = asks + (() if easy else (call("list_airports"),))
    searches = tuple(message for trip in trips for message in trip.calls)
    if not ok and not short:
        return _sold_out(draft, want, trips[0], easy, (*reads, *trips[0].calls))
    reads += searches + _sum([t.found.fare for t in trips], len(names), insured) + (call("get_customer"),)
    if short:
        balance = f"{int(total) - draft.random.randint(1, 30)}.00"
        draft.holds(payer, balance)
        refusal = say(f"Your gift card {payer} holds {balance}, so I cannot book this for {total:.2f}.")
        return refused(draft, want, refusal, balance, easy, reads)
    draft.covers(payer, total)
    return _booking(draft, want, trips, names, payer, insured, total, reads, easy)


def _booking(
    draft: Draft,
    want: Want,
    trips: Sequence[Search],
    names: list[str],
    payer: str,
    insured: bool,
    total: Decimal,
    reads: tuple[Message, ...],
    easy: bool,
) -> Want:
    first, *back = trips
    arguments: dict[str, Any] = {
        "flights": list(first.found.flights), "date": first.date, "passengers": names, "cabin": first.cabin,
        "payment_id": payer,
    }  # fmt: skip
    if back:
        arguments |= {"return_flights": list(back[0].found.flights), "return_date": back[0].date}
    if insured:
        arguments["insurance"] = True
    proposal = f"book {' and '.join(t.said for t in trips)} in {first.cabin} for {' and '.join(names)}"
    proposal += ", with insurance" * insured + f", for {total:.2f} in all, paid with your {kind_of(payer)} {payer}"
    certificate = "" if easy or draft.likely(0.3) else draft.payment("certificate")
    if certificate:
        arguments["certificate_id"] = certificate
        proposal += f" after your travel certificate {certificate}"
        want = replace(
            want, text=f"{want.text} {draft.pick(phrases.CERTIFICATE)}", names=(*want.names, "certificate|voucher")
        )
    do = change(proposal, call("book_flights", **arguments), "The trip is booked.")
    return replace(want, turns=reads + do)


def _journey(draft: Draft, cabin: Cabin, easy: bool) -> list[Search]:
    """A trip from home, direct and one way where it is easy; else perhaps with a change of planes or a way back."""
    origin, state = home(draft.customer), draft.world
    goals = [code for code in PLACES if code != origin and (not easy or paths(state, origin, code, 0))]
    goal = draft.random.choice(goals)
    out = search(draft, (origin, goal), COMING, cabin)
    if easy or draft.likely(0.5):
        return [out]
    return [out, search(draft, (goal, origin), [later(out.date, days) for days in range(2, 7)], cabin)]


def _book_text(draft: Draft, trips: Sequence[Search], easy: bool, insured: bool) -> list[str]:
    first = trips[0]
    origin, goal = (f"{city(code)} ({code})" if easy else city(code) for code in (first.origin, first.goal))
    best = draft.pick(phrases.BEST[first.wanted])
    words = {"origin": origin, "goal": goal, "date": spoken(first.date), "cabin": first.cabin, "best": best}
    texts = [draft.pick(phrases.BOOK, **words)]
    for trip in trips[1:]:
        best = draft.pick(phrases.BEST[trip.wanted])
        texts.append(draft.pick(phrases.BACK, date=spoken(trip.date), best=best))
    return texts + ["I want the insurance too."] * insured


def _who(draft: Draft, others: Sequence[str]) -> str:
    return draft.pick(phrases.TOGETHER, other=others[0]) if others else draft.pick(phrases.ALONE)


def _relative(draft: Draft) -> str:
    first, last = draft.customer.name.split(" ", 1)
    return f"{draft.random.choice([name for name in FIRST if name != first])} {last}"


def _proposed(trips: Sequence[Search]) -> tuple[str, ...]:
    """What a proposal has to name of the trips."""
    return (*(dated(trip.date) for trip in trips), trips[0].cabin)


def _sum(fares: Sequence[Decimal], heads: int, insured: bool) -> tuple[Message, ...]:
    parts = [f"{fare}" for fare in fares] + [f"{INSURANCE}"] * insured
    if len(parts) * heads == 1:
        return ()
    return (calculate(" + ".join(parts), heads),)


def difference(fares: Sequence[tuple[Decimal, Decimal]], heads: int) -> tuple[Decimal, Message]:
    """From old to new fares, for all passengers; and how a perfect agent calculates it."""
    text = " + ".join(f"{new} - {old}" for old, new in fares)
    amount = heads * sum((new - old for old, new in fares), Decimal(0))
    return amount, calculate(text, heads)


def calculate(text: str, heads: int) -> Message:
    """Calculate a sum for all passengers."""
    each = f"({text})" if " " in text else text
    return call("calculate", expression=text if heads == 1 else f"{each} * {heads}")


def _sold_out(draft: Draft, want: Want, searched: Search, easy: bool, reads: tuple[Message, ...]) -> Want:
    """The request refused because no offer of a search has seats left."""
    state = draft.state()
    for flights in paths(state, searched.origin, searched.goal, 1 if searched.found.via else 0):
        draft.leave(flights[0], searched.date, searched.cabin, 0)
    text = f"All flights on {spoken(searched.date)} are sold out in {searched.cabin}, so I cannot do that."
    return refused(draft, want, say(text), "sold out|fully booked", easy, reads)


def _for(amount: Decimal) -> str:
    return f"for {amount} more" if amount > 0 else f"with {-amount} back"


def _payer(draft: Draft, current: str) -> str:
    """Another card or gift card of the customer."""
    payer = draft.payment("", current)
    return "" if payer.startswith("certificate") else payer
