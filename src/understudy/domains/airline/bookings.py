"""The request to book a trip. `wants` says what `ok` means."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from understudy.domains.airline import phrases
from understudy.domains.airline.drafts import Draft
from understudy.domains.airline.itineraries import paths
from understudy.domains.airline.network import PLACES, city
from understudy.domains.airline.searches import Search, calculate, search, sold_out
from understudy.domains.airline.state import Cabin, Reservation
from understudy.domains.airline.terms import BAG, INSURANCE, free_bags
from understudy.domains.airline.wants import kind_of, refused
from understudy.domains.airline.world import COMING, home, later
from understudy.domains.callers import Knowledge
from understudy.domains.days import any_day, month_day
from understudy.domains.drafts import Want, call, change, say
from understudy.domains.people import FIRST
from understudy.messages import Message
from understudy.tasks import Fact

_PAY = ("how do you want", "which payment", "what payment", "payment method", "pay with", "like to pay")
_BOOK = "book|booking|booked|reserve"


@dataclass(frozen=True)
class Plan:
    """All that a booking is made of."""

    trips: Sequence[Search]
    names: Sequence[str]
    payer: str
    insured: bool = False
    bags: int = 0
    paid_bags: int = 0
    """How many of the bags are not free."""
    certificate: str = ""

    @property
    def total(self) -> Decimal:
        """The whole price."""
        each = sum((trip.found.fare for trip in self.trips), INSURANCE * self.insured)
        return len(self.names) * each + BAG * self.paid_bags

    @property
    def searches(self) -> tuple[Message, ...]:
        """What a perfect agent reads: flights, the price, and the customer's payments."""
        calls = tuple(message for trip in self.trips for message in trip.calls)
        each = [f"{trip.found.fare}" for trip in self.trips] + [f"{INSURANCE}"] * self.insured
        bags = f" + {BAG} * {self.paid_bags}" if self.paid_bags else ""
        if len(each) * len(self.names) > 1 or bags:
            calls += (calculate(" + ".join(each), len(self.names), bags),)
        return (*calls, call("get_customer"))

    @property
    def names_of_proposal(self) -> tuple[str, ...]:
        """What a right proposal names."""
        dates = (any_day(trip.date) for trip in self.trips)
        certificate = ("certificate|voucher",) if self.certificate else ()
        payer = f"{kind_of(self.payer)}|{self.payer}"
        return (_BOOK, *dates, self.trips[0].cabin, f"{self.total}", payer, *certificate)

    @property
    def call(self) -> Message:
        """The booking."""
        first, *back = self.trips
        arguments: dict[str, Any] = {
            "flights": list(first.found.flights),
            "date": first.date,
            "passengers": list(self.names),
            "cabin": first.cabin,
            "payment_id": self.payer,
        }
        for trip in back:
            arguments |= {"return_flights": list(trip.found.flights), "return_date": trip.date}
        extras = {"bags": self.bags, "insurance": self.insured, "certificate_id": self.certificate}
        return call("book_flights", **arguments, **{name: value for name, value in extras.items() if value})

    @property
    def proposal(self) -> str:
        """As the agent proposes it."""
        flights, names = " and ".join(trip.said for trip in self.trips), " and ".join(self.names)
        bags = [f"with {phrases.count(self.bags, 'checked bag')}"] if self.bags else []
        insured = ["with insurance"] if self.insured else []
        payment = f"paid with your {kind_of(self.payer)} {self.payer}"
        payment += f" after your travel certificate {self.certificate}" if self.certificate else ""
        start = f"book {flights} in {self.trips[0].cabin} for {names}"
        return ", ".join((start, *bags, *insured, f"for {self.total} in all", payment))


