"""The delivery agent's tools. They act on the identified customer's data and reject what the policy forbids."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Annotated

from pydantic import Field, WithJsonSchema

from understudy.core.errors import ToolError
from understudy.core.records import Record
from understudy.domains.authoring.customer_toolkit import CustomerToolkit
from understudy.domains.authoring.money import Money
from understudy.domains.doordash import policy_rules
from understudy.domains.doordash.state import (
    NOW,
    Choice,
    Cuisine,
    Customer,
    DoordashState,
    Dropoff,
    Order,
    OrderLine,
    Promotion,
    RefundTarget,
    Restaurant,
    Status,
    format_time,
)
from understudy.envs.calculator import evaluate_expression

Amount = Annotated[Money, Field(ge=0, le=500), WithJsonSchema({"type": "number"})]
Address = Annotated[str, "like 12 Oak Street, Harbor"]

OPEN: Sequence[Status] = ("placed", "accepted")
BEFORE_PICKUP: Sequence[Status] = (*OPEN, "preparing")
BEFORE_DELIVERY: Sequence[Status] = (*BEFORE_PICKUP, "picked up")


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


class DoordashActionResult(Record):
    """The result of a change."""

    status: str
    order_id: str = ""
    charge: Money | None = None
    refund: Money | None = None


class DoordashTools(CustomerToolkit[Customer]):
    """The tools of delivery support."""

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
                closed=restaurant.paused or not policy_rules.is_open(restaurant),
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

    def place_order(
        self, restaurant: str, items: list[Choice], payment: str, tip: Amount = Decimal("0.00"), promotion: str = ""
    ) -> DoordashActionResult:
        """Place an order to the customer's address. The payment is one of the customer's own, or credit."""
        customer, restaurant_data = self._read_account(), self._read_restaurant(restaurant)
        if restaurant_data.area != customer.area:
            raise ToolError(
                f"{restaurant} only delivers in {restaurant_data.area}, and the customer lives in {customer.area}"
            )
        policy_rules.validate_open(restaurant, restaurant_data)
        lines = self._lines(restaurant, restaurant_data, items)
        food = sum((line.price for line in lines), Decimal("0.00"))
        policy_rules.validate_minimum(restaurant, restaurant_data, food)
        self._state.ordered += 1
        order = Order(
            id=f"D{9000 + self._state.ordered}",
            restaurant=restaurant,
            status="placed",
            placed=format_time(NOW),
            promised=policy_rules.promised_time(),
            address=customer.address,
            payment=self._own_payment(payment),
            items=lines,
            delivery_fee=Decimal("0.00") if customer.member else restaurant_data.delivery_fee,
            tip=tip,
        )
        order = self._discounted(order, promotion) if promotion else order
        self._move(payment, -order.total)
        self._save(order)
        customer = self._customer()
        self._save_customer(customer.replace(orders=(*customer.orders, order.id)))
        return DoordashActionResult(status="placed", order_id=order.id, charge=order.total)

    def cancel_order(self, order_id: str) -> DoordashActionResult:
        """Cancel an order. Free while the order is placed, for a fee once it is accepted."""
        order = self._in_status(order_id, OPEN)
        fee = None if order.status == "placed" else min(policy_rules.CANCELLATION_FEE, order.total)
        self._save(order.replace(status="cancelled", cancellation_fee=fee))
        return self._paid_back("cancelled", order, order.total - (fee or 0))

    def change_items(
        self, order_id: str, remove: tuple[str, ...] = (), add: tuple[Choice, ...] = ()
    ) -> DoordashActionResult:
        """Remove dishes from an order, or add dishes of its restaurant, before it is prepared."""
        order = self._in_status(order_id, OPEN)
        restaurant = self._read_restaurant(order.restaurant)
        gone = self._named(order, remove) if remove else ()
        remaining = tuple(line for line in order.items if line not in gone)
        items = (*remaining, *self._lines(order.restaurant, restaurant, add, remaining)) if add else remaining
        if not (remove or add) or not items:
            raise ToolError("give dishes to remove or to add; to remove all dishes, cancel the order")
        changed = order.replace(items=tuple(sorted(items, key=lambda line: line.name)))
        policy_rules.validate_minimum(order.restaurant, restaurant, changed.food)
        if order.promotion:
            self._check_promotion(changed, order.promotion)
        self._save(changed)
        return self._settled("items changed", changed, changed.total - order.total)

    def change_address(self, order_id: str, address: Address) -> DoordashActionResult:
        """Change the address of an order within its area, before it is picked up."""
        order = self._in_status(order_id, BEFORE_PICKUP)
        area = self._restaurant(order.restaurant).area
        self._save(order.replace(address=policy_rules.validate_address(area, address)))
        return DoordashActionResult(status="address changed")

    def change_dropoff(self, order_id: str, dropoff: Dropoff) -> DoordashActionResult:
        """Change how an order is handed over, before it is delivered."""
        order = self._in_status(order_id, BEFORE_DELIVERY)
        self._save(order.replace(dropoff=dropoff))
        return DoordashActionResult(status="dropoff changed")

    def change_tip(self, order_id: str, tip: Amount) -> DoordashActionResult:
        """Raise the tip of an order, or lower it until an hour after the delivery."""
        order = self._in_status(order_id, (*BEFORE_DELIVERY, "delivered"))
        if tip == order.tip:
            raise ToolError(f"the tip is already {tip}")
        if tip < order.tip and not policy_rules.tip_can_be_lowered(order):
            raise ToolError(f"order {order_id} was delivered at {order.delivered}; its tip can only be raised")
        changed = order.replace(tip=tip)
        self._save(changed)
        return self._settled("tip changed", changed, tip - order.tip)

    def apply_promotion(self, order_id: str, code: str) -> DoordashActionResult:
        """Apply a promotion code to an order before it is prepared. Promotions cannot be combined."""
        order = self._in_status(order_id, OPEN)
        if order.promotion:
            raise ToolError(f"order {order_id} has the promotion {order.promotion}, and promotions cannot be combined")
        changed = self._discounted(order, code)
        self._save(changed)
        return self._settled("promotion applied", changed, changed.total - order.total)

    def refund_items(self, order_id: str, items: list[str], to: RefundTarget) -> DoordashActionResult:
        """Refund missing or wrong dishes of a delivered order, to its payment or as credit."""
        order = self._claimed(order_id)
        lines = self._unclaimed(order, items)
        amount = policy_rules.refund_amount(order, lines)
        self._save(order.replace(refunded=order.refunded | {line.name: to for line in lines}))
        self._move(order.payment if to == "payment" else "credit", amount)
        return DoordashActionResult(status=f"refunded to {to}", refund=amount)

    def redeliver_items(self, order_id: str, items: list[str]) -> DoordashActionResult:
        """Redeliver missing or wrong dishes of a delivered order, free of charge."""
        order = self._claimed(order_id)
        restaurant = self._read_restaurant(order.restaurant)
        policy_rules.validate_open(order.restaurant, restaurant)
        lines = self._unclaimed(order, items)
        for line in lines:
            policy_rules.make_order_line(order.restaurant, restaurant, Choice(item=line.name))
        names = tuple(sorted((*order.redelivered, *(line.name for line in lines))))
        self._save(order.replace(redelivered=names))
        return DoordashActionResult(status="redelivery on its way")

    def credit_late_delivery(self, order_id: str, amount: Amount) -> DoordashActionResult:
        """Give the credit for a late delivery that the policy sets for its minutes late."""
        order = self._claimed(order_id)
        if order.late_credit is not None:
            raise ToolError(f"order {order_id} already has its late credit of {order.late_credit}")
        due = policy_rules.late_credit(order)
        if not due:
            late = f"promised for {order.promised} and delivered at {order.delivered}"
            raise ToolError(f"order {order_id} was {late}; that is not late enough for a credit")
        if amount not in (steps := [step for _, step in policy_rules.LATE_CREDITS]):
            raise ToolError(f"a late credit cannot be {amount}; it is one of {', '.join(map(str, reversed(steps)))}")
        self._save(order.replace(late_credit=amount))
        self._move("credit", amount)
        return DoordashActionResult(status="credited", refund=amount)

    def transfer_to_human(self, summary: str) -> DoordashActionResult:
        """Transfer the customer to a human agent for what no tool can do. This is your last call."""
        self._customer()
        self._state.transferred = True
        return DoordashActionResult(status="transferred")

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

    def _lines(
        self, name: str, restaurant: Restaurant, choices: Iterable[Choice], remaining: Sequence[OrderLine] = ()
    ) -> tuple[OrderLine, ...]:
        """Return choices as lines, sorted by name."""
        lines = sorted(
            (policy_rules.make_order_line(name, restaurant, choice) for choice in choices), key=lambda line: line.name
        )
        names = [line.name for line in (*remaining, *lines)]
        if not lines or len(set(names)) != len(names):
            raise ToolError("give at least one dish, and each dish only once")
        age = self._customer().age
        if age != "of age" and any(restaurant.menu[line.name].alcohol for line in lines):
            raise ToolError(f"alcohol is only for customers of legal age, and this customer's age status is {age}")
        return tuple(lines)

    def _named(self, order: Order, items: Sequence[str]) -> tuple[OrderLine, ...]:
        """Return lines of an order by the names of their dishes."""
        if not items or len(set(items)) != len(items):
            raise ToolError("give at least one dish, and each dish only once")
        names = [line.name for line in order.items]
        for item in items:
            if item not in names:
                raise ToolError(f"order {order.id} has no {item!r}; it has {', '.join(names)}")
        return tuple(line for line in order.items if line.name in items)

    def _claimed(self, order_id: str) -> Order:
        """Return an order that allows a claim, and record the claim in the customer's account."""
        order, customer = self._in_status(order_id, ("delivered",)), self._read_account()
        if not policy_rules.can_claim(order):
            raise ToolError(
                f"order {order_id} was delivered at {order.delivered}, more than {policy_rules.CLAIM_HOURS} hours ago"
            )
        if (count := policy_rules.count_recent_refunds(customer.refunds)) >= policy_rules.MAX_REFUNDS:
            raise ToolError(
                f"the customer had {count} refunds in {policy_rules.REFUND_DAYS} days; a human agent must decide"
            )
        self._save_customer(customer.replace(refunds=(*customer.refunds, format_time(NOW)[:10])))
        return order

    def _unclaimed(self, order: Order, items: Sequence[str]) -> tuple[OrderLine, ...]:
        lines = self._named(order, items)
        for line in lines:
            if line.name in order.refunded or line.name in order.redelivered:
                raise ToolError(f"the {line.name} has already been refunded or redelivered")
        return lines

    def _discounted(self, order: Order, code: str) -> Order:
        self._check_promotion(order, code)
        return order.replace(promotion=code.strip().upper(), discount=self._promotion(code).off)

    def _check_promotion(self, order: Order, code: str) -> None:
        policy_rules.validate_promotion(code, self._promotion(code), order.food, self._customer().member)

    def _own_payment(self, payment: str) -> str:
        own = (*self._customer().payments, "credit")
        if payment not in own:
            raise ToolError(f"the customer has no payment method {payment!r}; they have {', '.join(own)}")
        return payment

    def _settled(self, status: str, order: Order, difference: Decimal) -> DoordashActionResult:
        """Charge or refund a difference to the order's payment."""
        if difference <= 0:
            return self._paid_back(status, order, -difference)
        self._move(order.payment, -difference)
        return DoordashActionResult(status=status, charge=difference)

    def _paid_back(self, status: str, order: Order, amount: Decimal) -> DoordashActionResult:
        self._move(order.payment, amount)
        return DoordashActionResult(status=status, refund=amount or None)

    def _move(self, payment: str, amount: Decimal) -> None:
        """Change the customer's credit. Cards and PayPal have no balance here."""
        customer = self._customer()
        if payment != "credit":
            return
        if customer.credit + amount < 0:
            raise ToolError(f"the credit is {customer.credit}, which is less than {-amount}")
        self._save_customer(customer.replace(credit=customer.credit + amount))
