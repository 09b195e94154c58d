"""The store's database. Tools return its records, so fields with default values are left out."""

from decimal import Decimal
from typing import Literal

from understudy.core.records import Record
from understudy.domains.authoring.money import Money
from understudy.domains.authoring.payments import Payment
from understudy.envs.state import State, Table

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
    """A product in one option. Its key is the item id."""

    option: str
    """Size and color, as in "large black"."""
    price: Money
    available: bool = True


class Product(Record):
    """A product, by its name."""

    variants: dict[str, Variant]


class User(Record):
    """A customer, by email address."""

    name: str
    address: str
    """House number, street, city and zip, as in "12 Oak Street, Denver 80202"."""
    payments: dict[str, Payment]
    orders: tuple[str, ...]


class Line(Record):
    """One item of an order, with the price paid."""

    id: str
    name: str
    option: str
    price: Money


class Order(Record):
    """An order: one to three different items, with one payment."""

    id: str
    status: Status
    address: str
    payment: str
    items: tuple[Line, ...]
    reason: Reason | None = None
    """The reason for the cancellation."""
    returned: tuple[str, ...] = ()
    refund_to: str = ""
    exchanged: tuple[tuple[str, str], ...] = ()
    """Old and new item ids."""
    difference_by: str = ""
    """The payment that was charged or refunded the price difference of changed or exchanged items."""

    @property
    def total(self) -> Decimal:
        """The total price."""
        return sum((line.price for line in self.items), Decimal("0.00"))


class RetailState(State):
    """Users by email, orders by id, products by name; the current customer; whether they were transferred."""

    users: Table[User]
    orders: Table[Order]
    products: Table[Product]
    customer: str = ""
    transferred: bool = False
