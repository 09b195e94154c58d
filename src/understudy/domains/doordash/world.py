"""The world: 400 customers, 800 orders and 40 restaurants. A seed always gives the same world.

Each customer, with their orders and trips, belongs to one split. All splits share the restaurants, promotions and
couriers.
"""

import functools
import math
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from understudy.domains.authoring.people import FIRST_NAMES, STREETS, draw_counts, draw_email, draw_names
from understudy.domains.doordash.catalog import (
    ALCOHOL,
    AREAS,
    DISHES,
    DRINKS,
    OPTION_PRICES,
    RESTAURANT_NAMES,
    DishTemplate,
)
from understudy.domains.doordash.state import (
    NOW,
    Courier,
    Cuisine,
    Customer,
    Delivery,
    Dish,
    DoordashState,
    Order,
    OrderLine,
    Promotion,
    Restaurant,
    Status,
    dish_price,
    format_time,
    format_time_ago,
)

CUSTOMERS, ORDERS, COURIERS = 400, 800, 40
STATUSES: Mapping[Status, int] = {
    "placed": 1,
    "accepted": 1,
    "preparing": 1,
    "picked up": 1,
    "delivered": 4,
    "cancelled": 1,
}
"""The frequency of each status among the orders."""
PROMOTIONS: Mapping[str, tuple[int, int, str, bool]] = {
    "LUNCH2": (2, 10, "2025-06-30", False),
    "SAVE3": (3, 15, "2025-05-31", False),
    "TASTY4": (4, 20, "2025-06-30", False),
    "FEAST6": (6, 30, "2025-05-31", False),
    "PLUS5": (5, 20, "2025-06-30", True),
    "SPRING5": (5, 20, "2025-04-30", False),
    "EASTER4": (4, 15, "2025-04-21", False),
}
"""Discount, minimum total, last day, and whether it is for members only, by code."""


