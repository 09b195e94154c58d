"""The request to book a trip."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from understudy.core.messages import Message
from understudy.domains.airline.goals.flight_search import (
    FlightSearch,
    calculate_for_passengers,
    draw_flight_search,
    refuse_sold_out,
)
from understudy.domains.airline.goals.reservation import INSURE_TERMS, NUMBERS, format_count
from understudy.domains.airline.itineraries import find_paths
from understudy.domains.airline.policy_rules import BAG_PRICE, INSURANCE_PRICE, free_bags
from understudy.domains.airline.route_network import AIRPORTS
from understudy.domains.airline.state import Cabin, Reservation
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.airline.world import FUTURE_DATES, home_airport
from understudy.domains.authoring.payments import PAYMENT_CUES, payment_kind
from understudy.domains.authoring.people import FIRST_NAMES
from understudy.domains.authoring.request import Draw, grant, refuse, tell
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.envs.dates import add_days, date_variants, format_month_day
from understudy.envs.gold import gold_call

_BOOK = "book|books|booking|booked|reserve|reserves|reserved|reserving"


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
        fares = sum((trip.offer.fare for trip in self.trips), INSURANCE_PRICE * self.insured)
        return len(self.passengers) * fares + BAG_PRICE * self.paid_bags

    @property
    def lookup_turns(self) -> tuple[Message, ...]:
        """The gold agent's lookups: flights, the price, and the customer's payments."""
        turns = [turn for trip in self.trips for turn in trip.lookup_turns]
        prices = [f"{trip.offer.fare}" for trip in self.trips] + [f"{INSURANCE_PRICE}"] * self.insured
        bags = f" + {BAG_PRICE} * {self.paid_bags}" if self.paid_bags else ""
        if len(prices) * len(self.passengers) > 1 or bags:
            turns.append(calculate_for_passengers(" + ".join(prices), len(self.passengers), bags))
        return (*turns, gold_call("get_customer"))

    @property
    def required_terms(self) -> tuple[str, ...]:
        """The terms that a correct proposal contains."""
        customer, *others = self.passengers
        terms = [_BOOK, *(date_variants(trip.date) for trip in self.trips), self.trips[0].cabin]
        terms += [f"{customer}|for you|for yourself|and you|one passenger|1 passenger", *others]
        terms += [_bag_variants(self.bags)] if self.bags else []
        terms += [INSURE_TERMS] if self.insured else []
        terms += [f"{self.total}", f"{payment_kind(self.payer)}|{self.payer}"]
        return (*terms, "certificate|voucher") if self.certificate else tuple(terms)

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
        flights = " and ".join(trip.proposal_phrase for trip in self.trips)
        parts = [f"book {flights} in {self.trips[0].cabin} for {' and '.join(self.passengers)}"]
        parts += [f"with {format_count(self.bags, 'checked bag')}"] if self.bags else []
        parts += ["with insurance"] if self.insured else []
        payment = f"paid with your {payment_kind(self.payer)} {self.payer}"
        payment += f" after your travel certificate {self.certificate}" if self.certificate else ""
        return ", ".join((*parts, f"for {self.total} in total", payment))


def book_trip(b: AirlineTaskBuilder, draw: Draw[Reservation]) -> GoalSpec:
    """Book a trip; unless easy, sometimes for two, with bags, insurance or a certificate."""
    plan, vague = _draw_plan(b, draw.easy), not draw.easy and not b.draw_bool(0.6)
    balance = b.customer.payments[plan.certificate].balance if plan.certificate else None
    due = plan.total - min(plan.total, balance or Decimal(0))
    gift = b.find_payment("gift")
    short = not draw.grantable and bool(gift) and due > 0 and b.draw_bool(0.5)
    if gift and (short or b.draw_bool(0.3)):
        plan = replace(plan, payer=gift)
    payment = b.phrase("pay", kind=payment_kind(plan.payer))
    goal = GoalSpec(" ".join(_texts(b, plan, draw.easy)), required_terms=plan.required_terms)
    goal = tell(goal, payment, "How would you like to pay?", PAYMENT_CUES, vague=vague)
    airports = () if draw.easy else (gold_call("list_airports"),)
    if not draw.grantable and not short:
        return refuse_sold_out(b, draw, goal, plan.trips[0], airports)
    reads = (*airports, *plan.lookup_turns)
    if short:
        left = f"{due - b.rng.randint(1, min(30, int(due)))}"
        b.set_balance(plan.payer, left)
        reason = f"Your gift card {plan.payer} has a balance of {left}, less than {due}, so I cannot book this."
        return refuse(b, goal, reason, left, easy=draw.easy, reads=reads)
    b.ensure_balance(plan.payer, due)
    return grant(goal, plan.proposal, plan.booking_call, "The trip has been booked.", reads)


def _draw_plan(b: AirlineTaskBuilder, easy: bool) -> BookingPlan:
    cabin: Cabin = b.rng.choice(("basic economy", "economy", "business"))
    trips, card, names = _draw_trips(b, cabin, easy), b.find_payment("card"), [b.customer.name]
    if easy:
        return BookingPlan(trips, names, card)
    if b.draw_bool(0.5):
        first, last = b.customer.name.split(" ", 1)
        names.append(f"{b.rng.choice([name for name in FIRST_NAMES if name != first])} {last}")
    bags = b.rng.randint(1, 4) if b.draw_bool(0.4) else 0
    return BookingPlan(
        trips,
        names,
        card,
        insured=b.draw_bool(0.3),
        bags=bags,
        paid_bags=max(0, bags - free_bags(b.customer.level, cabin, len(names))),
        certificate=b.find_payment("certificate") if b.draw_bool(0.7) else "",
    )


def _draw_trips(b: AirlineTaskBuilder, cabin: Cabin, easy: bool) -> list[FlightSearch]:
    """Draw a trip from home: direct and one-way if `easy`, else sometimes with a connection or a return."""
    home = home_airport(b.customer)
    reachable = [code for code in AIRPORTS if code != home and (not easy or find_paths(b.world, home, code, 0))]
    destination = b.rng.choice(reachable)
    outbound = draw_flight_search(b, (home, destination), FUTURE_DATES, cabin)
    if easy or b.draw_bool(0.5):
        return [outbound]
    dates = [add_days(outbound.date, days) for days in range(2, 7)]
    return [outbound, draw_flight_search(b, (destination, home), dates, cabin)]


def _texts(b: AirlineTaskBuilder, plan: BookingPlan, easy: bool) -> list[str]:
    first, *back = plan.trips
    origin, destination = first.spoken_route(with_codes=easy)
    best = b.phrase(f"best.{first.preference}")
    date = format_month_day(first.date)
    texts = [b.phrase("book", origin=origin, goal=destination, date=date, cabin=first.cabin, best=best)]
    for trip in back:
        best = b.phrase(f"best.{trip.preference}")
        texts.append(b.phrase("back", date=format_month_day(trip.date), best=best))
    others = plan.passengers[1:]
    texts.append(b.phrase("together", other=others[0]) if others else b.phrase("alone"))
    texts += [b.phrase("with_bags", bags=format_count(plan.bags, "checked bag"))] if plan.bags else []
    texts += [b.phrase("insured")] if plan.insured else []
    return texts + ([b.phrase("certificate")] if plan.certificate else [])


def _bag_variants(bags: int) -> str:
    """Return the accepted forms of a number of bags in a proposal."""
    counts = [str(bags), NUMBERS[bags], *(["a"] if bags == 1 else [])]
    nouns = [f"{kind}{noun}" for kind in ("", "checked ") for noun in ("bag", "bags")]
    return "|".join([f"{count} {noun}" for count in counts for noun in nouns] + [f"{noun}: {bags}" for noun in nouns])
