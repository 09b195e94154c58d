"""The tools that read, and whom and what a conversation may touch: one customer, and that customer's orders."""

from collections.abc import Sequence

from understudy.domains.arithmetic import calculated
from understudy.domains.clerk import Clerk
from understudy.domains.doordash.pricing import is_open
from understudy.domains.doordash.state import Cuisine, Customer, DoordashState, Order, Promotion, Restaurant, Status
from understudy.domains.money import Money
from understudy.errors import ToolError
from understudy.records import Record


class Found(Record):
    """Who was found."""

    name: str
    orders: dict[str, str]
    """Order ids, and from which restaurant."""


class Offer(Record):
    """A restaurant that delivers to the customer."""

    name: str
    delivery_fee: Money
    minimum: Money
    closed: bool = False


class Tracking(Record):
    """Where an order is."""

    courier: str
    vehicle: str
    minutes: int


class Desk(Clerk[Customer]):
    """What can be found and read."""

    _state: DoordashState
    _found_by = "by email or by phone number"

    def find_customer(self, email: str) -> Found:
        """Find the customer by email. Do this first."""
        return self._identify(email.strip().casefold(), f"no customer has the email {email!r}")

    def find_customer_by_phone(self, phone: str) -> Found:
        """Find the customer by phone number, if the email is not known."""
        found = (email for email, c in self._state.customers.items() if c.phone == phone.strip())
        return self._identify(next(found, ""), f"no customer has the phone number {phone!r}")

    def get_customer(self) -> Customer:
        """Read the customer's account: address, age, membership, ways to pay, credit, days of earlier refunds."""
        customer = self._customer()
        self._read.add("account")
        return customer

    def get_order(self, order_id: str) -> Order:
        """Read one order."""
        order = self._order(order_id)
        self._read.add(order_id)
        return order

    def search_restaurants(self, cuisine: Cuisine) -> list[Offer]:
        """List the restaurants of a cuisine that deliver to the customer."""
        area = self._customer().area
        return [
            Offer(
                name=name,
                delivery_fee=place.delivery_fee,
                minimum=place.minimum,
                closed=place.paused or not is_open(place),
            )
            for name, place in self._state.restaurants.items()
            if (place.cuisine, place.area) == (cuisine, area)
        ]

    def get_restaurant(self, name: str) -> Restaurant:
        """Read a restaurant's hours, fee, minimum and menu with prices, options and allergens."""
        self._customer()
        place = self._restaurant(name)
        self._read.add(name)
        return place

    def get_promotion(self, code: str) -> Promotion:
        """Read the terms of a promotion code."""
        self._customer()
        return self._promotion(code)

    def track_courier(self, order_id: str) -> Tracking:
        """See who brings an order that was picked up, and in how many minutes."""
        order = self._order(order_id)
        trip = self._state.trips.get(order_id)
        if order.status != "picked up" or trip is None:
            raise ToolError(f"order {order_id} is {order.status}; only one that was picked up can be tracked")
        courier = self._state.couriers[trip.courier]
        return Tracking(courier=courier.name, vehicle=courier.vehicle, minutes=trip.minutes)

    def calculate(self, expression: str) -> str:
        """Calculate with numbers, + - * / and brackets."""
        return calculated(expression)

    def _identify(self, email: str, unknown: str) -> Found:
        customer = self._find(email, unknown)
        return Found(name=customer.name, orders={key: self._state.orders[key].restaurant for key in customer.orders})

    def _account(self) -> Customer:
        """The customer, whose account was read."""
        customer = self._customer()
        if "account" not in self._read:
            raise ToolError("read the customer's account first")
        return customer

    def _order(self, order_id: str) -> Order:
        return self._own("order", order_id, self._customer().orders, self._state.orders)

    def _in_status(self, order_id: str, allowed: Sequence[Status]) -> Order:
        """An order that was read, in one of the statuses that a change is allowed in."""
        order = self._order(order_id)
        if order_id not in self._read:
            raise ToolError(f"read order {order_id} first")
        if order.status not in allowed:
            raise ToolError(f"order {order_id} is {order.status}; it has to be {' or '.join(allowed)}")
        return order

    def _restaurant(self, name: str) -> Restaurant:
        place = self._state.restaurants.get(name)
        if place is None:
            raise ToolError(f"there is no restaurant {name!r}; search for those of a cuisine")
        return place

    def _menu(self, name: str) -> Restaurant:
        """A restaurant that was read."""
        place = self._restaurant(name)
        if name not in self._read:
            raise ToolError(f"read the restaurant {name} first")
        return place

    def _promotion(self, code: str) -> Promotion:
        promotion = self._state.promotions.get(code.strip().upper())
        if promotion is None:
            raise ToolError(f"there is no promotion {code!r}")
        return promotion

    def _save(self, order: Order) -> None:
        self._state.orders[order.id] = order