def book(draft: Draft, reservation: Reservation, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Book a trip; for two, with bags, insurance or a certificate, where it is not easy."""
    plan, told = _plan(draft, easy), easy or draft.likely(0.6)
    held = draft.customer.payments[plan.certificate].balance if plan.certificate else None
    due = plan.total - min(plan.total, held or Decimal(0))
    gift = draft.payment("gift")
    short = not ok and bool(gift) and due > 0 and draft.likely(0.5)
    plan = replace(plan, payer=gift) if gift and (short or draft.likely(0.3)) else plan
    pays = Fact(says=draft.pick(phrases.PAY, kind=kind_of(plan.payer)), cues=_PAY, opened=told)
    text = " ".join((*_text(draft, plan, easy), *([pays.says] if told else [])))
    want = Want(text, facts=(pays,), names=plan.names_of_proposal)
    reads = (() if told else (say("How do you want to pay?"),)) + (() if easy else (call("list_airports"),))
    if not ok and not short:
        return sold_out(draft, want, plan.trips[0], easy, (*reads, *plan.trips[0].calls))
    reads += plan.searches
    if short:
        balance = f"{due - draft.random.randint(1, min(30, int(due)))}"
        draft.holds(plan.payer, balance)
        refusal = say(f"Your gift card {plan.payer} holds {balance}, less than {due}, so I cannot book this.")
        return refused(draft, want, refusal, balance, easy, reads)
    draft.covers(plan.payer, due)
    return replace(want, turns=reads + change(plan.proposal, plan.call, "The trip is booked."))


def _plan(draft: Draft, easy: bool) -> Plan:
    cabin: Cabin = draft.random.choice(("basic economy", "economy", "business"))
    trips, card = _journey(draft, cabin, easy), draft.payment("card")
    names = [draft.customer.name]
    if easy:
        return Plan(trips, names, card)
    names += [_relative(draft)] if draft.likely(0.5) else []
    bags = draft.random.randint(1, 4) if draft.likely(0.4) else 0
    return Plan(
        trips,
        names,
        card,
        insured=draft.likely(0.3),
        bags=bags,
        paid_bags=max(0, bags - free_bags(draft.customer.level, cabin, len(names))),
        certificate=draft.payment("certificate") if draft.likely(0.7) else "",
    )


def _journey(draft: Draft, cabin: Cabin, easy: bool) -> list[Search]:
    """A trip from home, direct and one way where it is easy; else perhaps with a change of planes or a way back."""
    origin, state = home(draft.customer), draft.world
    goals = [code for code in PLACES if code != origin and (not easy or paths(state, origin, code, 0))]
    goal = draft.random.choice(goals)
    out = search(draft, (origin, goal), COMING, cabin)
    if easy or draft.likely(0.5):
        return [out]
    return [out, search(draft, (goal, origin), [later(out.date, days) for days in range(2, 7)], cabin)]


def _text(draft: Draft, plan: Plan, easy: bool) -> list[str]:
    first, *back = plan.trips
    origin, goal = (f"{city(code)} ({code})" if easy else city(code) for code in (first.origin, first.goal))
    best = draft.pick(phrases.BEST[first.wanted])
    words = {"origin": origin, "goal": goal, "date": month_day(first.date), "cabin": first.cabin, "best": best}
    texts = [draft.pick(phrases.BOOK, **words)]
    for trip in back:
        best = draft.pick(phrases.BEST[trip.wanted])
        texts.append(draft.pick(phrases.BACK, date=month_day(trip.date), best=best))
    others = plan.names[1:]
    texts.append(draft.pick(phrases.TOGETHER, other=others[0]) if others else draft.pick(phrases.ALONE))
    if plan.bags:
        texts.append(draft.pick(phrases.WITH_BAGS, bags=phrases.count(plan.bags, "checked bag")))
    texts += [draft.pick(phrases.INSURED)] if plan.insured else []
    return texts + ([draft.pick(phrases.CERTIFICATE)] if plan.certificate else [])


def _relative(draft: Draft) -> str:
    first, last = draft.customer.name.split(" ", 1)
    return f"{draft.random.choice([name for name in FIRST if name != first])} {last}"
