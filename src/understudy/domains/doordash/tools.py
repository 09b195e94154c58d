"""What the agent can change. Tools act on the identified customer's own data, and refuse what the policy forbids."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Annotated

from pydantic import Field, WithJsonSchema

from understudy.domains.doordash import pricing
from understudy.domains.doordash.desk import Desk
from understudy.domains.doordash.state import NOW, Choice, Dropoff, Line, Order, Restaurant, Status, Target, stamp
from understudy.domains.money import Money
from understudy.errors import ToolError
from understudy.records import Record

Amount = Annotated[Money, Field(ge=0, le=500), WithJsonSchema({"type": "number"})]
Address = Annotated[str, "like 12 Oak Street, Harbor"]

OPEN: Sequence[Status] = ("placed", "accepted")
BEFORE_PICKUP: Sequence[Status] = (*OPEN, "preparing")
BEFORE_DELIVERY: Sequence[Status] = (*BEFORE_PICKUP, "picked up")


class Done(Record):
    """What a change has led to."""

    status: str
    order_id: str = ""
    charge: Money | None = None
    refund: Money | None = None


class DoordashTools(Desk):
    """The desk's tools."""

    def place_order(
        self, restaurant: str, items: list[Choice], payment: str, tip: Amount = Decimal("0.00"), promotion: str = ""
    ) -> Done:
        """Order from a restaurant to the customer's address. The payment is one of the customer's own, or credit."""
        customer, place = self._account(), self._menu(restaurant)
        if place.area != customer.area:
            raise ToolError(f"{restaurant} delivers in {place.area} only, and the customer lives in {customer.area}")
        pricing.check_open(restaurant, place)
        lines = self._lines(restaurant, place, items)
        food = sum((line.price for line in lines), Decimal("0.00"))
        pricing.check_minimum(restaurant, place, food)
        self._state.ordered += 1
        order = Order(
            id=f"D{9000 + self._state.ordered}",
            restaurant=restaurant,
            status="placed",
            placed=stamp(NOW),
            promised=pricing.promised(),
            address=customer.address,
            payment=self._own_payment(payment),
            items=lines,
            delivery_fee=Decimal("0.00") if customer.member else place.delivery_fee,
            tip=tip,
        )
        order = self._discounted(order, promotion) if promotion else order
        self._move(payment, -order.total)
        self._save(order)
        customer = self._customer()
        self._save_customer(customer.replace(orders=(*customer.orders, order.id)))
        return Done(status="placed", order_id=order.id, charge=order.total)

    def cancel_order(self, order_id: str) -> Done:
        """Cancel an order. It is free while the order is placed, and costs a fee once it is accepted."""
        order = self._in_status(order_id, OPEN)
        fee = None if order.status == "placed" else min(pricing.CANCELLATION_FEE, order.total)
        self._save(order.replace(status="cancelled", cancellation_fee=fee))
        return self._paid_back("cancelled", order, order.total - (fee or 0))

    def change_items(self, order_id: str, remove: tuple[str, ...] = (), add: tuple[Choice, ...] = ()) -> Done:
        """Remove dishes from an order, or add dishes of its restaurant, before it is prepared."""
        order = self._in_status(order_id, OPEN)
        place = self._menu(order.restaurant)
        gone = self._named(order, remove) if remove else ()
        kept = tuple(line for line in order.items if line not in gone)
        items = (*kept, *self._lines(order.restaurant, place, add, kept)) if add else kept
        if not (remove or add) or not items:
            raise ToolError("name dishes to remove or to add; to remove all of them, cancel the order")
        changed = order.replace(items=tuple(sorted(items, key=lambda line: line.name)))
        pricing.check_minimum(order.restaurant, place, changed.food)
        if order.promotion:
            self._check_promotion(changed, order.promotion)
        self._save(changed)
        return self._settled("items changed", changed, changed.total - order.total)

    def change_address(self, order_id: str, address: Address) -> Done:
        """Send an order to another address in its area, before it is picked up."""
        order = self._in_status(order_id, BEFORE_PICKUP)
        area = self._restaurant(order.restaurant).area
        self._save(order.replace(address=pricing.address_in(area, address)))
        return Done(status="address changed")

    def change_dropoff(self, order_id: str, dropoff: Dropoff) -> Done:
        """Change how an order is handed over, before it is delivered."""
        order = self._in_status(order_id, BEFORE_DELIVERY)
        self._save(order.replace(dropoff=dropoff))
        return Done(status="dropoff changed")

    def change_tip(self, order_id: str, tip: Amount) -> Done:
        """Raise the tip of an order, or lower it until an hour after the delivery."""
        order = self._in_status(order_id, (*BEFORE_DELIVERY, "delivered"))
        if tip == order.tip:
            raise ToolError(f"the tip is {tip} already")
        if tip < order.tip and not pricing.tip_can_be_lowered(order):
            raise ToolError(f"order {order_id} was delivered at {order.delivered}; its tip can only be raised")
        changed = order.replace(tip=tip)
        self._save(changed)
        return self._settled("tip changed", changed, tip - order.tip)

    def apply_promotion(self, order_id: str, code: str) -> Done:
        """Take a promotion off an order before it is prepared. Promotions do not stack."""
        order = self._in_status(order_id, OPEN)
        if order.promotion:
            raise ToolError(f"order {order_id} has the promotion {order.promotion}, and promotions do not stack")
        changed = self._discounted(order, code)
        self._save(changed)
        return self._settled("promotion applied", changed, changed.total - order.total)

    def refund_items(self, order_id: str, items: list[str], to: Target) -> Done:
        """Refund missing or wrong dishes of a delivered order, to its payment or as credit."""
        order = self._claimed(order_id)
        lines = self._unclaimed(order, items)
        amount = pricing.refund_of(order, lines)
        self._save(order.replace(refunded=order.refunded | {line.name: to for line in lines}))
        self._move(order.payment if to == "payment" else "credit", amount)
        return Done(status=f"refunded to {to}", refund=amount)

    def redeliver_items(self, order_id: str, items: list[str]) -> Done:
        """Send missing or wrong dishes of a delivered order again, free of charge."""
        order = self._claimed(order_id)
        place = self._menu(order.restaurant)
        pricing.check_open(order.restaurant, place)
        lines = self._unclaimed(order, items)
        for line in lines:
            pricing.line_of(order.restaurant, place, Choice(item=line.name))
        names = tuple(sorted((*order.redelivered, *(line.name for line in lines))))
        self._save(order.replace(redelivered=names))
        return Done(status="on its way again")

    def credit_late_delivery(self, order_id: str, amount: Amount) -> Done:
        """Credit a late delivery with what the policy gives for its minutes late."""
        order = self._claimed(order_id)
        if order.late_credit is not None:
            raise ToolError(f"order {order_id} has its late credit of {order.late_credit} already")
        due = pricing.late_credit(order)
        if not due:
            late = f"promised for {order.promised} and delivered at {order.delivered}"
            raise ToolError(f"order {order_id} was {late}; that is not late enough for a credit")
        if amount not in (steps := [step for _, step in pricing.LATE_CREDITS]):
            raise ToolError(f"a late credit is never {amount}; it is one of {', '.join(map(str, reversed(steps)))}")
        self._save(order.replace(late_credit=amount))
        self._move("credit", amount)
        return Done(status="credited", refund=amount)

    def transfer_to_human(self, summary: str) -> Done:
        """Hand over to a human agent, for what no tool can do. This is your last call."""
        self._customer()
        self._state.transferred = True
        return Done(status="transferred")

    def _lines(
        self, name: str, place: Restaurant, choices: Iterable[Choice], kept: Sequence[Line] = ()
    ) -> tuple[Line, ...]:
        """Choices as lines, in the order of their names."""
        lines = sorted((pricing.line_of(name, place, choice) for choice in choices), key=lambda line: line.name)
        names = [line.name for line in (*kept, *lines)]
        if not lines or len(set(names)) != len(names):
            raise ToolError("name each dish once, and at least one")
        age = self._customer().age
        if age != "of age" and any(place.menu[line.name].alcohol for line in lines):
            raise ToolError(f"alcohol is for customers of age only, and the age of this one is {age}")
        return tuple(lines)

    def _named(self, order: Order, items: Sequence[str]) -> tuple[Line, ...]:
        """Lines of an order by the names of their dishes."""
        if not items or len(set(items)) != len(items):
            raise ToolError("name each dish once, and at least one")
        names = [line.name for line in order.items]
        for item in items:
            if item not in names:
                raise ToolError(f"order {order.id} has no {item!r}; it has {', '.join(names)}")
        return tuple(line for line in order.items if line.name in items)

    def _claimed(self, order_id: str) -> Order:
        """An order of which something can be claimed, and the claim noted in the customer's account."""
        order, customer = self._in_status(order_id, ("delivered",)), self._account()
        if not pricing.claimable(order):
            raise ToolError(
                f"order {order_id} was delivered at {order.delivered}, over {pricing.CLAIM_HOURS} hours ago"
            )
        if (count := pricing.recent(customer.refunds)) >= pricing.REFUNDS:
            raise ToolError(f"{count} refunds in {pricing.REFUND_DAYS} days: a human decides about more")
        self._save_customer(customer.replace(refunds=(*customer.refunds, stamp(NOW)[:10])))
        return order

    def _unclaimed(self, order: Order, items: Sequence[str]) -> tuple[Line, ...]:
        lines = self._named(order, items)
        for line in lines:
            if line.name in order.refunded or line.name in order.redelivered:
                raise ToolError(f"the {line.name} has been refunded or redelivered already")
        return lines

    def _discounted(self, order: Order, code: str) -> Order:
        self._check_promotion(order, code)
        return order.replace(promotion=code.strip().upper(), discount=self._promotion(code).off)

    def _check_promotion(self, order: Order, code: str) -> None:
        pricing.check_promotion(code, self._promotion(code), order.food, self._customer().member)

    def _own_payment(self, payment: str) -> str:
        own = (*self._customer().payments, "credit")
        if payment not in own:
            raise ToolError(f"the customer has no payment {payment!r}; they have {', '.join(own)}")
        return payment

    def _settled(self, status: str, order: Order, difference: Decimal) -> Done:
        """Charge a difference to the order's payment, or pay it back."""
        if difference <= 0:
            return self._paid_back(status, order, -difference)
        self._move(order.payment, -difference)
        return Done(status=status, charge=difference)

    def _paid_back(self, status: str, order: Order, amount: Decimal) -> Done:
        self._move(order.payment, amount)
        return Done(status=status, refund=amount or None)

    def _move(self, payment: str, amount: Decimal) -> None:
        """Move the customer's credit; what cards and PayPal move is not ours to keep."""
        customer = self._customer()
        if payment != "credit":
            return
        if customer.credit + amount < 0:
            raise ToolError(f"the credit is {customer.credit}, less than {-amount}")
        self._save_customer(customer.replace(credit=customer.credit + amount))
