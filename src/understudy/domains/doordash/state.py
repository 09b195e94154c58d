"""The service's database. Records are also what tools show, so they are short: fields with default values are left out.

Times are texts like "2025-05-16 19:30", which sort as they follow each other. It is always `NOW`.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

from pydantic import Field

from understudy.domains.money import Money
from understudy.records import Record
from understudy.state import State, Table

NOW = datetime(2025, 5, 16, 19, 30)
"""A Friday evening."""

Status = Literal["placed", "accepted", "preparing", "picked up", "delivered", "cancelled"]
Cuisine = Literal["burgers", "indian", "pizza", "thai"]
Dropoff = Literal["hand it to me", "leave at the door", "leave with reception", "meet outside"]
Age = Literal["of age", "under age", "not on file"]
Target = Literal["payment", "credit"]
"""Where a refund goes: back to what paid the order, or to the customer's credit."""


class Dish(Record):
    """Something on a menu, by its name."""

    price: Money
    options: dict[str, Money] = {}
    """Sizes and extras, with what each adds to the price."""
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
    """What the items of an order have to come to."""
    menu: dict[str, Dish]
    paused: bool = False
    """Whether it takes no orders for now, though it is open."""


class Choice(Record):
    """A dish of a menu as it is ordered."""

    item: str
    options: tuple[str, ...] = ()
    quantity: int = Field(default=1, ge=1, le=9)


class Line(Record):
    """One dish of an order; the price is that of the whole line, options included."""

    name: str
    options: tuple[str, ...] = ()
    quantity: int = 1
    price: Money


class Order(Record):
    """An order: one to four different dishes of one restaurant, paid in one way."""

    id: str
    restaurant: str
    status: Status
    placed: str
    promised: str
    delivered: str = ""
    address: str
    payment: str
    items: tuple[Line, ...]
    delivery_fee: Money
    tip: Money = Decimal("0.00")
    promotion: str = ""
    discount: Money = Decimal("0.00")
    dropoff: Dropoff = "hand it to me"
    courier: str = ""
    cancellation_fee: Money | None = None
    refunded: dict[str, Target] = {}
    """Dishes that were refunded, and where to."""
    redelivered: tuple[str, ...] = ()
    late_credit: Money | None = None

    @property
    def food(self) -> Decimal:
        """What the items come to."""
        return sum((line.price for line in self.items), Decimal("0.00"))

    @property
    def total(self) -> Decimal:
        """What was paid."""
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
    """The days of the refunds, redeliveries and late credits they were given."""

    @property
    def area(self) -> str:
        """Where they live."""
        return area_of(self.address)


class Courier(Record):
    """Who delivers, by id."""

    name: str
    vehicle: str


class Trip(Record):
    """The way of an order that was picked up, by the order's id."""

    courier: str
    minutes: int
    """Until it arrives."""


class Promotion(Record):
    """A code that takes something off an order, by the code."""

    off: Money
    minimum: Money
    """What the items have to come to."""
    expires: str
    """The last day it can be used."""
    members_only: bool = False


class DoordashState(State):
    """Customers by email, orders and trips by order id, and what the service offers; whom the agent talks to."""

    customers: Table[Customer]
    orders: Table[Order]
    trips: Table[Trip]
    restaurants: Table[Restaurant]
    promotions: Table[Promotion]
    couriers: Table[Courier]
    customer: str = ""
    ordered: int = 0
    """How many orders the agent has placed."""
    transferred: bool = False


def stamp(moment: datetime) -> str:
    """A moment as records hold it."""
    return moment.strftime("%Y-%m-%d %H:%M")


def ago(**span: float) -> str:
    """The moment so long before now, as records hold it."""
    return stamp(NOW - timedelta(**span))


def minutes_between(first: str, second: str) -> int:
    """Minutes from one moment to another; negative if the second is the earlier one."""
    return round((datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds() / 60)


def area_of(address: str) -> str:
    """The area of an address."""
    return address.rpartition(", ")[2]


def cost_of(dish: Dish, options: Iterable[str]) -> Decimal:
    """What one of a dish costs with some of its options."""
    return sum((dish.options[option] for option in options), dish.price)
