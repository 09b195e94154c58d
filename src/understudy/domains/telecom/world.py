"""The world: 400 customers with one to three lines each, their bills, tickets and phones. A seed determines it.

Each customer, with their lines and records, belongs to one split. All splits share plans and areas.
"""

import functools
import random
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from decimal import Decimal
from typing import Literal

from understudy.domains.authoring.people import CITIES, draw_address, draw_names, split_words
from understudy.domains.telecom.state import (
    TODAY,
    Area,
    Bill,
    BillItem,
    CurrentConversation,
    Customer,
    Line,
    Phone,
    Plan,
    TelecomState,
    Ticket,
    Topic,
)

CUSTOMERS = 400
PLANS: Mapping[str, tuple[str, str, str, str | None]] = {
    # name: price per month, GB per month, price of an extra GB, price per day of roaming
    "Start": ("9.90", "2", "4.00", None),
    "Smart": ("14.90", "8", "3.50", None),
    "Comfort": ("19.90", "15", "3.00", "4.90"),
    "Family": ("24.90", "25", "2.50", "4.50"),
    "Travel": ("29.90", "20", "2.50", "1.90"),
    "Business": ("39.90", "40", "2.00", "2.90"),
    "Premium": ("49.90", "80", "1.50", "0.90"),
}
MONTHS = ("November", "December", "January", "February")
"""Months of bills, the newest last."""
COUNTRIES = split_words("Spain Italy France Greece Portugal Croatia Austria Ireland Japan Canada")
MODELS = split_words("Nova_5 Nova_6 Pixel_View Aero_X Aero_Mini Orbit_3 Orbit_4 Lumo_S")
TOPICS: tuple[Topic, ...] = ("weak signal", "wrong bill", "spam calls", "dropped calls")
_STATUSES: tuple[Literal["in progress", "solved"], ...] = ("in progress", "solved")
EXTRAS = split_words("international_calls premium_numbers text_messages insurance data_roaming")


@functools.cache
def build_world(seed: int = 0) -> TelecomState:
    """Return the state before any task. It is shared, so fork it before changing it."""
    rng = random.Random(f"telecom/{seed}")
    plans = {name: Plan.model_validate(dict(zip(Plan.model_fields, row, strict=True))) for name, row in PLANS.items()}
    state: dict[str, dict[str, object]] = {name: {} for name in ("customers", "lines", "bills", "tickets", "phones")}
    for key, customer in _customers(rng):
        city = customer.address.rpartition(", ")[2].rpartition(" ")[0]
        state["customers"][key] = customer
        lines = dict(zip(customer.lines, _lines(rng, len(customer.lines)), strict=True))
        state["lines"] |= lines
        state["phones"] |= {number: Phone(model=rng.choice(MODELS), place=city) for number in lines}
        months = MONTHS[-len(customer.bills) :]
        state["bills"] |= {key: _bill(rng, month, lines) for key, month in zip(customer.bills, months, strict=True)}
        state["tickets"] |= dict(zip(customer.tickets, _tickets(rng, customer), strict=True))
    areas = {name: Area() for name in CITIES} | {name: Area(abroad=True) for name in COUNTRIES}
    return TelecomState(**state, plans=plans, areas=areas, conversation={"now": CurrentConversation()})  # type: ignore[arg-type]


def _customers(rng: random.Random) -> Iterator[tuple[str, Customer]]:
    """Yield customers with different birthdays, so that name and date of birth identify them."""
    numbers = iter(rng.sample(range(2000, 10000), 3 * CUSTOMERS))
    births = iter(rng.sample(range(20_000), CUSTOMERS))
    keys = iter(rng.sample(range(1000, 10000), CUSTOMERS))
    bills, tickets = (iter(rng.sample(range(1000, 10000), 4 * CUSTOMERS)) for _ in range(2))
    for name in draw_names(rng, CUSTOMERS):
        yield (
            f"C{next(keys)}",
            Customer(
                name=name,
                birth_date=date(1948, 1, 1) + timedelta(days=next(births)),
                address=draw_address(rng),
                lines=tuple(f"555-{next(numbers)}" for _ in range(rng.choice((1, 2, 2, 3)))),
                bills=tuple(f"B{next(bills)}" for _ in range(rng.choice((2, 3, 4)))),
                tickets=tuple(f"T{next(tickets)}" for _ in range(rng.choice((0, 0, 1, 1, 2)))),
            ),
        )


def _lines(rng: random.Random, count: int) -> Iterator[Line]:
    """Yield the lines of one customer, each with another plan, so that a plan identifies a line."""
    for plan in rng.sample(list(PLANS), count):
        share = Decimal(rng.randint(5, 90)) / 100
        used = (share * Decimal(PLANS[plan][1])).quantize(Decimal("0.1"))
        until = TODAY + timedelta(days=rng.randint(30, 700))
        yield Line(plan=plan, contract_until=until, data_used=max(used, Decimal("0.1")))


def _bill(rng: random.Random, month: str, lines: Mapping[str, Line]) -> Bill:
    """Return a bill without repeated items. The newest is open, others are paid."""
    items = [BillItem(text=f"{line.plan} plan", amount=Decimal(PLANS[line.plan][0])) for line in lines.values()]
    for extra in rng.sample(EXTRAS, rng.choice((1, 1, 2, 2))):
        cents = rng.choice(("00", "20", "50", "75"))
        items.append(BillItem(text=extra, amount=Decimal(f"{rng.randint(1, 25)}.{cents}")))
    return Bill(month=month, status="open" if month == MONTHS[-1] else "paid", items=tuple(items))


def _tickets(rng: random.Random, customer: Customer) -> Iterator[Ticket]:
    for topic in rng.sample(TOPICS, len(customer.tickets)):
        yield Ticket(number=rng.choice(customer.lines), topic=topic, status=rng.choice(_STATUSES))
