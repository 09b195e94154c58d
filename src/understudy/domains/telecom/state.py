"""The operator's database, and its customers' phones. Tools return the records, so fields with default values are
left out.

The agent's tools write lines, bills and tickets, the user's tools write phones. What works depends on both
(`connectivity.py`).
"""

from datetime import date
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator

from understudy.core.records import Record
from understudy.domains.authoring.money import Money
from understudy.envs.state import State, Table

TODAY = date(2025, 3, 14)
"""The date of all tasks."""

Gigabytes = Annotated[Decimal, AfterValidator(lambda amount: amount.quantize(Decimal("0.1")))]
"""Exact, with one place; "3.5" in JSON."""

SuspendReason = Literal["lost phone", "stolen phone", "long trip"]
Topic = Literal["weak signal", "wrong bill", "spam calls", "dropped calls"]
NetworkMode = Literal["automatic", "3G only"]


class Plan(Record):
    """A plan of lines. Its key is its name."""

    price: Money
    data: Gigabytes
    """Data per month in GB."""
    extra_gb: Money
    """Price of each further GB."""
    roaming_day: Money | None = None
    """Price per day of roaming; None if the plan has no roaming."""


class Line(Record):
    """A phone line, by its number."""

    plan: str
    contract_until: date
    suspended: SuspendReason | Literal["", "overdue bill"] = ""
    """The reason of the suspension; empty for an active line."""
    suspended_until: date | None = None
    roaming: bool = False
    next_plan: str = ""
    """The plan after the next bill, if it changes."""
    data_used: Gigabytes
    """Data used since the last bill, in GB."""
    data_added: Gigabytes = Decimal("0.0")
    """Data added since the last bill, in GB."""
    sim_ordered: bool = False
    """Whether a new SIM card is on its way."""


class BillItem(Record):
    """One item of a bill."""

    text: str
    amount: Money


class Bill(Record):
    """A monthly bill of a customer, for all their lines."""

    month: str
    """As in "February"."""
    status: Literal["paid", "open", "overdue"]
    items: tuple[BillItem, ...]
    requested: bool = False
    """Whether there is an open payment request for it on the customer's phone."""

    @property
    def total(self) -> Decimal:
        """The total amount."""
        return sum((item.amount for item in self.items), Decimal("0.00"))


class Ticket(Record):
    """A reported problem."""

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
    """The phone of a line, by the line's number. The user sees it, the agent does not."""

    model: str
    place: str
    """The area of its location."""
    sim: Literal["ok", "loose", "damaged"] = "ok"
    radio: Literal["ok", "stuck", "broken"] = "ok"
    """`stuck` is fixed by a restart; `broken` needs repair."""
    airplane_mode: bool = False
    mobile_data: bool = True
    roaming: bool = False
    data_saver: bool = False
    vpn: bool = False
    network_mode: NetworkMode = "automatic"
    apn: Literal["standard", "outdated", "company"] = "standard"
    """Access point. `company` works like `standard`. With `outdated` there is no internet."""
    failed_steps: tuple[str, ...] = ()
    """Steps that failed on a broken radio."""


class Area(Record):
    """A city, or a country abroad, by its name."""

    abroad: bool = False
    outage: Literal["", "internet", "network"] = ""
    """What is down: the internet, or the whole network."""
    outage_until: str = ""


class CurrentConversation(Record):
    """The current conversation; its one row is "now"."""

    number: str = ""
    """The line of the user's phone."""


class TelecomState(State):
    """Customers by id, lines and phones by number, bills and tickets by id, plans and areas by name."""

    customers: Table[Customer]
    lines: Table[Line]
    bills: Table[Bill]
    tickets: Table[Ticket]
    phones: Table[Phone]
    plans: Table[Plan]
    areas: Table[Area]
    conversation: Table[CurrentConversation]
    customer: str = ""
    transferred: bool = False
