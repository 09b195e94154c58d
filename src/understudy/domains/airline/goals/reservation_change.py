"""Requests about existing reservations: cancel, insure, add bags, correct a name, and compensation."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import get_args

from understudy.core.messages import Message
from understudy.domains.airline.goals.reservation import (
    INSURE_TERMS,
    NUMBERS,
    calculate_total,
    format_count,
    format_more_bags,
    pay_with,
    read_flight_status,
    refuse_basic_economy,
    refuse_cancelled,
    refuse_flown,
    refuse_unchangeable,
)
from understudy.domains.airline.policy_rules import (
    BAG_PRICE,
    INSURANCE_PRICE,
    MIN_COMPENSATED_DELAY,
    bags_price,
    compensation,
    edit_distance,
)
from understudy.domains.airline.state import Cabin, FlightStatus, Reason, Reservation
from understudy.domains.airline.task_builder import AirlineTaskBuilder, ReservationMention
from understudy.domains.authoring.payments import payment_kind
from understudy.domains.authoring.people import FIRST_NAMES, LAST_NAMES
from understudy.domains.authoring.request import (
    CANCEL_TERMS,
    VAGUE_SHARE,
    Draw,
    add_detail,
    change_mind,
    extend,
    grant,
    plain_request,
    refuse,
    tell,
    transfer,
)
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.envs.dates import date_variants, format_month_day
from understudy.envs.gold import gold_call

_CORRECT = (
    "correct|corrects|corrected|correcting|correction|change|changes|changed|changing|fix|fixes|fixed|fixing|spelled"
    "|spelling|name"
)
_REASON_TERMS: dict[Reason, str] = {
    "change of plans": "change of plans|change in plans|change of plan|changed plans|plans changed|plans have changed",
    "illness": "illness|ill|sick|sickness|unwell|medical|health",
    "flight cancelled": "flight cancelled|flight canceled|flight is cancelled|flight is canceled|flight was cancelled|"
    "flight was canceled|flight has been cancelled|flight has been canceled|cancelled flight|canceled flight|"
    "cancelled by|canceled by|airline cancelled|airline canceled|flight cancellation",
}
"""The accepted forms of a reason in a proposal."""
_CAUSES = {
    True: ("recent", "business", "insured", "called off"),
    False: ("late", "late", "uncovered", "on schedule", "flown"),
}
"""What allows or forbids a cancellation. Easy tasks draw only the first three."""
_REASONS: dict[str, Reason] = {
    "insured": "illness",
    "uncovered": "change of plans",
    "called off": "flight cancelled",
    "on schedule": "flight cancelled",
}


def cancel_reservation(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Cancel a reservation."""
    mention = b.reservation_mention(draw)
    cause = b.rng.choice(_CAUSES[draw.grantable][: 3 if draw.easy else None])
    either: Reason = b.rng.choice(("change of plans", "illness"))
    reason = _REASONS.get(cause, either)
    why, vague = b.phrase(f"why.{reason}"), not draw.easy and not b.draw_bool(0.5)
    goal = plain_request(b.phrase("cancel"), mention, CANCEL_TERMS, _REASON_TERMS[reason])
    goal = tell(goal, why, "Why do you want to cancel it?", ("why", "reason"), vague=vague)
    if cause == "flown":
        return refuse_flown(b, draw, goal, "cancel it", cabin="business")
    now = _set_cause(b, draw, cause)
    reads = _status_checks(b, now, called_off=cause == "called off") if reason == "flight cancelled" else ()
    if not draw.grantable:
        return _refuse_too_late(b, draw, goal, now, "cancel it", reads)
    call = gold_call("cancel_reservation", reservation_id=now.id, reason=reason)
    report = f"The reservation has been cancelled and {now.paid} will be refunded."
    return grant(goal, f"cancel {mention.proposal_phrase}, reason: {reason}", call, report, reads)


def _set_cause(b: AirlineTaskBuilder, draw: Draw[Reservation], cause: str) -> Reservation:
    """Set up the reservation so that `cause` allows or forbids its cancellation."""
    cabin = "business" if cause == "business" else b.rng.choice(("basic economy", "economy"))
    insurance = cause in ("insured", "uncovered") or (cause in ("business", "recent") and draw.entity.insurance)
    booked = b.draw_booking_time(recent=cause == "recent", clear=draw.easy)
    return b.set_upcoming(draw.entity, cabin=cabin, insurance=insurance, booked=booked, one_way=draw.easy)


def _status_checks(b: AirlineTaskBuilder, reservation: Reservation, *, called_off: bool) -> Sequence[Message]:
    """Return the gold calls that read the flights' status. With `called_off`, the last of them reads "cancelled"."""
    flights = reservation.flights
    if called_off:
        flights = flights[: b.rng.randint(1, len(flights))]
        b.set_flight_status(*flights[-1], "cancelled")
    return [read_flight_status(*flight) for flight in flights]


