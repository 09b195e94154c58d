"""Requests about existing reservations: cancel, insure, add bags, correct a name. `base` defines `grantable`."""

from dataclasses import replace
from decimal import Decimal
from typing import Literal, get_args

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.airline.goals.base import (
    INSURE_TERMS,
    NUMBERS,
    add_cancelled_refusal,
    add_flown_refusal,
    add_refusal,
    add_unchangeable_refusal,
    calculate_total,
    format_count,
    format_more_bags,
    payment_kind,
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
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.people import FIRST_NAMES, LAST_NAMES
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change, gold_proposal, gold_text
from understudy.envs.dates import date_variants, format_month_day

_CANCEL = "cancel|cancelled|canceled|cancelling|canceling|cancellation"
_REASON_TERMS: dict[Reason, str] = {
    "change of plans": "change of plans|change in plans|change of plan|changed plans|plans changed|plans have changed",
    "illness": "illness|ill|sick|sickness|unwell|medical|health",
    "flight cancelled": "flight cancelled|flight canceled|flight is cancelled|flight is canceled|flight was cancelled|"
    "flight was canceled|flight has been cancelled|flight has been canceled|cancelled flight|canceled flight|"
    "cancelled by|canceled by|airline cancelled|airline canceled|flight cancellation",
}
"""The accepted forms of a reason in a proposal."""
_WHY = ("why", "reason")
_HOW_MANY = ("how many",)
_COACH: tuple[Cabin, ...] = ("basic economy", "economy")


def cancel_reservation(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Cancel a reservation."""
    mention = builder.reservation_mention(reservation, knowledge)
    cause = builder.rng.choice(_CAUSES[grantable][: 3 if easy else None])
    either: Reason = builder.rng.choice(("change of plans", "illness"))
    reason = _REASONS.get(cause, either)
    why, in_opening = builder.phrase(f"why.{reason}"), easy or builder.draw_bool(0.5)
    text = builder.phrase("cancel") + (f" {why}" if in_opening else "")
    goal = GoalSpec(
        text,
        mention,
        required_terms=(*mention.required_terms, _CANCEL, _REASON_TERMS[reason]),
        facts=(Fact(text=why, keywords=_WHY, in_opening=in_opening),),
    )
    asks = () if in_opening else (gold_text("Why do you want to cancel it?"),)
    if cause == "flown":
        return add_flown_refusal(builder, goal, reservation, "cancel it", asks, cabin="business")
    now = _drawn_for(builder, reservation, cause, easy)
    checks = asks + (_checks(builder, now, off=cause == "called off") if reason == "flight cancelled" else ())
    if not grantable:
        return _too_late(builder, goal, now, "cancel it", easy, checks)
    do = gold_call("cancel_reservation", reservation_id=now.id, reason=reason)
    done = f"The reservation has been cancelled and {now.paid} will be refunded."
    return replace(
        goal, gold_turns=checks + gold_change(f"cancel {mention.proposal_phrase}, reason: {reason}", do, done)
    )


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


def _drawn_for(builder: AirlineTaskBuilder, reservation: Reservation, cause: str, easy: bool) -> Reservation:
    """Return the reservation, set up so that `cause` allows or forbids its cancellation."""
    cabin = "business" if cause == "business" else builder.rng.choice(_COACH)
    insurance = cause in ("insured", "uncovered") or (cause in ("business", "recent") and reservation.insurance)
    booked = builder.draw_booking_time(recent=cause == "recent", clear=easy)
    return builder.set_upcoming(reservation, cabin=cabin, insurance=insurance, booked=booked, one_way=easy)


def _checks(builder: AirlineTaskBuilder, reservation: Reservation, off: bool) -> tuple[Message, ...]:
    """Return the gold calls that read the flights' status. With `off`, set the last of these flights to cancelled."""
    read = list(reservation.flights)
    if off:
        read = read[: builder.rng.randint(1, len(read))]
        builder.set_flight_status(*read[-1], "cancelled")
    return tuple(gold_call("get_flight_status", flight=flight, date=date) for flight, date in read)


def add_insurance(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Add insurance to a reservation."""
    mention = builder.reservation_mention(reservation, knowledge)
    price = INSURANCE_PRICE * len(reservation.passengers)
    goal = GoalSpec(
        builder.phrase("insure"),
        mention,
        required_terms=(*mention.required_terms, INSURE_TERMS, str(price)),
    )
    if not grantable and not easy and builder.draw_bool(0.3):
        builder.set_upcoming(
            reservation, insurance=False, booked=builder.draw_booking_time(recent=True, clear=easy), cancelled="illness"
        )
        return add_cancelled_refusal(builder, goal, reservation, "insure it", easy)
    booked = builder.draw_booking_time(recent=grantable, clear=easy)
    now = builder.set_upcoming(reservation, insurance=False, booked=booked, one_way=easy)
    builder.ensure_balance(now.payment, price)
    if not grantable:
        return _too_late(builder, goal, now, "insure it", easy)
    do = gold_call("add_insurance", reservation_id=now.id)
    turns = calculate_total(INSURANCE_PRICE, len(now.passengers)) + gold_change(
        f"insure {mention.proposal_phrase} for {price}", do, "The reservation is now insured."
    )
    return replace(goal, gold_turns=turns)


def add_bags(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Add checked bags; sometimes without the number at first, sometimes with another payment."""
    mention = builder.reservation_mention(reservation, knowledge)
    more, vague = builder.rng.randint(1, 1 if easy else 3), not easy and builder.draw_bool(0.3)
    payer = "" if easy or builder.draw_bool(0.5) else builder.pick_other_card(reservation.payment)
    what = format_more_bags(more)
    text = builder.phrase("bags_vague" if vague else "bags", bags=what)
    text += f" {builder.phrase('charge_to', kind=payment_kind(payer))}" if payer else ""
    facts = (Fact(text=builder.phrase("how_many", bags=what), keywords=_HOW_MANY, in_opening=not vague),)
    goal = GoalSpec(
        text, mention, required_terms=(*mention.required_terms, "bag|bags", number_variants(more)), facts=facts
    )
    asks = (gold_text("How many bags do you want to add?"),) if vague else ()
    if not grantable:
        return add_unchangeable_refusal(builder, goal, reservation, "add bags", easy, asks)
    now = builder.set_upcoming(reservation, one_way=easy)
    price = bags_price(builder.customer, now, more)
    builder.ensure_balance(payer or now.payment, price)
    return _adding(
        replace(goal, required_terms=(*goal.required_terms, price_variants(price))),
        mention,
        more,
        price,
        payer if price else "",
        asks,
    )


def _adding(
    goal: GoalSpec, mention: ReservationMention, more: int, price: Decimal, payer: str, asks: tuple[Message, ...]
) -> GoalSpec:
    what, done = (
        format_count(more, "checked bag"),
        "The bag has been added." if more == 1 else "The bags have been added.",
    )
    reads = asks + calculate_total(BAG_PRICE, int(price / BAG_PRICE))
    proposal = f"add {what} to {mention.proposal_phrase} for {price or 'free'}"
    arguments = {"reservation_id": mention.reservation.id, "bags": more}
    if not payer:
        return replace(goal, gold_turns=reads + gold_change(proposal, gold_call("add_bags", **arguments), done))
    kind, do = payment_kind(payer), gold_call("add_bags", **arguments, payment_id=payer)
    turns = (*reads, gold_call("get_customer"), *gold_change(f"{proposal}, with your {kind} {payer}", do, done))
    return replace(goal, gold_turns=turns, required_terms=(*goal.required_terms, f"{kind}|{payer}"))


def correct_name(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Correct a passenger's name, or ask to replace a passenger, which is not allowed."""
    mention, names = builder.reservation_mention(reservation, knowledge), list(reservation.passengers)
    place, fixed = builder.rng.randrange(len(names)), not grantable and not easy and builder.draw_bool(0.3)
    right = names[place]
    old, new = (_misspelt(builder, right), right) if grantable or fixed else (right, _stranger(builder, right))
    names[place] = old
    text = builder.phrase("correct_name", old=old, new=new)
    goal = GoalSpec(
        text,
        mention,
        required_terms=(*mention.required_terms, new, "correct|corrected|change|fix|spelled|spelling|name"),
    )
    if fixed:
        return add_unchangeable_refusal(builder, goal, reservation, "change a name", passengers=tuple(names))
    now = builder.set_upcoming(reservation, passengers=tuple(names), one_way=easy)
    if not grantable:
        text = "cannot be replaced; only up to three letters of a name can be corrected."
        refusal = gold_text(f"The passengers of reservation {now.id} {text}")
        return add_refusal(builder, goal, refusal, "passenger|passengers|letter|letters", easy)
    do = gold_call("correct_name", reservation_id=now.id, name=old, new_name=new)
    done = gold_change(
        f"correct the name {old} to {new} in {mention.proposal_phrase}", do, "The name has been corrected."
    )
    return replace(goal, gold_turns=done)


def claim_compensation(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for compensation for a flight that was cancelled or delayed."""
    mention = builder.reservation_mention(reservation, knowledge)
    off = builder.draw_bool(0.4)
    text = builder.phrase("compensation", what="cancelled" if off else "delayed")
    goal = GoalSpec(text, mention, required_terms=(*mention.required_terms, "certificate|voucher"))
    basic = not grantable and builder.draw_bool(0.4)
    cabin: Cabin = "basic economy" if basic else builder.rng.choice(("economy", "business"))
    now = builder.set_past(reservation, cabin=cabin, one_way=easy)
    status: FlightStatus = "cancelled" if off and (grantable or basic) else "landed"
    long = MIN_COMPENSATED_DELAY + 5 * builder.rng.randrange(25)
    delay = 0 if off else long if grantable or basic else 5 * builder.rng.randint(4, 35)
    trip = now.trips[0]
    flight = trip.flights[-1]
    builder.set_flight_status(flight, trip.date, status, delay)
    if basic:
        refusal = gold_text(f"Reservation {now.id} is basic economy, so I cannot offer compensation.")
        return add_refusal(builder, goal, refusal, "basic economy", easy)
    reads = tuple(gold_call("get_flight_status", flight=f, date=trip.date) for f in trip.flights)
    if not grantable:
        return _not_entitled(builder, goal, (flight, trip.date), delay, easy, reads)
    amount = compensation(now, cancelled=off)
    reads += calculate_total(amount / len(now.passengers), len(now.passengers))
    do = gold_call("issue_certificate", reservation_id=now.id, flight=flight)
    proposal = f"issue a travel certificate of {amount} for flight {flight} of {mention.proposal_phrase}"
    return replace(
        goal,
        required_terms=(*goal.required_terms, str(amount)),
        gold_turns=reads + gold_change(proposal, do, "The certificate has been issued."),
    )


def _not_entitled(
    builder: AirlineTaskBuilder,
    goal: GoalSpec,
    flight: tuple[str, str],
    delay: int,
    easy: bool,
    reads: tuple[Message, ...],
) -> GoalSpec:
    number, date = flight
    if delay:
        late = f"Flight {number} was {delay} minutes late"
        text = f"{late}, less than {MIN_COMPENSATED_DELAY}, so I cannot offer compensation."
        return add_refusal(builder, goal, gold_text(text), f"{delay}", easy, reads)
    text = (
        f"Flight {number} on {format_month_day(date)} has landed and was not cancelled, so I cannot offer compensation."
    )
    return add_refusal(builder, goal, gold_text(text), "landed", easy, reads)


def ask_out_of_scope(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for something that no tool can do, which requires a human agent."""
    text = builder.phrase("outside")
    turns = (gold_call("transfer_to_human", summary=text), gold_text("I have transferred you to a human agent."))
    return GoalSpec(text, gold_turns=turns, required_terms=("human|transfer|transferred",))


def correct_bags(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for one number of bags, then for another one when asked to confirm."""
    first = add_bags(builder, reservation, knowledge, True, True)
    assert isinstance(first.mention, ReservationMention)
    mention, more = first.mention, builder.rng.randint(2, 3)
    opening = builder.phrase("change_of_mind")
    meant = f"{opening} {builder.phrase('bags', bags=format_more_bags(more))}"
    now = builder.set_upcoming(reservation, one_way=True)
    price = bags_price(builder.customer, now, more)
    builder.ensure_balance(now.payment, price)
    goal = replace(
        first,
        final_text=meant,
        required_terms=(*mention.required_terms, "bag|bags", number_variants(more), price_variants(price)),
    )
    proposed = next(i for i, turn in enumerate(first.gold_turns) if "Do you confirm?" in turn.content)
    return _adding(goal, mention, more, price, "", first.gold_turns[: proposed + 1])


def switch_cancel_to_insurance(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask to cancel a reservation, then to insure it instead when asked to confirm."""
    mention, reason = builder.reservation_mention(reservation, knowledge), builder.rng.choice(get_args(Reason)[:2])
    price = INSURANCE_PRICE * len(reservation.passengers)
    now = builder.set_upcoming(reservation, booked=builder.draw_booking_time(recent=True, clear=easy), insurance=False)
    builder.ensure_balance(now.payment, price)
    text = f"{builder.phrase('cancel')} {builder.phrase(f'why.{reason}')}"
    meant = " ".join(map(builder.phrase, ("change_of_mind", "keep_it", "insure")))
    first = gold_proposal(f"cancel {mention.proposal_phrase}, reason: {reason}")
    do = gold_call("add_insurance", reservation_id=now.id)
    then = gold_change(f"insure {mention.proposal_phrase} for {price}", do, "The reservation is now insured.")
    turns = (first, *calculate_total(INSURANCE_PRICE, len(now.passengers)), *then)
    return GoalSpec(
        text, mention, turns, required_terms=(*mention.required_terms, INSURE_TERMS, str(price)), final_text=meant
    )


def number_variants(number: int) -> str:
    """Return the accepted forms of a small number."""
    return f"{number}|{NUMBERS[number]}" + ("|a|another" if number == 1 else "")


def price_variants(price: Decimal) -> str:
    """Return the accepted forms of a price in a proposal."""
    return str(price) if price else "free|no charge|no extra charge|no cost|nothing|included|$0.00|0.00"


def _too_late(
    builder: AirlineTaskBuilder,
    goal: GoalSpec,
    reservation: Reservation,
    action: str,
    easy: bool,
    reads: tuple[Message, ...] = (),
) -> GoalSpec:
    """Refuse the request because of the time of booking."""
    when = reservation.booked.split()[0]
    booked = f"Reservation {reservation.id} was booked on {format_month_day(when)}"
    text = f"{booked}, more than 24 hours ago, so I cannot {action}."
    return add_refusal(builder, goal, gold_text(text), date_variants(when), easy, reads)


def _misspelt(builder: AirlineTaskBuilder, name: str) -> str:
    """Return the name with one letter missing, doubled or replaced."""
    place = builder.rng.choice([i for i, letter in enumerate(name) if i and letter.islower()])
    letter = name[place]
    other = builder.rng.choice("aeiou" if letter in "aeiou" else "bdklmnrst")
    way: Literal["", "double", "other"] = builder.rng.choice(("", "double", "other"))
    put = {"": "", "double": letter * 2, "other": other if other != letter else letter * 2}[way]
    return name[:place] + put + name[place + 1 :]


def _stranger(builder: AirlineTaskBuilder, name: str) -> str:
    """Return a completely different name."""
    others = (f"{builder.rng.choice(FIRST_NAMES)} {builder.rng.choice(LAST_NAMES)}" for _ in range(1000))
    return next(other for other in others if edit_distance(other.casefold(), name.casefold()) > 4)
