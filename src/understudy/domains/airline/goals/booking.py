"""The request to book a trip. `base` defines `grantable`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.airline.goals.base import INSURE_TERMS, NUMBERS, add_refusal, format_count, payment_kind
from understudy.domains.airline.goals.flight_search import (
    FlightSearch,
    add_sold_out_refusal,
    calculate_for_passengers,
    draw_flight_search,
)
from understudy.domains.airline.itineraries import find_paths
from understudy.domains.airline.policy_rules import BAG_PRICE, INSURANCE_PRICE, free_bags
from understudy.domains.airline.route_network import AIRPORTS, city_of
from understudy.domains.airline.state import Cabin, Reservation
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.airline.world import FUTURE_DATES, add_days, home_airport
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.people import FIRST_NAMES
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change, gold_text
from understudy.envs.dates import date_variants, format_month_day

_PAY = (
    "how do you want",
    "how would you like",
    "which payment",
    "what payment",
    "payment method",
    "pay with",
    "like to pay",
)
_BOOK = "book|booking|booked|reserve"


@dataclass(frozen=True)
class BookingPlan:
    """The contents of a booking."""

    trips: Sequence[FlightSearch]
    passengers: Sequence[str]
    payer: str
    insured: bool = False
    bags: int = 0
    paid_bags: int = 0
    """The number of bags that are not free."""
    certificate: str = ""

    @property
    def total(self) -> Decimal:
        """The total price."""
        each = sum((trip.offer.fare for trip in self.trips), INSURANCE_PRICE * self.insured)
        return len(self.passengers) * each + BAG_PRICE * self.paid_bags

    @property
    def lookup_turns(self) -> tuple[Message, ...]:
        """The gold agent's lookups: flights, the price, and the customer's payments."""
        calls = tuple(message for trip in self.trips for message in trip.lookup_turns)
        each = [f"{trip.offer.fare}" for trip in self.trips] + [f"{INSURANCE_PRICE}"] * self.insured
        bags = f" + {BAG_PRICE} * {self.paid_bags}" if self.paid_bags else ""
        if len(each) * len(self.passengers) > 1 or bags:
            calls += (calculate_for_passengers(" + ".join(each), len(self.passengers), bags),)
        return (*calls, gold_call("get_customer"))

    @property
    def required_terms(self) -> tuple[str, ...]:
        """The terms that a correct proposal contains."""
        dates = (date_variants(trip.date) for trip in self.trips)
        certificate = ("certificate|voucher",) if self.certificate else ()
        payer = f"{payment_kind(self.payer)}|{self.payer}"
        customer, *others = self.passengers
        people = (f"{customer}|for you|for yourself|and you|one passenger|1 passenger", *others)
        extras = [_bag_variants(self.bags)] if self.bags else []
        extras += [INSURE_TERMS] if self.insured else []
        return (_BOOK, *dates, self.trips[0].cabin, *people, *extras, f"{self.total}", payer, *certificate)

    @property
    def booking_call(self) -> Message:
        """The gold call that books."""
        first, *back = self.trips
        arguments: dict[str, Any] = {
            "flights": list(first.offer.flights),
            "date": first.date,
            "passengers": list(self.passengers),
            "cabin": first.cabin,
            "payment_id": self.payer,
        }
        for trip in back:
            arguments |= {"return_flights": list(trip.offer.flights), "return_date": trip.date}
        extras = {"bags": self.bags, "insurance": self.insured, "certificate_id": self.certificate}
        return gold_call("book_flights", **arguments, **{name: value for name, value in extras.items() if value})

    @property
    def proposal(self) -> str:
        """The agent's words for the booking in a proposal."""
        flights, names = " and ".join(trip.proposal_phrase for trip in self.trips), " and ".join(self.passengers)
        bags = [f"with {format_count(self.bags, 'checked bag')}"] if self.bags else []
        insured = ["with insurance"] if self.insured else []
        payment = f"paid with your {payment_kind(self.payer)} {self.payer}"
        payment += f" after your travel certificate {self.certificate}" if self.certificate else ""
        start = f"book {flights} in {self.trips[0].cabin} for {names}"
        return ", ".join((start, *bags, *insured, f"for {self.total} in total", payment))


