"""The tools that read, limited to one customer and their orders."""

from collections.abc import Sequence

from understudy.core.errors import ToolError
from understudy.core.records import Record
from understudy.domains.authoring.customer_toolkit import CustomerToolkit
from understudy.domains.authoring.money import Money
from understudy.domains.doordash.policy_rules import is_open
from understudy.domains.doordash.state import (
    Cuisine,
    Customer,
    DoordashState,
    Order,
    Promotion,
    Restaurant,
    Status,
)
from understudy.envs.calculator import evaluate_expression


class DoordashCustomerSummary(Record):
    """The customer who was found."""

    name: str
    orders: dict[str, str]
    """Restaurants by order id."""


class RestaurantOffer(Record):
    """A restaurant that delivers to the customer."""

    name: str
    delivery_fee: Money
    minimum: Money
    closed: bool = False


class CourierTracking(Record):
    """The courier of an order."""

    courier: str
    vehicle: str
    minutes: int


class DoordashToolsBase(CustomerToolkit[Customer]):
    """Tools that find and read."""

    _state: DoordashState
    _found_by = "by email or by phone number"

    def find_customer(self, email: str) -> DoordashCustomerSummary:
        """Find the customer by email. Do this first."""
        return self._identify(email.strip().casefold(), f"no customer has the email {email!r}")

    def find_customer_by_phone(self, phone: str) -> DoordashCustomerSummary:
        """Find the customer by phone number, if the email is unknown."""
        found = (email for email, c in self._state.customers.items() if c.phone == phone.strip())
        return self._identify(next(found, ""), f"no customer has the phone number {phone!r}")

    def get_customer(self) -> Customer:
        """Get the customer's account: address, age, membership, payment methods, credit, dates of refunds."""
        customer = self._customer()
        self._read.add("account")
        return customer

    def get_order(self, order_id: str) -> Order:
        """Get one order."""
        order = self._order(order_id)
        self._read.add(order_id)
        return order

    def search_restaurants(self, cuisine: Cuisine) -> list[RestaurantOffer]:
        """List the restaurants of a cuisine that deliver to the customer."""
        area = self._customer().area
        return [
            RestaurantOffer(
                name=name,
                delivery_fee=restaurant.delivery_fee,
                minimum=restaurant.minimum,
                closed=restaurant.paused or not is_open(restaurant),
            )
            for name, restaurant in self._state.restaurants.items()
            if (restaurant.cuisine, restaurant.area) == (cuisine, area)
        ]

    def get_restaurant(self, name: str) -> Restaurant:
        """Get a restaurant's hours, fee, minimum and menu with prices, options and allergens."""
        self._customer()
        restaurant = self._restaurant(name)
        self._read.add(name)
        return restaurant

    def get_promotion(self, code: str) -> Promotion:
        """Get the terms of a promotion code."""
        self._customer()
        return self._promotion(code)

    def track_courier(self, order_id: str) -> CourierTracking:
        """Get the courier of an order that was picked up, and the minutes until it arrives."""
        order = self._order(order_id)
        trip = self._state.trips.get(order_id)
        if order.status != "picked up" or trip is None:
            raise ToolError(f"order {order_id} is {order.status}; only orders that were picked up can be tracked")
        courier = self._state.couriers[trip.courier]
        return CourierTracking(courier=courier.name, vehicle=courier.vehicle, minutes=trip.minutes)

    def calculate(self, expression: str) -> str:
        """Calculate with numbers, + - * / and parentheses."""
        return evaluate_expression(expression)

    def _identify(self, email: str, unknown: str) -> DoordashCustomerSummary:
        customer = self._find(email, unknown)
        return DoordashCustomerSummary(
            name=customer.name, orders={key: self._state.orders[key].restaurant for key in customer.orders}
        )

    def _read_account(self) -> Customer:
        """Return the customer, whose account must have been read."""
        customer = self._customer()
        if "account" not in self._read:
            raise ToolError("read the customer's account first")
        return customer

    def _order(self, order_id: str) -> Order:
        return self._own("order", order_id, self._customer().orders, self._state.orders)

    def _in_status(self, order_id: str, allowed: Sequence[Status]) -> Order:
        """Return an order that was read and has one of the allowed statuses."""
        order = self._order(order_id)
        if order_id not in self._read:
            raise ToolError(f"read order {order_id} first")
        if order.status not in allowed:
            raise ToolError(f"order {order_id} is {order.status}; it must be {' or '.join(allowed)}")
        return order

    def _restaurant(self, name: str) -> Restaurant:
        restaurant = self._state.restaurants.get(name)
        if restaurant is None:
            raise ToolError(f"there is no restaurant {name!r}; search by cuisine")
        return restaurant

    def _read_restaurant(self, name: str) -> Restaurant:
        """Return a restaurant that was read."""
        restaurant = self._restaurant(name)
        if name not in self._read:
            raise ToolError(f"read the restaurant {name} first")
        return restaurant

    def _promotion(self, code: str) -> Promotion:
        promotion = self._state.promotions.get(code.strip().upper())
        if promotion is None:
            raise ToolError(f"there is no promotion {code!r}")
        return promotion

    def _save(self, order: Order) -> None:
        self._state.orders[order.id] = order
