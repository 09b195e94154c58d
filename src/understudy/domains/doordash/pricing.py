"""Sums and dates of the policy, as pure functions. What the policy does not allow is a `ToolError` with the reason."""

import re
from collections.abc import Iterable
from decimal import Decimal

from understudy.domains.doordash.state import (
    NOW,
    Choice,
    Line,
    Order,
    Promotion,
    Restaurant,
    ago,
    area_of,
    cost_of,
    minutes_between,
    stamp,
)
from understudy.errors import ToolError

CANCELLATION_FEE = Decimal("5.00")
LATE_CREDITS = ((60, Decimal("10.00")), (30, Decimal("6.00")), (15, Decimal("3.00")))
"""From how many minutes on, and how much; the first that fits."""
CLAIM_HOURS = 48
"""How long after delivery something can be claimed."""
LOWER_TIP_MINUTES = 60
"""How long after delivery a tip can be lowered."""
PROMISED_MINUTES = 45
"""How long a delivery takes."""
REFUNDS, REFUND_DAYS = 3, 30
"""After so many refunds in so many days a human decides."""

_ADDRESS = re.compile(r"\d+ [A-Z][\w .'-]*, [A-Z][\w ]*")


def late_credit(order: Order) -> Decimal:
    """What a late delivery is credited; 0 if it was not late enough."""
    late = minutes_between(order.promised, order.delivered)
    return next((amount for least, amount in LATE_CREDITS if late >= least), Decimal("0.00"))


def claimable(order: Order) -> bool:
    """Whether something can still be claimed of a delivered order."""
    return order.delivered >= ago(hours=CLAIM_HOURS)


def recent(refunds: Iterable[str]) -> int:
    """How many of the days are within the last 30."""
    return sum(day >= ago(days=REFUND_DAYS)[:10] for day in refunds)


def refund_of(order: Order, lines: Iterable[Line]) -> Decimal:
    """What some dishes are refunded: their price, and no more than is left of what was paid for the food."""
    left = order.food - order.discount - sum(line.price for line in order.items if line.name in order.refunded)
    return min(left, sum((line.price for line in lines), Decimal("0.00")))


def line_of(name: str, place: Restaurant, choice: Choice) -> Line:
    """A choice from a menu as a line of an order."""
    dish = place.menu.get(choice.item)
    if dish is None:
        raise ToolError(f"{name} has no {choice.item!r}; it has {', '.join(place.menu)}")
    if dish.sold_out:
        raise ToolError(f"{choice.item} is sold out at {name}")
    for option in choice.options:
        if option not in dish.options:
            raise ToolError(f"{choice.item} has no option {option!r}; it has {', '.join(dish.options) or 'none'}")
    if len(set(choice.options)) != len(choice.options):
        raise ToolError(f"name each option of {choice.item} once")
    options, price = tuple(sorted(choice.options)), choice.quantity * cost_of(dish, choice.options)
    return Line(name=choice.item, options=options, quantity=choice.quantity, price=price)


def check_open(name: str, place: Restaurant) -> None:
    """Refuse a restaurant that takes no orders now."""
    if place.paused:
        raise ToolError(f"{name} has paused and takes no orders now")
    if not is_open(place):
        raise ToolError(f"{name} is open from {place.opens} to {place.closes}, and it is {stamp(NOW)[11:]} now")


def is_open(place: Restaurant) -> bool:
    """Whether now is within the hours of a restaurant."""
    return place.opens <= stamp(NOW)[11:] < place.closes


def check_minimum(name: str, place: Restaurant, food: Decimal) -> None:
    """Refuse items that come to less than the restaurant's minimum."""
    if food < place.minimum:
        raise ToolError(f"the items come to {food}, and the minimum of {name} is {place.minimum}")


def check_promotion(code: str, promotion: Promotion, food: Decimal, member: bool) -> None:
    """Refuse a code whose conditions are not met."""
    if promotion.expires < stamp(NOW)[:10]:
        raise ToolError(f"{code} has expired on {promotion.expires}")
    if promotion.members_only and not member:
        raise ToolError(f"{code} is for members only")
    if food < promotion.minimum:
        raise ToolError(f"{code} needs items for {promotion.minimum}, and these come to {food}")


def address_in(area: str, text: str) -> str:
    """The address without stray blanks, if it is one of the area."""
    address = " ".join(text.split())
    if not _ADDRESS.fullmatch(address):
        raise ToolError(f"{text!r} is not an address like '12 Oak Street, Harbor'")
    if area_of(address) != area:
        raise ToolError(f"{area_of(address)} is outside the area of the restaurant, {area}")
    return address


def promised() -> str:
    """When an order that is placed now will be there."""
    return ago(minutes=-PROMISED_MINUTES)


def tip_can_be_lowered(order: Order) -> bool:
    """Whether the hour after delivery is not over."""
    return not order.delivered or order.delivered >= ago(minutes=LOWER_TIP_MINUTES)
