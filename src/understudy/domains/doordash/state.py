"""The service's database. Tools return its records, so fields with default values are left out.

Times are texts like "2025-05-16 19:30", so their order as texts is their order in time. The current time is always
`NOW`.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

from pydantic import Field

from understudy.core.records import Record
from understudy.domains.authoring.money import Money
from understudy.envs.state import State, Table

NOW = datetime(2025, 5, 16, 19, 30)
"""The current time of all tasks, a Friday evening."""

Status = Literal["placed", "accepted", "preparing", "picked up", "delivered", "cancelled"]
Cuisine = Literal["burgers", "indian", "pizza", "thai"]
Dropoff = Literal["hand it to me", "leave at the door", "leave with reception", "meet outside"]
Age = Literal["of age", "under age", "not on file"]
RefundTarget = Literal["payment", "credit"]
"""Target of a refund: the payment of the order, or the customer's credit."""


class Dish(Record):
    """An item of a menu, by its name."""

    price: Money
    options: dict[str, Money] = {}
    """Sizes and extras, with their extra prices."""
    allergens: tuple[str, ...] = ()
    vegan: bool = False
    alcohol: bool = False
    sold_out: bool = False


class Restaurant(Record):
    """A restaurant, by its name. It delivers within its own area."""

    cuisine: Cuisine
    area: str
    opens: str
    closes: str
    delivery_fee: Money
    minimum: Money
    """The minimum total of an order's items."""
    menu: dict[str, Dish]
    paused: bool = False
    """Whether it takes no orders for now, even within its hours."""


class Choice(Record):
    """A dish of a menu as it is ordered."""

    item: str
    options: tuple[str, ...] = ()
    quantity: int = Field(default=1, ge=1, le=9)


class OrderLine(Record):
    """A dish of an order. The price includes quantity and options."""

    name: str
    options: tuple[str, ...] = ()
    quantity: int = 1
    price: Money


class Order(Record):
    """An order: one to four different dishes of one restaurant, with one payment."""

    id: str
    restaurant: str
    status: Status
    placed: str
    promised: str
    delivered: str = ""
    address: str
    payment: str
    items: tuple[OrderLine, ...]
    delivery_fee: Money
    tip: Money = Decimal("0.00")
    promotion: str = ""
    discount: Money = Decimal("0.00")
    dropoff: Dropoff = "hand it to me"
    courier: str = ""
    cancellation_fee: Money | None = None
    refunded: dict[str, RefundTarget] = {}
    """Refunded dishes, and the target of the refund."""
    redelivered: tuple[str, ...] = ()
    late_credit: Money | None = None

    @property
    def food(self) -> Decimal:
        """The total price of the items."""
        return sum((line.price for line in self.items), Decimal("0.00"))

    @property
    def total(self) -> Decimal:
        """The amount paid."""
        return self.food + self.delivery_fee + self.tip - self.discount


class Customer(Record):
    """A customer, by email."""

    name: str
    phone: str
    address: str
    """Street and area, as in "12 Oak Street, Harbor"."""
    age: Age
    member: bool = False
    """Whether delivery is free."""
    payments: tuple[str, ...]
    credit: Money
    orders: tuple[str, ...]
    refunds: tuple[str, ...] = ()
    """Dates of the customer's refunds, redeliveries and late credits."""

    @property
    def area(self) -> str:
        """The area of the address."""
        return parse_area(self.address)


class Courier(Record):
    """A courier, by id."""

    name: str
    vehicle: str


class Delivery(Record):
    """The delivery of an order that was picked up, by order id."""

    courier: str
    minutes: int
    """Minutes until it arrives."""


class Promotion(Record):
    """A promotion code with a discount, by code."""

    off: Money
    minimum: Money
    """The minimum total of the items."""
    expires: str
    """The last day on which it is valid."""
    members_only: bool = False


class DoordashState(State):
    """All tables of the service, and the current customer."""

    customers: Table[Customer]
    orders: Table[Order]
    trips: Table[Delivery]
    restaurants: Table[Restaurant]
    promotions: Table[Promotion]
    couriers: Table[Courier]
    customer: str = ""
    ordered: int = 0
    """The number of orders that the agent has placed."""
    transferred: bool = False


def format_time(moment: datetime) -> str:
    """Return a time in the format of the records."""
    return moment.strftime("%Y-%m-%d %H:%M")


def format_time_ago(**span: float) -> str:
    """Return the time this long before now, in the format of the records."""
    return format_time(NOW - timedelta(**span))


def minutes_between(first: str, second: str) -> int:
    """Return the minutes from one time to another; negative if the second is earlier."""
    return round((datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds() / 60)


def parse_area(address: str) -> str:
    """Return the area of an address."""
    return address.rpartition(", ")[2]


def dish_price(dish: Dish, options: Iterable[str]) -> Decimal:
    """Return the price of one dish with options."""
    return sum((dish.options[option] for option in options), dish.price)