def book_trip(
    builder: AirlineTaskBuilder, reservation: Reservation, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Book a trip; unless `easy`, sometimes for two, with bags, insurance or a certificate."""
    plan, in_opening = _plan(builder, easy), easy or builder.draw_bool(0.6)
    held = builder.customer.payments[plan.certificate].balance if plan.certificate else None
    due = plan.total - min(plan.total, held or Decimal(0))
    gift = builder.find_payment("gift")
    short = not grantable and bool(gift) and due > 0 and builder.draw_bool(0.5)
    plan = replace(plan, payer=gift) if gift and (short or builder.draw_bool(0.3)) else plan
    pays = Fact(text=builder.phrase("pay", kind=payment_kind(plan.payer)), keywords=_PAY, in_opening=in_opening)
    text = " ".join((*_text(builder, plan, easy), *([pays.text] if in_opening else [])))
    goal = GoalSpec(text, facts=(pays,), required_terms=plan.required_terms)
    reads = (() if in_opening else (gold_text("How would you like to pay?"),)) + (
        () if easy else (gold_call("list_airports"),)
    )
    if not grantable and not short:
        return add_sold_out_refusal(builder, goal, plan.trips[0], easy, (*reads, *plan.trips[0].lookup_turns))
    reads += plan.lookup_turns
    if short:
        balance = f"{due - builder.rng.randint(1, min(30, int(due)))}"
        builder.set_balance(plan.payer, balance)
        refusal = gold_text(
            f"Your gift card {plan.payer} has a balance of {balance}, less than {due}, so I cannot book this."
        )
        return add_refusal(builder, goal, refusal, balance, easy, reads)
    builder.ensure_balance(plan.payer, due)
    return replace(goal, gold_turns=reads + gold_change(plan.proposal, plan.booking_call, "The trip has been booked."))


def _plan(builder: AirlineTaskBuilder, easy: bool) -> BookingPlan:
    cabin: Cabin = builder.rng.choice(("basic economy", "economy", "business"))
    trips, card = _journey(builder, cabin, easy), builder.find_payment("card")
    names = [builder.customer.name]
    if easy:
        return BookingPlan(trips, names, card)
    names += [_relative(builder)] if builder.draw_bool(0.5) else []
    bags = builder.rng.randint(1, 4) if builder.draw_bool(0.4) else 0
    return BookingPlan(
        trips,
        names,
        card,
        insured=builder.draw_bool(0.3),
        bags=bags,
        paid_bags=max(0, bags - free_bags(builder.customer.level, cabin, len(names))),
        certificate=builder.find_payment("certificate") if builder.draw_bool(0.7) else "",
    )


def _journey(builder: AirlineTaskBuilder, cabin: Cabin, easy: bool) -> list[FlightSearch]:
    """Draw a trip from home: direct and one-way if `easy`, else sometimes with a connection or a return."""
    origin, state = home_airport(builder.customer), builder.world
    goals = [code for code in AIRPORTS if code != origin and (not easy or find_paths(state, origin, code, 0))]
    goal = builder.rng.choice(goals)
    out = draw_flight_search(builder, (origin, goal), FUTURE_DATES, cabin)
    if easy or builder.draw_bool(0.5):
        return [out]
    return [out, draw_flight_search(builder, (goal, origin), [add_days(out.date, days) for days in range(2, 7)], cabin)]


def _text(builder: AirlineTaskBuilder, plan: BookingPlan, easy: bool) -> list[str]:
    first, *back = plan.trips
    origin, goal = (
        f"{city_of(code)} ({code})" if easy else city_of(code) for code in (first.origin, first.destination)
    )
    best = builder.phrase(f"best.{first.preference}")
    words = {"origin": origin, "goal": goal, "date": format_month_day(first.date), "cabin": first.cabin, "best": best}
    texts = [builder.phrase("book", **words)]
    for trip in back:
        best = builder.phrase(f"best.{trip.preference}")
        texts.append(builder.phrase("back", date=format_month_day(trip.date), best=best))
    others = plan.passengers[1:]
    texts.append(builder.phrase("together", other=others[0]) if others else builder.phrase("alone"))
    if plan.bags:
        texts.append(builder.phrase("with_bags", bags=format_count(plan.bags, "checked bag")))
    texts += [builder.phrase("insured")] if plan.insured else []
    return texts + ([builder.phrase("certificate")] if plan.certificate else [])


def _bag_variants(bags: int) -> str:
    """Return the accepted forms of a number of bags in a proposal."""
    counts = [str(bags), NUMBERS[bags], *(["a"] if bags == 1 else [])]
    nouns = [f"{kind}{noun}" for kind in ("", "checked ") for noun in ("bag", "bags")]
    return "|".join([f"{count} {noun}" for count in counts for noun in nouns] + [f"{noun}: {bags}" for noun in nouns])


def _relative(builder: AirlineTaskBuilder) -> str:
    first, last = builder.customer.name.split(" ", 1)
    return f"{builder.rng.choice([name for name in FIRST_NAMES if name != first])} {last}"
