"""Requests about a reservation as it is, one function each: what is said, what is drawn, what a perfect agent does.

`ok` says whether the request can be granted. If not, the opening looks the same; only reading tells.
"""

from dataclasses import replace
from decimal import Decimal
from typing import Any, Literal, Protocol, get_args

from understudy.domains.airline import phrases
from understudy.domains.airline.drafts import Draft, Ref
from understudy.domains.airline.state import Cabin, FlightStatus, Reason, Reservation
from understudy.domains.airline.terms import BAG, INSURANCE, LONG_DELAY, bags_price, compensation, misspelt
from understudy.domains.callers import Knowledge
from understudy.domains.days import any_day, month_day
from understudy.domains.drafts import Want, call, change, propose, say
from understudy.domains.people import FIRST, LAST
from understudy.domains.talks import MIND
from understudy.messages import Message
from understudy.tasks import Fact

_CANCEL = "cancel|cancelled|canceled|cancelling|canceling|cancellation"
_INSURE = "insure|insured|insurance|insuring"
_WHY = ("why", "reason")
_HOW_MANY = ("how many",)
_COACH: tuple[Cabin, ...] = ("basic economy", "economy")


class MakeWant(Protocol):
    """Draws one request about a reservation."""

    def __call__(self, draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
        """`easy` leaves nothing about the request itself unsaid."""


def cancel(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Cancel a reservation."""
    ref = draft.ref(reservation, knows)
    cause = draft.random.choice(_CAUSES[ok][: 3 if easy else None])
    either: Reason = draft.random.choice(("change of plans", "illness"))
    reason = _REASONS.get(cause, either)
    why, told = draft.pick(phrases.WHY[reason]), easy or draft.likely(0.5)
    text = draft.pick(phrases.CANCEL) + (f" {why}" if told else "")
    want = Want(text, ref, names=(*ref.names, _CANCEL), facts=(Fact(says=why, cues=_WHY, opened=told),))
    asks = () if told else (say("Why do you want to cancel it?"),)
    if cause == "flown":
        return landed(draft, want, reservation, "cancel it", asks, cabin="business")
    now = _drawn_for(draft, reservation, cause, easy)
    checks = asks + (_checks(draft, now, off=cause == "called off") if reason == "flight cancelled" else ())
    if not ok:
        return _too_late(draft, want, now, "cancel it", easy, checks)
    do = call("cancel_reservation", reservation_id=now.id, reason=reason)
    done = f"The reservation is cancelled and {now.paid} is refunded."
    return replace(want, turns=checks + change(f"cancel {ref.named}, reason: {reason}", do, done))


_CAUSES = {
    True: ("recent", "business", "insured", "called off"),
    False: ("late", "late", "uncovered", "on schedule", "flown"),
}
_REASONS: dict[str, Reason] = {
    "insured": "illness",
    "uncovered": "change of plans",
    "called off": "flight cancelled",
    "on schedule": "flight cancelled",
}


def _drawn_for(draft: Draft, reservation: Reservation, cause: str, easy: bool) -> Reservation:
    """The reservation with what makes its cancellation right or wrong."""
    cabin = "business" if cause == "business" else draft.random.choice(_COACH)
    insurance = cause in ("insured", "uncovered") or (cause in ("business", "recent") and reservation.insurance)
    booked = draft.booked(recent=cause == "recent", plain=easy)
    return draft.ready(reservation, cabin=cabin, insurance=insurance, booked=booked, one_way=easy)


def _checks(draft: Draft, reservation: Reservation, off: bool) -> tuple[Message, ...]:
    """Read how the flights stand, until one turns out to be cancelled."""
    read = list(reservation.flights)
    if off:
        read = read[: draft.random.randint(1, len(read))]
        draft.stand(*read[-1], "cancelled")
    return tuple(call("get_flight_status", flight=flight, date=date) for flight, date in read)


def insure(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Add insurance to a reservation."""
    ref = draft.ref(reservation, knows)
    price = INSURANCE * len(reservation.passengers)
    want = Want(draft.pick(phrases.INSURE), ref, names=(*ref.names, _INSURE, str(price)))
    if not ok and not easy and draft.likely(0.3):
        draft.ready(reservation, insurance=False, booked=draft.booked(recent=True, plain=easy), cancelled="illness")
        return _cancelled(draft, want, reservation, "insure it", easy)
    booked = draft.booked(recent=ok, plain=easy)
    now = draft.ready(reservation, insurance=False, booked=booked, one_way=easy)
    draft.covers(now.payment, price)
    if not ok:
        return _too_late(draft, want, now, "insure it", easy)
    do = call("add_insurance", reservation_id=now.id)
    turns = times(INSURANCE, len(now.passengers)) + change(
        f"insure {ref.named} for {price}", do, "The reservation is insured."
    )
    return replace(want, turns=turns)


def bags(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Add checked bags; sometimes without saying how many, sometimes with another payment."""
    ref = draft.ref(reservation, knows)
    more, vague = draft.random.randint(1, 1 if easy else 3), not easy and draft.likely(0.3)
    payer = "" if easy or draft.likely(0.5) else draft.other_card(reservation.payment)
    what = phrases.more_bags(more)
    text = draft.pick(phrases.BAGS_VAGUE if vague else phrases.BAGS, bags=what)
    text += f" Charge it to my {kind_of(payer)}." if payer else ""
    facts = (Fact(says=f"{what.capitalize()}.", cues=_HOW_MANY, opened=not vague),)
    want = Want(text, ref, names=(*ref.names, "bag|bags", amounts(more)), facts=facts)
    asks = (say("How many bags do you want to add?"),) if vague else ()
    if not ok:
        return unchangeable(draft, want, reservation, "add bags", easy, asks)
    now = draft.ready(reservation, one_way=easy)
    price = bags_price(draft.customer, now, more)
    draft.covers(payer or now.payment, price)
    return _adding(replace(want, names=(*want.names, charge(price))), ref, more, price, payer if price else "", asks)


def _adding(want: Want, ref: Ref, more: int, price: Decimal, payer: str, asks: tuple[Message, ...]) -> Want:
    what, done = phrases.count(more, "checked bag"), "The bag is added." if more == 1 else "The bags are added."
    reads = asks + times(BAG, int(price / BAG))
    proposal = f"add {what} to {ref.named} for {price or 'free'}"
    arguments = {"reservation_id": ref.reservation.id, "bags": more}
    if not payer:
        return replace(want, turns=reads + change(proposal, call("add_bags", **arguments), done))
    kind, do = kind_of(payer), call("add_bags", **arguments, payment_id=payer)
    turns = (*reads, call("get_customer"), *change(f"{proposal}, with your {kind} {payer}", do, done))
    return replace(want, turns=turns, names=(*want.names, f"{kind}|{payer}"))


def correct_name(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Correct a passenger's name, or put somebody else in a passenger's place, which is not possible."""
    ref, names = draft.ref(reservation, knows), list(reservation.passengers)
    place, fixed = draft.random.randrange(len(names)), not ok and not easy and draft.likely(0.3)
    right = names[place]
    old, new = (_misspelt(draft, right), right) if ok or fixed else (right, _stranger(draft, right))
    names[place] = old
    text = draft.pick(phrases.NAME, old=old, new=new)
    want = Want(text, ref, names=(*ref.names, new, "correct|corrected|change|fix|spelled|spelling|name"))
    if fixed:
        return unchangeable(draft, want, reservation, "change a name", passengers=tuple(names))
    now = draft.ready(reservation, passengers=tuple(names), one_way=easy)
    if not ok:
        text = "cannot be replaced; only up to three letters of a name can be corrected."
        refusal = say(f"The passengers of reservation {now.id} {text}")
        return refused(draft, want, refusal, "passenger|passengers|letter|letters", easy)
    do = call("correct_name", reservation_id=now.id, name=old, new_name=new)
    done = change(f"correct the name {old} to {new} in {ref.named}", do, "The name is corrected.")
    return replace(want, turns=done)


def compensate(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask for compensation for a flight that was cancelled or delayed."""
    ref = draft.ref(reservation, knows)
    off = draft.likely(0.4)
    text = draft.pick(phrases.COMPENSATION, what="cancelled" if off else "delayed")
    want = Want(text, ref, names=(*ref.names, "certificate|voucher"))
    basic = not ok and draft.likely(0.4)
    cabin: Cabin = "basic economy" if basic else draft.random.choice(("economy", "business"))
    now = draft.over(reservation, cabin=cabin, one_way=easy)
    status: FlightStatus = "cancelled" if off and (ok or basic) else "landed"
    long = LONG_DELAY + 5 * draft.random.randrange(25)
    delay = 0 if off else long if ok or basic else 5 * draft.random.randint(4, 35)
    trip = now.trips[0]
    flight = trip.flights[-1]
    draft.stand(flight, trip.date, status, delay)
    if basic:
        refusal = say(f"Reservation {now.id} is basic economy, so I cannot compensate it.")
        return refused(draft, want, refusal, "basic economy", easy)
    reads = tuple(call("get_flight_status", flight=f, date=trip.date) for f in trip.flights)
    if not ok:
        return _not_entitled(draft, want, (flight, trip.date), delay, easy, reads)
    amount = compensation(now, cancelled=off)
    reads += times(amount / len(now.passengers), len(now.passengers))
    do = call("issue_certificate", reservation_id=now.id, flight=flight)
    proposal = f"issue a travel certificate of {amount} for flight {flight} of {ref.named}"
    return replace(
        want, names=(*want.names, str(amount)), turns=reads + change(proposal, do, "The certificate is issued.")
    )


def _not_entitled(
    draft: Draft, want: Want, flight: tuple[str, str], delay: int, easy: bool, reads: tuple[Message, ...]
) -> Want:
    number, date = flight
    if delay:
        text = f"Flight {number} was {delay} minutes late, less than {LONG_DELAY}, so I cannot compensate it."
        return refused(draft, want, say(text), f"{delay}", easy, reads)
    text = f"Flight {number} on {month_day(date)} has landed and was not cancelled, so I cannot compensate it."
    return refused(draft, want, say(text), "landed", easy, reads)


def outside(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask for what no tool can do: the one case for a human agent."""
    text = draft.pick(phrases.OUTSIDE)
    turns = (call("transfer_to_human", summary=text), say("You are transferred to a human agent."))
    return Want(text, turns=turns, names=("human|transfer|transferred",))


def other_bags(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Name one number of bags, and another one when asked to confirm it."""
    first = bags(draft, reservation, knows, True, True)
    assert isinstance(first.about, Ref)
    ref, more = first.about, draft.random.randint(2, 3)
    meant = f"{draft.pick(MIND)} {draft.pick(phrases.BAGS, bags=phrases.more_bags(more))}"
    now = draft.ready(reservation, one_way=True)
    price = bags_price(draft.customer, now, more)
    draft.covers(now.payment, price)
    want = replace(first, meant=meant, names=(*ref.names, "bag|bags", amounts(more), charge(price)))
    proposed = next(i for i, turn in enumerate(first.turns) if "Do you confirm?" in turn.content)
    return _adding(want, ref, more, price, "", first.turns[: proposed + 1])


def rather_keep(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Want a reservation cancelled, and insured instead when asked to confirm that."""
    ref, reason = draft.ref(reservation, knows), draft.random.choice(get_args(Reason)[:2])
    price = INSURANCE * len(reservation.passengers)
    now = draft.ready(reservation, booked=draft.booked(recent=True, plain=easy), insurance=False)
    draft.covers(now.payment, price)
    text = f"{draft.pick(phrases.CANCEL)} {draft.pick(phrases.WHY[reason])}"
    meant = f"{draft.pick(MIND)} I will keep it. {draft.pick(phrases.INSURE)}"
    first = propose(f"cancel {ref.named}, reason: {reason}")
    do = call("add_insurance", reservation_id=now.id)
    then = change(f"insure {ref.named} for {price}", do, "The reservation is insured.")
    turns = (first, *times(INSURANCE, len(now.passengers)), *then)
    return Want(text, ref, turns, names=(*ref.names, _INSURE, str(price)), meant=meant)


def refused(
    draft: Draft, want: Want, refusal: Message, output: str, easy: bool, reads: tuple[Message, ...] = ()
) -> Want:
    """The request refused, and why. Some customers contest the refusal."""
    contests = not easy and draft.likely(0.5)
    return replace(want, turns=reads + (refusal,) * (1 + contests), outputs=(output,), contests=contests)


def unchangeable(
    draft: Draft,
    want: Want,
    reservation: Reservation,
    action: str,
    easy: bool = False,
    reads: tuple[Message, ...] = (),
    **fields: Any,
) -> Want:
    """The request about a reservation that is cancelled or, not as easy, flown; and nothing else speaks against it."""
    if not easy and draft.likely(0.5):
        return landed(draft, want, reservation, action, reads, **fields)
    draft.ready(reservation, one_way=easy, cancelled="change of plans", **fields)
    return _cancelled(draft, want, reservation, action, easy, reads)


def landed(
    draft: Draft, want: Want, reservation: Reservation, action: str, reads: tuple[Message, ...] = (), **fields: Any
) -> Want:
    """The request about a reservation whose first flight has been flown."""
    trip = draft.over(reservation, **fields).trips[0]
    check = call("get_flight_status", flight=trip.flights[0], date=trip.date)
    refusal = say(f"Flight {trip.flights[0]} on {month_day(trip.date)} has landed, so I cannot {action}.")
    return refused(draft, want, refusal, "landed|flown|departed", False, (*reads, check))


def _cancelled(
    draft: Draft, want: Want, reservation: Reservation, action: str, easy: bool, reads: tuple[Message, ...] = ()
) -> Want:
    refusal = say(f"Reservation {reservation.id} is cancelled, so I cannot {action}.")
    return refused(draft, want, refusal, "cancelled|canceled", easy, reads)


def times(price: Decimal, number: int) -> tuple[Message, ...]:
    """Calculate a price for several."""
    return (call("calculate", expression=f"{price} * {number}"),) if number > 1 else ()


def amounts(number: int) -> str:
    """The ways to say a small number, as alternatives."""
    return f"{number}|{phrases.NUMBERS[number]}" + ("|a|another" if number == 1 else "")


def charge(price: Decimal) -> str:
    """What a proposal has to name as its price."""
    return str(price) if price else "free|no charge|no extra charge|no cost|nothing|included|$0.00|0.00"


def kind_of(payment_id: str) -> str:
    """As people say it, like credit card."""
    return phrases.KINDS[payment_id.partition("_")[0]]


def _too_late(
    draft: Draft, want: Want, reservation: Reservation, action: str, easy: bool, reads: tuple[Message, ...] = ()
) -> Want:
    """The request refused because of when the reservation was booked."""
    when = reservation.booked.split()[0]
    booked = f"Reservation {reservation.id} was booked on {month_day(when)}"
    text = f"{booked}, more than 24 hours ago, so I cannot {action}."
    return refused(draft, want, say(text), any_day(when), easy, reads)


def _misspelt(draft: Draft, name: str) -> str:
    """The name with a letter lost, doubled or taken for another."""
    place = draft.random.choice([i for i, letter in enumerate(name) if i and letter.islower()])
    letter = name[place]
    other = draft.random.choice("aeiou" if letter in "aeiou" else "bdklmnrst")
    way: Literal["", "double", "other"] = draft.random.choice(("", "double", "other"))
    put = {"": "", "double": letter * 2, "other": other if other != letter else letter * 2}[way]
    return name[:place] + put + name[place + 1 :]


def _stranger(draft: Draft, name: str) -> str:
    """A passenger of another name altogether."""
    others = (f"{draft.random.choice(FIRST)} {draft.random.choice(LAST)}" for _ in range(1000))
    return next(other for other in others if misspelt(other.casefold(), name.casefold()) > 4)