def add_insurance(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Add insurance to a reservation."""
    mention = b.reservation_mention(draw)
    price = INSURANCE_PRICE * len(draw.entity.passengers)
    goal = plain_request(b.phrase("insure"), mention, INSURE_TERMS, str(price))
    if not draw.grantable and not draw.easy and b.draw_bool(0.3):
        booked = b.draw_booking_time(recent=True, clear=False)
        b.set_upcoming(draw.entity, insurance=False, booked=booked, cancelled="illness")
        return refuse_cancelled(b, draw, goal, "insure it")
    booked = b.draw_booking_time(recent=draw.grantable, clear=draw.easy)
    now = b.set_upcoming(draw.entity, insurance=False, booked=booked, one_way=draw.easy)
    b.ensure_balance(now.payment, price)
    if not draw.grantable:
        return _refuse_too_late(b, draw, goal, now, "insure it")
    return _insure(goal, mention, price)


def _insure(goal: GoalSpec, mention: ReservationMention, price: Decimal) -> GoalSpec:
    call = gold_call("add_insurance", reservation_id=mention.reservation.id)
    reads = calculate_total(INSURANCE_PRICE, len(mention.reservation.passengers))
    return grant(goal, f"insure {mention.proposal_phrase} for {price}", call, "The reservation is now insured.", reads)


def add_bags(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Add checked bags; sometimes without the number at first, sometimes with another payment."""
    mention = b.reservation_mention(draw)
    number, vague = b.rng.randint(1, 1 if draw.easy else 3), not draw.easy and b.draw_bool(VAGUE_SHARE)
    payer = "" if draw.easy or b.draw_bool(0.5) else b.pick_other_card(draw.entity.payment)
    bags = format_more_bags(number)
    text = b.phrase("bags_vague" if vague else "bags", bags=bags)
    goal = plain_request(text, mention, "bag|bags", number_variants(number))
    if payer:
        goal = extend(goal, b.phrase("charge_to", kind=payment_kind(payer)))
    answer = b.phrase("how_many", bags=bags)
    goal = add_detail(goal, answer, "How many bags do you want to add?", ("how many",), vague=vague)
    if not draw.grantable:
        return refuse_unchangeable(b, draw, goal, "add bags")
    now = b.set_upcoming(draw.entity, one_way=draw.easy)
    price = bags_price(b.customer, now, number)
    b.ensure_balance(payer or now.payment, price)
    return _grant_bags(goal, mention, number, price, payer if price else "")


def _grant_bags(goal: GoalSpec, mention: ReservationMention, number: int, price: Decimal, payer: str) -> GoalSpec:
    payment, payer_argument, payer_reads, payer_terms = pay_with(payer)
    call = gold_call("add_bags", reservation_id=mention.reservation.id, bags=number, **payer_argument)
    proposal = f"add {format_count(number, 'checked bag')} to {mention.proposal_phrase} for {price or 'free'}{payment}"
    report = "The bag has been added." if number == 1 else "The bags have been added."
    reads = (*calculate_total(BAG_PRICE, int(price / BAG_PRICE)), *payer_reads)
    return grant(goal, proposal, call, report, reads, terms=(price_variants(price), *payer_terms))


def correct_bags(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Ask for one number of bags, then for another one when asked to confirm."""
    goal = add_bags(b, replace(draw, grantable=True, easy=True))
    mention, number = goal.mention, b.rng.randint(2, 3)
    assert isinstance(mention, ReservationMention)
    now = b.set_upcoming(draw.entity, one_way=True)
    price = bags_price(b.customer, now, number)
    b.ensure_balance(now.payment, price)
    goal = replace(
        goal,
        gold_turns=goal.gold_turns[:-2],  # up to the proposal
        required_terms=(*mention.required_terms, "bag|bags", number_variants(number)),
        final_text=f"{b.phrase('change_of_mind')} {b.phrase('bags', bags=format_more_bags(number))}",
    )
    return _grant_bags(goal, mention, number, price, "")


def switch_cancel_to_insurance(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Ask to cancel a reservation, then to insure it instead when asked to confirm."""
    mention, reason = b.reservation_mention(draw), b.rng.choice(get_args(Reason)[:2])
    price = INSURANCE_PRICE * len(draw.entity.passengers)
    now = b.set_upcoming(draw.entity, booked=b.draw_booking_time(recent=True, clear=draw.easy), insurance=False)
    b.ensure_balance(now.payment, price)
    goal = extend(plain_request(b.phrase("cancel"), mention, INSURE_TERMS, str(price)), b.phrase(f"why.{reason}"))
    wish = " ".join(b.phrase(name) for name in ("change_of_mind", "keep_it", "insure"))
    goal = change_mind(goal, f"cancel {mention.proposal_phrase}, reason: {reason}", wish)
    return _insure(goal, mention, price)


def correct_name(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Correct a passenger's name, or ask to replace a passenger, which is not allowed."""
    mention, names = b.reservation_mention(draw), list(draw.entity.passengers)
    index = b.rng.randrange(len(names))
    unchangeable = not draw.grantable and not draw.easy and b.draw_bool(0.3)
    right = names[index]
    old, new = (_misspell(b, right), right) if draw.grantable or unchangeable else (right, _draw_stranger(b, right))
    names[index] = old
    terms = (new, _CORRECT)
    goal = plain_request(b.phrase("correct_name", old=old, new=new), mention, *terms)
    if unchangeable:
        return refuse_unchangeable(b, draw, goal, "change a name", passengers=tuple(names))
    now = b.set_upcoming(draw.entity, passengers=tuple(names), one_way=draw.easy)
    if not draw.grantable:
        reason = (
            f"The passengers of reservation {now.id} cannot be replaced; "
            "only up to three letters of a name can be corrected."
        )
        return refuse(b, goal, reason, "passenger|passengers|letter|letters", easy=draw.easy)
    call = gold_call("correct_name", reservation_id=now.id, name=old, new_name=new)
    proposal = f"correct the name {old} to {new} in {mention.proposal_phrase}"
    return grant(goal, proposal, call, "The name has been corrected.")


def claim_compensation(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Ask for compensation for a flight that was cancelled or delayed."""
    mention = b.reservation_mention(draw)
    cancelled = b.draw_bool(0.4)
    goal = plain_request(
        b.phrase("compensation", what="cancelled" if cancelled else "delayed"), mention, "certificate|voucher"
    )
    basic = not draw.grantable and b.draw_bool(0.4)
    entitled = draw.grantable or basic  # but for the cabin
    cabin: Cabin = "basic economy" if basic else b.rng.choice(("economy", "business"))
    now = b.set_past(draw.entity, cabin=cabin, one_way=draw.easy)
    status: FlightStatus = "cancelled" if cancelled and entitled else "landed"
    long_delay = MIN_COMPENSATED_DELAY + 5 * b.rng.randrange(25)
    delay = 0 if cancelled else long_delay if entitled else 5 * b.rng.randint(4, 35)
    trip = now.trips[0]
    flight = trip.flights[-1]
    b.set_flight_status(flight, trip.date, status, delay)
    if basic:
        return refuse_basic_economy(b, draw, goal, "offer compensation")
    reads = [read_flight_status(number, trip.date) for number in trip.flights]
    if not draw.grantable:
        reason = (
            f"Flight {flight} was {delay} minutes late, less than {MIN_COMPENSATED_DELAY}"
            if delay
            else f"Flight {flight} on {format_month_day(trip.date)} has landed and was not cancelled"
        )
        output = f"{delay}" if delay else "landed"
        return refuse(b, goal, f"{reason}, so I cannot offer compensation.", output, easy=draw.easy, reads=reads)
    amount = compensation(now, cancelled=cancelled)
    reads += calculate_total(amount / len(now.passengers), len(now.passengers))
    call = gold_call("issue_certificate", reservation_id=now.id, flight=flight)
    proposal = f"issue a travel certificate of {amount} for flight {flight} of {mention.proposal_phrase}"
    return grant(goal, proposal, call, "The certificate has been issued.", reads, terms=[str(amount)])


def ask_out_of_scope(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Ask for something that no tool can do, which requires a human agent."""
    text = b.phrase("outside")
    return transfer(GoalSpec(text), text)


def number_variants(number: int) -> str:
    """Return the accepted forms of a small number."""
    return f"{number}|{NUMBERS[number]}" + ("|a|another" if number == 1 else "")


def price_variants(price: Decimal) -> str:
    """Return the accepted forms of a price in a proposal."""
    return str(price) if price else "free|no charge|no extra charge|no cost|nothing|included|$0.00|0.00"


def _refuse_too_late(
    b: AirlineTaskBuilder,
    draw: Draw[Reservation],
    goal: GoalSpec,
    reservation: Reservation,
    action: str,
    reads: Sequence[Message] = (),
) -> GoalSpec:
    """Refuse the request because of the time of booking."""
    date = reservation.booked.split()[0]
    booked = f"Reservation {reservation.id} was booked on {format_month_day(date)}"
    reason = f"{booked}, more than 24 hours ago, so I cannot {action}."
    return refuse(b, goal, reason, date_variants(date), easy=draw.easy, reads=reads)


def _misspell(b: AirlineTaskBuilder, name: str) -> str:
    """Return the name with one letter missing, doubled or replaced."""
    index = b.rng.choice([i for i, letter in enumerate(name) if i and letter.islower()])
    letter = name[index]
    other = b.rng.choice("aeiou" if letter in "aeiou" else "bdklmnrst")
    replacement = b.rng.choice(("", letter * 2, other if other != letter else letter * 2))
    return name[:index] + replacement + name[index + 1 :]


def _draw_stranger(b: AirlineTaskBuilder, name: str) -> str:
    """Return a completely different name."""
    others = (f"{b.rng.choice(FIRST_NAMES)} {b.rng.choice(LAST_NAMES)}" for _ in range(1000))
    return next(other for other in others if edit_distance(other.casefold(), name.casefold()) > 4)
