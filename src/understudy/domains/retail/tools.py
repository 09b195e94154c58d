"""The retail agent's tools. They act on the identified customer's data and reject what the policy forbids."""

import re
from collections.abc import Iterable, MutableMapping, Sequence
from decimal import Decimal
from typing import Annotated

from understudy.core.errors import ToolError
from understudy.core.records import Record
from understudy.domains.authoring.customer_toolkit import CustomerToolkit
from understudy.domains.authoring.money import Money
from understudy.domains.authoring.payments import apply_charge, get_balance
from understudy.domains.retail.state import Line, Order, Product, Reason, RetailState, Status, User
from understudy.envs.calculator import evaluate_expression

Address = Annotated[str, "like 12 Oak Street, Denver 80202"]


class RetailCustomerSummary(Record):
    """The customer who was found."""

    name: str
    orders: tuple[str, ...]


class RetailActionResult(Record):
    """The result of a change."""

    status: str
    refund: Money | None = None
    charge: Money | None = None


class RetailTools(CustomerToolkit[User]):
    """The tools of retail support."""

    _state: RetailState

    @property
    def _customers(self) -> MutableMapping[str, User]:
        return self._state.users

    def find_user(self, email: str) -> RetailCustomerSummary:
        """Find the customer by email. Do this first."""
        return self._identify(email.strip().casefold(), f"no customer has the email {email!r}")

    def find_user_by_name(self, name: str, zip: str) -> RetailCustomerSummary:
        """Find the customer by full name and zip code, if the email is unknown."""
        name, zip = name.strip().casefold(), zip.strip()
        found = (e for e, u in self._state.users.items() if u.name.casefold() == name and u.address.endswith(f" {zip}"))
        return self._identify(next(found, ""), f"no customer has the name {name!r} and the zip {zip!r}")

    def get_user(self) -> User:
        """Get the customer's address, payment methods and orders."""
        return self._customer()

    def get_order(self, order_id: str) -> Order:
        """Get one order."""
        order = self._order(order_id)
        self._read.add(order_id)
        return order

    def get_product(self, name: str) -> Product:
        """Get the variants of a product with item ids and prices."""
        self._customer()
        return self._product(name)

    def list_products(self) -> list[str]:
        """List the names of all products."""
        self._customer()
        return list(self._state.products)

    def cancel_order(self, order_id: str, reason: Reason) -> RetailActionResult:
        """Cancel a pending order."""
        order = self._in_status(order_id, "pending")
        self._charge(order.payment, -order.total)
        self._save(order.replace(status="cancelled", reason=reason))
        return RetailActionResult(status="cancelled", refund=order.total)

    def change_address(self, order_id: str, address: Address) -> RetailActionResult:
        """Change the address of a pending order."""
        order = self._in_status(order_id, "pending")
        self._save(order.replace(address=_address(address)))
        return RetailActionResult(status="address changed")

    def change_payment(self, order_id: str, payment_id: str) -> RetailActionResult:
        """Change the payment of a pending order to another of the customer's payment methods."""
        order = self._in_status(order_id, "pending")
        if payment_id == order.payment:
            raise ToolError(f"order {order_id} is already paid with {payment_id}")
        self._charge(payment_id, order.total)
        self._charge(order.payment, -order.total)
        self._save(order.replace(payment=payment_id))
        return RetailActionResult(status="payment changed", charge=order.total, refund=order.total)

    def change_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_id: str = ""
    ) -> RetailActionResult:
        """Change items of a pending order to other variants, once. Uses the order's payment unless another is given."""
        order = self._in_status(order_id, "pending")
        new = self._replacements(order, item_ids, new_item_ids)
        changed = order.replace(items=tuple(new.get(line.id, line) for line in order.items))
        difference = self._settle(order, changed.total - order.total, payment_id)
        self._save(changed.replace(status="pending (items modified)", difference_by=payment_id or order.payment))
        return difference.replace(status="items changed")

    def return_items(self, order_id: str, item_ids: list[str], refund_to: str = "") -> RetailActionResult:
        """Return items of a delivered order. Refunds the order's payment unless a gift card is given."""
        order = self._in_status(order_id, "delivered")
        lines = [self._line(order, item) for item in _distinct(item_ids)]
        refund_to = self._refund_target(order, refund_to)
        returned = tuple(sorted(line.id for line in lines))
        self._save(order.replace(status="return requested", returned=returned, refund_to=refund_to))
        return RetailActionResult(status="return requested", refund=_total(lines))

    def exchange_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_id: str = ""
    ) -> RetailActionResult:
        """Exchange items of a delivered order for other variants. Uses the order's payment unless another is given."""
        order = self._in_status(order_id, "delivered")
        new = self._replacements(order, item_ids, new_item_ids)
        old = [line for line in order.items if line.id in new]
        difference = self._settle(order, _total(new.values()) - _total(old), payment_id)
        pairs = tuple(sorted((line.id, new[line.id].id) for line in old))
        self._save(
            order.replace(status="exchange requested", exchanged=pairs, difference_by=payment_id or order.payment)
        )
        return difference.replace(status="exchange requested")

    def change_user_address(self, address: Address) -> RetailActionResult:
        """Change the address of the customer's account. Does not change any order."""
        self._save_customer(self._customer().replace(address=_address(address)))
        return RetailActionResult(status="address changed")

    def calculate(self, expression: Annotated[str, "like (12.50 + 30) * 2"]) -> str:
        """Calculate with numbers, + - * / and parentheses."""
        return evaluate_expression(expression)

    def transfer_to_human(self, summary: str) -> RetailActionResult:
        """Transfer the customer to a human agent for what no tool can do. This is your last call."""
        self._customer()
        self._state.transferred = True
        return RetailActionResult(status="transferred")

    def _identify(self, email: str, unknown: str) -> RetailCustomerSummary:
        user = self._find(email, unknown)
        return RetailCustomerSummary(name=user.name, orders=user.orders)

    def _order(self, order_id: str) -> Order:
        return self._own("order", order_id, self._customer().orders, self._state.orders)

    def _in_status(self, order_id: str, status: Status) -> Order:
        order = self._order(order_id)
        if order_id not in self._read:
            raise ToolError(f"read order {order_id} first")
        if order.status != status:
            raise ToolError(f"order {order_id} is {order.status}, not {status}")
        return order

    def _product(self, name: str) -> Product:
        product = self._state.products.get(name.strip().casefold())
        if product is None:
            raise ToolError(f"there is no product {name!r}")
        return product

    def _line(self, order: Order, item: str) -> Line:
        found = next((line for line in order.items if line.id == item), None)
        if found is None:
            raise ToolError(f"order {order.id} has no item {item!r}")
        return found

    def _replacements(self, order: Order, old: Sequence[str], new: Sequence[str]) -> dict[str, Line]:
        if len(old) != len(new):
            raise ToolError(f"{len(old)} items cannot be replaced by {len(new)}")
        return {
            item: self._replacement(self._line(order, item), other)
            for item, other in zip(_distinct(old), new, strict=True)
        }

    def _replacement(self, line: Line, item: str) -> Line:
        variant = self._product(line.name).variants.get(item)
        if variant is None or item == line.id:
            raise ToolError(f"{item!r} is not another variant of the {line.name}")
        if not variant.available:
            raise ToolError(f"{item} is not available")
        return Line(id=item, name=line.name, option=variant.option, price=variant.price)

    def _settle(self, order: Order, difference: Decimal, payment_id: str) -> RetailActionResult:
        """Charge or refund a price difference."""
        self._charge(payment_id or order.payment, difference)
        return (
            RetailActionResult(status="", charge=difference)
            if difference > 0
            else RetailActionResult(status="", refund=-difference or None)
        )

    def _charge(self, payment_id: str, amount: Decimal) -> None:
        """Charge an amount; refund it if it is negative."""
        user = self._customer()
        payments = apply_charge(user.payments, payment_id, amount)
        if payments != user.payments:
            self._save_customer(user.replace(payments=payments))

    def _refund_target(self, order: Order, payment_id: str) -> str:
        target = payment_id or order.payment
        if target != order.payment and get_balance(self._customer().payments, target) is None:
            raise ToolError(f"refunds can only go to {order.payment}, the payment of the order, or to a gift card")
        return target

    def _save(self, order: Order) -> None:
        self._state.orders[order.id] = order


def _distinct(items: Sequence[str]) -> Sequence[str]:
    if not items or len(set(items)) != len(items):
        raise ToolError("give at least one item, and each item only once")
    return items


def _total(lines: Iterable[Line]) -> Decimal:
    return sum((line.price for line in lines), Decimal("0.00"))


def _address(text: str) -> str:
    """Return the address with single spaces. Raise `ToolError` if it is not in the store's format."""
    address = " ".join(text.split())
    if not _ADDRESS.fullmatch(address):
        raise ToolError(f"{text!r} is not an address like '12 Oak Street, Denver 80202'")
    return address


_ADDRESS = re.compile(r"\d+ [A-Z][\w .'-]*, [A-Z][\w .'-]* \d{5}")