@functools.cache
def build_world(seed: int = 0) -> DoordashState:
    """Return the state before any task. It is shared, so fork it before changing it."""
    rng = random.Random(f"doordash/{seed}")
    restaurants = dict(_restaurants(rng))
    couriers = {f"c{10 + i}": _courier(rng, name) for i, name in enumerate(rng.sample(FIRST_NAMES, COURIERS))}
    customers, orders = dict[str, Customer](), dict[str, Order]()
    ids = iter(rng.sample(range(1000, 9000), ORDERS))
    phones = iter(rng.sample(range(1000, 10000), CUSTOMERS))
    names, counts = draw_names(rng, CUSTOMERS), draw_counts(rng, CUSTOMERS // 4, CUSTOMERS // 2, CUSTOMERS // 4)
    for name, count in zip(names, counts, strict=True):
        customer = _customer(rng, name, f"555-{next(phones)}", [f"D{next(ids)}" for _ in range(count)])
        customers[draw_email(rng, name)] = customer
        near = {key: restaurant for key, restaurant in restaurants.items() if restaurant.area == customer.area}
        orders |= {order.id: order for order in _orders(rng, customer, near)}
    underway = {key: draw_delivery(rng, order.courier) for key, order in orders.items() if order.status == "picked up"}
    promotions = {code: _promotion(*terms) for code, terms in PROMOTIONS.items()}
    return DoordashState(
        customers=customers,
        orders=orders,
        trips=underway,
        restaurants=restaurants,
        promotions=promotions,
        couriers=couriers,
    )


def draw_address(rng: random.Random, area: str) -> str:
    """Return a random address of an area, like 12 Oak Street, Harbor."""
    return f"{rng.randint(2, 99)} {rng.choice(STREETS)} Street, {area}"


def draw_status_fields(rng: random.Random, status: Status) -> dict[str, Any]:
    """Return fields of an order with this status as JSON: status, times and courier."""
    courier = f"c{10 + rng.randrange(COURIERS)}" if status in ("picked up", "delivered") else ""
    if status == "delivered":
        return {**delivery_fields(draw_minutes_ago(rng, 0, 40), rng.randint(-10, 70)), "courier": courier}
    since = {"placed": (1, 5), "accepted": (5, 10), "preparing": (10, 25), "picked up": (25, 45)}
    start = rng.randint(*since[status]) if status in since else draw_minutes_ago(rng, 0, 40)
    promised = format_time(NOW - timedelta(minutes=start - rng.randrange(30, 60, 5)))
    times = {"placed": format_time_ago(minutes=start), "promised": promised, "delivered": ""}
    return {"status": status, **times, "courier": courier}


def draw_minutes_ago(rng: random.Random, first: int, last: int) -> int:
    """Return the minutes since a time between noon and this evening, `first` to `last` days ago."""
    return rng.randint(first, last) * 24 * 60 + rng.randint(65, 420)


def delivery_fields(since: int, late: int) -> dict[str, Any]:
    """Return fields of an order delivered `since` minutes ago, `late` minutes after the promised time.

    `late` is negative for an early delivery.
    """
    arrived, promised = format_time_ago(minutes=since), format_time_ago(minutes=since + late)
    return {
        "status": "delivered",
        "placed": format_time_ago(minutes=since + late + 45),
        "promised": promised,
        "delivered": arrived,
    }


def draw_delivery(rng: random.Random, courier: str) -> Delivery:
    """Return the delivery of an order that was picked up."""
    return Delivery(courier=courier, minutes=rng.randint(3, 25))


def _restaurants(rng: random.Random) -> Iterator[tuple[str, Restaurant]]:
    """Yield two restaurants of each cuisine in each area."""
    for cuisine, names in RESTAURANT_NAMES.items():
        for name, area in zip(names, AREAS * 2, strict=True):
            yield name, _restaurant(rng, cuisine, area)


def _restaurant(rng: random.Random, cuisine: Cuisine, area: str) -> Restaurant:
    dishes = rng.sample(DISHES[cuisine], 5)
    drinks = [rng.choice(DRINKS), rng.choice(ALCOHOL)]
    return Restaurant(
        cuisine=cuisine,
        area=area,
        opens=rng.choice(("10:00", "11:00", "11:30", "12:00")),
        closes=rng.choice(("22:00", "22:30", "23:00", "23:30")),
        delivery_fee=Decimal(rng.choice(("1.90", "2.50", "2.90", "3.40", "3.90"))),
        minimum=Decimal(rng.choice(("8.00", "10.00", "12.00"))),
        menu={recipe.name: _dish(rng, recipe) for recipe in (*dishes, *drinks)},
    )


def _dish(rng: random.Random, recipe: DishTemplate) -> Dish:
    price = Decimal(recipe.price + rng.randint(-1, 2)) + Decimal(rng.choice(("0.00", "0.20", "0.50", "0.90")))
    options = {name: OPTION_PRICES[name] for name in recipe.options}
    return Dish(price=price, options=options, allergens=recipe.allergens, vegan=recipe.vegan, alcohol=recipe.alcohol)


def _courier(rng: random.Random, name: str) -> Courier:
    return Courier(name=name, vehicle=rng.choice(("bicycle", "scooter", "car")))


def _promotion(off: int, minimum: int, expires: str, members_only: bool) -> Promotion:
    return Promotion(off=Decimal(off), minimum=Decimal(minimum), expires=expires, members_only=members_only)


def _customer(rng: random.Random, name: str, phone: str, orders: Sequence[str]) -> Customer:
    kinds = rng.choice((("card",), ("card", "paypal"), ("card", "paypal")))
    numbers = rng.sample(range(10, 100), len(kinds))
    days = sorted(format_time_ago(days=rng.randint(5, 90))[:10] for _ in range(rng.choice((0, 0, 1, 2))))
    return Customer(
        name=name,
        phone=phone,
        address=draw_address(rng, rng.choice(AREAS)),
        age=rng.choice(("of age", "of age", "of age", "not on file", "under age")),
        member=rng.random() < 0.4,
        payments=tuple(f"{kind}_{number}" for kind, number in zip(kinds, numbers, strict=True)),
        credit=Decimal(rng.choice(("0.00", "4.50", "10.00", "25.00"))),
        orders=tuple(orders),
        refunds=tuple(days),
    )


def _orders(rng: random.Random, customer: Customer, near: Mapping[str, Restaurant]) -> Iterator[Order]:
    """Yield the orders of one customer. They often share a restaurant, but no dish, so a dish identifies an order."""
    names = rng.sample(list(near), 2)
    taken: set[str] = set()
    for key in customer.orders:
        name = rng.choice(names)
        lines = _lines(rng, near[name], taken)
        taken |= {line.name for line in lines}
        yield _order(rng, customer, key, name, near[name], lines)


def _order(
    rng: random.Random, customer: Customer, key: str, name: str, restaurant: Restaurant, lines: Sequence[OrderLine]
) -> Order:
    """Return an order within the service's rules, with a random status."""
    (status,) = rng.choices(list(STATUSES), list(STATUSES.values()))
    saves = rng.random() < 0.3 and sum(line.price for line in lines) >= PROMOTIONS["TASTY4"][1]
    return Order.model_validate(
        {
            "id": key,
            **({"promotion": "TASTY4", "discount": PROMOTIONS["TASTY4"][0]} if saves else {}),
            "restaurant": name,
            **draw_status_fields(rng, status),
            "address": customer.address,
            "payment": rng.choice(customer.payments),
            "items": lines,
            "delivery_fee": "0.00" if customer.member else restaurant.delivery_fee,
            "tip": rng.choice(("0.00", "1.00", "2.00", "3.00")),
            "dropoff": rng.choice(("hand it to me", "hand it to me", "leave at the door")),
        }
    )


def _lines(rng: random.Random, restaurant: Restaurant, taken: Container[str]) -> list[OrderLine]:
    """Return lines of dishes that are not in `taken`, with at least the restaurant's minimum total."""
    menu = {name: dish for name, dish in restaurant.menu.items() if name not in taken and not dish.alcohol}
    count = rng.choice((1, 2, 2, 3)) if len(menu) > 3 else 1
    main = rng.choice([name for name, dish in menu.items() if dish.allergens] or list(menu))
    others = rng.sample([name for name in menu if name != main], count - 1)
    lines = [_line(rng, name, menu[name]) for name in (main, *others)]
    short = restaurant.minimum - sum(line.price for line in lines)
    first, each = lines[0], lines[0].price / lines[0].quantity
    more = max(0, math.ceil(short / each))
    return [first.replace(quantity=first.quantity + more, price=first.price + more * each), *lines[1:]]


def _line(rng: random.Random, name: str, dish: Dish) -> OrderLine:
    options = (rng.choice(list(dish.options)),) if dish.options and rng.random() < 0.3 else ()
    quantity = rng.choice((1, 1, 1, 2))
    return OrderLine(name=name, options=options, quantity=quantity, price=quantity * dish_price(dish, options))
