"""The operator's database, and the phones in its customers' hands. Records are also what tools show, so they are short.

The desk writes lines, bills and tickets, the customer's own tools write phones: what works takes both (`service.py`).
"""

from datetime import date
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator

from understudy.domains.money import Money
from understudy.records import Record
from understudy.state import State, Table

TODAY = date(2025, 3, 14)
"""The day on which all tasks play."""

Gigabytes = Annotated[Decimal, AfterValidator(lambda amount: amount.quantize(Decimal("0.1")))]
"""Exact, with one place; "3.5" in JSON."""

SuspendReason = Literal["lost phone", "stolen phone", "long trip"]
Topic = Literal["weak signal", "wrong bill", "spam calls", "dropped calls"]
NetworkMode = Literal["automatic", "3G only"]


class Plan(Record):
    """What a line costs a month and holds. Its key is its name."""

    price: Money
    data: Gigabytes
    """Data a month."""
    extra_gb: Money
    """Price of each further GB."""
    roaming_day: Money | None = None
    """Price of a day of roaming; None where the plan has no roaming."""


class Line(Record):
    """A phone line, by its number."""

    plan: str
    contract_until: date
    suspended: SuspendReason | Literal["", "overdue bill"] = ""
    """Why it is suspended; "" is an active line."""
    suspended_until: date | None = None
    roaming: bool = False
    next_plan: str = ""
    """The plan from the next bill on, where it changes."""
    data_used: Gigabytes
    """Since the last bill."""
    data_added: Gigabytes = Decimal("0.0")
    """Bought beyond the plan's since the last bill."""
    sim_ordered: bool = False
    """Whether a new SIM card is on its way."""


class Item(Record):
    """One position of a bill."""

    text: str
    amount: Money


class Bill(Record):
    """A monthly bill of a customer, for all their lines."""

    month: str
    """As in "February"."""
    status: Literal["paid", "open", "overdue"]
    items: tuple[Item, ...]
    requested: bool = False
    """Whether a payment request for it waits on the customer's phone."""

    @property
    def total(self) -> Decimal:
        """What has to be paid."""
        return sum((item.amount for item in self.items), Decimal("0.00"))


class Ticket(Record):
    """A fault or complaint that others work on."""

    number: str
    topic: Topic
    status: Literal["open", "in progress", "solved"]


class Customer(Record):
    """A customer, by customer id."""

    name: str
    birth_date: date
    address: str
    lines: tuple[str, ...]
    bills: tuple[str, ...]
    tickets: tuple[str, ...] = ()


class Phone(Record):
    """A line's phone as it is, by the line's number: what its owner sees and the desk does not."""

    model: str
    place: str
    """The area where it is."""
    sim: Literal["ok", "loose", "damaged"] = "ok"
    radio: Literal["ok", "stuck", "broken"] = "ok"
    """A stuck one works after a restart; a broken one is for the repair service."""
    airplane_mode: bool = False
    mobile_data: bool = True
    roaming: bool = False
    data_saver: bool = False
    vpn: bool = False
    network_mode: NetworkMode = "automatic"
    apn: Literal["standard", "outdated", "company"] = "standard"
    """Access point; a company's own one works."""
    tried: tuple[str, ...] = ()
    """What was tried on a broken radio, in vain."""


class Area(Record):
    """A city, or a country abroad, by its name."""

    abroad: bool = False
    outage: Literal["", "internet", "network"] = ""
    """What is out: the internet, or the whole network."""
    outage_until: str = ""


class Desk(Record):
    """Who is on the phone; its one row is "now"."""

    number: str = ""
    """The line whose phone the user has in hand."""


class TelecomState(State):
    """Customers by id, lines and phones by number, bills and tickets by id, plans and areas by name."""

    customers: Table[Customer]
    lines: Table[Line]
    bills: Table[Bill]
    tickets: Table[Ticket]
    phones: Table[Phone]
    plans: Table[Plan]
    areas: Table[Area]
    desk: Table[Desk]
    customer: str = ""
    transferred: bool = False
