"""Amounts and deadlines of the policy, as pure functions. They raise `ToolError` for what the policy forbids."""

import re
from collections.abc import Iterable
from decimal import Decimal

from understudy.core.errors import ToolError
from understudy.domains.doordash.state import (
    NOW,
    Choice,
    Order,
    OrderLine,
    Promotion,
    Restaurant,
    dish_price,
    format_time,
    format_time_ago,
    minutes_between,
    parse_area,
)

CANCELLATION_FEE = Decimal("5.00")
LATE_CREDITS = ((60, Decimal("10.00")), (30, Decimal("6.00")), (15, Decimal("3.00")))
"""Minimum minutes late and the credit; the first match counts."""
CLAIM_HOURS = 48
"""Hours after delivery in which claims are possible."""
LOWER_TIP_MINUTES = 60
"""Minutes after delivery in which a tip can be lowered."""
PROMISED_MINUTES = 45
"""Minutes until the promised delivery."""
MAX_REFUNDS, REFUND_DAYS = 3, 30
"""A human decides after this many refunds in this many days."""

_ADDRESS = re.compile(r"\d+ [A-Z][\w .'-]*, [A-Z][\w ]*")


def late_credit(order: Order) -> Decimal:
    """Return the credit for a late delivery; 0 if it was not late enough."""
    late = minutes_between(order.promised, order.delivered)
    return next((amount for least, amount in LATE_CREDITS if late >= least), Decimal("0.00"))


def can_claim(order: Order) -> bool:
    """Return whether claims are still possible for a delivered order."""
    return order.delivered >= format_time_ago(hours=CLAIM_HOURS)


def count_recent_refunds(refunds: Iterable[str]) -> int:
    """Return how many of the dates are within the last 30 days."""
    return sum(day >= format_time_ago(days=REFUND_DAYS)[:10] for day in refunds)


def refund_amount(order: Order, lines: Iterable[OrderLine]) -> Decimal:
    """Return the refund for dishes: their price, up to what is left of the price of the food. Raise if none is."""
    left = order.food - order.discount - sum(line.price for line in order.items if line.name in order.refunded)
    if left <= 0:
        raise ToolError(f"all that was paid for the food of order {order.id} has been refunded")
    return min(left, sum((line.price for line in lines), Decimal("0.00")))


def make_order_line(name: str, restaurant: Restaurant, choice: Choice) -> OrderLine:
    """Return a menu choice as a line of an order."""
    dish = restaurant.menu.get(choice.item)
    if dish is None:
        raise ToolError(f"{name} has no {choice.item!r}; it has {', '.join(restaurant.menu)}")
    if dish.sold_out:
        raise ToolError(f"{choice.item} is sold out at {name}")
    for option in choice.options:
        if option not in dish.options:
            raise ToolError(f"{choice.item} has no option {option!r}; it has {', '.join(dish.options) or 'none'}")
    if len(set(choice.options)) != len(choice.options):
        raise ToolError(f"give each option of {choice.item} only once")
    options, price = tuple(sorted(choice.options)), choice.quantity * dish_price(dish, choice.options)
    return OrderLine(name=choice.item, options=options, quantity=choice.quantity, price=price)


def validate_open(name: str, restaurant: Restaurant) -> None:
    """Raise if the restaurant takes no orders now."""
    if restaurant.paused:
        raise ToolError(f"{name} has paused orders for now")
    if not is_open(restaurant):
        raise ToolError(
            f"{name} is open from {restaurant.opens} to {restaurant.closes}, and it is now {format_time(NOW)[11:]}"
        )


def is_open(restaurant: Restaurant) -> bool:
    """Return whether the restaurant is within its hours."""
    return restaurant.opens <= format_time(NOW)[11:] < restaurant.closes


def validate_minimum(name: str, restaurant: Restaurant, food: Decimal) -> None:
    """Raise if the items are below the restaurant's minimum."""
    if food < restaurant.minimum:
        raise ToolError(f"the items cost {food}, and the minimum order at {name} is {restaurant.minimum}")


def validate_promotion(code: str, promotion: Promotion, food: Decimal, member: bool) -> None:
    """Raise if the conditions of a code are not met."""
    if promotion.expires < format_time(NOW)[:10]:
        raise ToolError(f"{code} expired on {promotion.expires}")
    if promotion.members_only and not member:
        raise ToolError(f"{code} is for members only")
    if food < promotion.minimum:
        raise ToolError(f"{code} requires items for at least {promotion.minimum}, and these cost {food}")


def validate_address(area: str, text: str) -> str:
    """Return the address with single spaces. Raise if it is outside the area."""
    address = " ".join(text.split())
    if not _ADDRESS.fullmatch(address):
        raise ToolError(f"{text!r} is not an address like '12 Oak Street, Harbor'")
    if parse_area(address) != area:
        raise ToolError(f"{parse_area(address)} is outside the area of the restaurant, {area}")
    return address


def promised_time() -> str:
    """Return the promised time of an order placed now."""
    return format_time_ago(minutes=-PROMISED_MINUTES)


def tip_can_be_lowered(order: Order) -> bool:
    """Return whether the order is undelivered or within an hour after delivery."""
    return not order.delivered or order.delivered >= format_time_ago(minutes=LOWER_TIP_MINUTES)
