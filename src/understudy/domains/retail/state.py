"""The shop's database. Records are also what tools show, so they are short: fields with default values are left out."""

from decimal import Decimal
from typing import Literal

from understudy.domains.money import Money
from understudy.domains.wallet import Payment
from understudy.records import Record
from understudy.state import State, Table

Status = Literal[
    "pending",
    "pending (items modified)",
    "shipped",
    "delivered",
    "cancelled",
    "return requested",
    "exchange requested",
]
Reason = Literal["no longer needed", "ordered by mistake"]


class Variant(Record):
    """One thing to buy: a product in one option. Its key is the item id."""

    option: str
    """Size and colour, as in "large black"."""
    price: Money
    available: bool = True


class Product(Record):
    """A kind of thing, by its name."""

    variants: dict[str, Variant]


class User(Record):
    """A customer, by e-mail address."""

    name: str
    address: str
    """Street and number, city and zip, as in "12 Oak Street, Denver 80202"."""
    payments: dict[str, Payment]
    orders: tuple[str, ...]


class Line(Record):
    """One item of an order, at the price that was paid."""

    id: str
    name: str
    option: str
    price: Money


class Order(Record):
    """An order: one to three different items, paid in one way."""

    id: str
    status: Status
    address: str
    payment: str
    items: tuple[Line, ...]
    reason: Reason | None = None
    """Why it was cancelled."""
    returned: tuple[str, ...] = ()
    refund_to: str = ""
    exchanged: tuple[tuple[str, str], ...] = ()
    """Old and new item ids."""
    difference_by: str = ""
    """The payment that took the difference in price of changed or exchanged items."""

    @property
    def total(self) -> Decimal:
        """What was paid."""
        return sum((line.price for line in self.items), Decimal("0.00"))


class RetailState(State):
    """Users by e-mail, orders by id, products by name; whom the agent talks to, and whether it has handed over."""

    users: Table[User]
    orders: Table[Order]
    products: Table[Product]
    customer: str = ""
    transferred: bool = False
