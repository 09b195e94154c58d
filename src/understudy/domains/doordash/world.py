"""The world: 400 customers, 800 orders and 40 restaurants, the same for the same seed.

Customers, and with them their orders and trips, belong to one split each; what the service offers is shared by all.
"""

import functools
import math
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from understudy.domains.doordash.dishes import ALCOHOL, AREAS, DISHES, DRINKS, NAMES, OPTIONS, Recipe
from understudy.domains.doordash.state import (
    NOW,
    Courier,
    Cuisine,
    Customer,
    Dish,
    DoordashState,
    Line,
    Order,
    Promotion,
    Restaurant,
    Status,
    Trip,
    ago,
    cost_of,
    stamp,
)
from understudy.domains.people import FIRST, STREETS, draw_email, draw_names, of_split
from understudy.tasks import Split

CUSTOMERS, ORDERS, COURIERS = 400, 800, 40
STATUSES: Mapping[Status, int] = {
    "placed": 1,
    "accepted": 1,
    "preparing": 1,
    "picked up": 1,
    "delivered": 4,
    "cancelled": 1,
}
"""How frequent each is among orders."""
PROMOTIONS: Mapping[str, tuple[int, int, str, bool]] = {
    "LUNCH2": (2, 10, "2025-06-30", False),
    "SAVE3": (3, 15, "2025-05-31", False),
    "TASTY4": (4, 20, "2025-06-30", False),
    "FEAST6": (6, 30, "2025-05-31", False),
    "PLUS5": (5, 20, "2025-06-30", True),
    "SPRING5": (5, 20, "2025-04-30", False),
    "EASTER4": (4, 15, "2025-04-21", False),
}
"""What each code takes off, from which sum on, until when, and whether for members only."""


@functools.cache
def world(seed: int = 0) -> DoordashState:
    """The state before any task. It is shared: fork it."""
    rng = random.Random(f"doordash/{seed}")
    restaurants = dict(_restaurants(rng))
    couriers = {f"c{10 + i}": _courier(rng, name) for i, name in enumerate(rng.sample(FIRST, COURIERS))}
    customers, orders = dict[str, Customer](), dict[str, Order]()
    ids = iter(rng.sample(range(1000, 9000), ORDERS))
    phones = iter(rng.sample(range(1000, 10000), CUSTOMERS))
    for name, count in zip(draw_names(rng, CUSTOMERS), _order_counts(rng), strict=True):
        customer = _customer(rng, name, f"555-{next(phones)}", [f"D{next(ids)}" for _ in range(count)])
        customers[draw_email(rng, name)] = customer
        near = {key: place for key, place in restaurants.items() if place.area == customer.area}
        orders |= {order.id: order for order in _orders(rng, customer, near)}
    underway = {key: draw_trip(rng, order.courier) for key, order in orders.items() if order.status == "picked up"}
    promotions = {code: _promotion(*terms) for code, terms in PROMOTIONS.items()}
    return DoordashState(
        customers=customers,
        orders=orders,
        trips=underway,
        restaurants=restaurants,
        promotions=promotions,
        couriers=couriers,
    )


@functools.cache
def emails(split: Split) -> tuple[str, ...]:
    """The customers of a split."""
    return of_split(tuple(world().customers), split)


def draw_address(rng: random.Random, area: str) -> str:
    """Any address of an area, like 12 Oak Street, Harbor."""
    return f"{rng.randint(2, 99)} {rng.choice(STREETS)} Street, {area}"


def draw_times(rng: random.Random, status: Status) -> dict[str, Any]:
    """Fields of an order in this status, as JSON: when it was placed, promised and delivered, and by which courier."""
    courier = f"c{10 + rng.randrange(COURIERS)}" if status in ("picked up", "delivered") else ""
    if status == "delivered":
        return {**delivered(draw_past(rng, 0, 40), rng.randint(-10, 70)), "courier": courier}
    since = {"placed": (1, 5), "accepted": (5, 10), "preparing": (10, 25), "picked up": (25, 45)}
    start = rng.randint(*since[status]) if status in since else draw_past(rng, 0, 40)
    promised = stamp(NOW - timedelta(minutes=start - rng.randrange(30, 60, 5)))
    times = {"placed": ago(minutes=start), "promised": promised, "delivered": ""}
    return {"status": status, **times, "courier": courier}


def draw_past(rng: random.Random, first: int, last: int) -> int:
    """Minutes since a time between noon and this evening, from `first` to `last` days ago."""
    return rng.randint(first, last) * 24 * 60 + rng.randint(65, 420)


def delivered(since: int, late: int) -> dict[str, Any]:
    """Fields of an order that came so many minutes ago, so many minutes late (negative: early)."""
    arrived, promised = ago(minutes=since), ago(minutes=since + late)
    return {"status": "delivered", "placed": ago(minutes=since + late + 45), "promised": promised, "delivered": arrived}


def draw_trip(rng: random.Random, courier: str) -> Trip:
    """The way of an order that was picked up."""
    return Trip(courier=courier, minutes=rng.randint(3, 25))


def _restaurants(rng: random.Random) -> Iterator[tuple[str, Restaurant]]:
    """Two of each cuisine in each area."""
    for cuisine, names in NAMES.items():
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


def _dish(rng: random.Random, recipe: Recipe) -> Dish:
    price = Decimal(recipe.price + rng.randint(-1, 2)) + Decimal(rng.choice(("0.00", "0.20", "0.50", "0.90")))
    options = {name: OPTIONS[name] for name in recipe.options}
    return Dish(price=price, options=options, allergens=recipe.allergens, vegan=recipe.vegan, alcohol=recipe.alcohol)


def _courier(rng: random.Random, name: str) -> Courier:
    return Courier(name=name, vehicle=rng.choice(("bicycle", "scooter", "car")))


def _promotion(off: int, minimum: int, expires: str, members_only: bool) -> Promotion:
    return Promotion(off=Decimal(off), minimum=Decimal(minimum), expires=expires, members_only=members_only)


def _order_counts(rng: random.Random) -> list[int]:
    counts = [1] * (CUSTOMERS // 4) + [2] * (CUSTOMERS // 2) + [3] * (CUSTOMERS // 4)
    rng.shuffle(counts)
    return counts


def _customer(rng: random.Random, name: str, phone: str, orders: Sequence[str]) -> Customer:
    kinds = rng.choice((("card",), ("card", "paypal"), ("card", "paypal")))
    numbers = rng.sample(range(10, 100), len(kinds))
    days = sorted(ago(days=rng.randint(5, 90))[:10] for _ in range(rng.choice((0, 0, 1, 2))))
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
    """The orders of one customer: often two of one restaurant, but no dish twice, so that any dish tells its order."""
    names = rng.sample(list(near), 2)
    taken: set[str] = set()
    for key in customer.orders:
        name = rng.choice(names)
        lines = _lines(rng, near[name], taken)
        taken |= {line.name for line in lines}
        yield _order(rng, customer, key, name, near[name], lines)


def _order(
    rng: random.Random, customer: Customer, key: str, name: str, place: Restaurant, lines: Sequence[Line]
) -> Order:
    """An order that the service could have taken, in some status."""
    (status,) = rng.choices(list(STATUSES), list(STATUSES.values()))
    saves = rng.random() < 0.3 and sum(line.price for line in lines) >= PROMOTIONS["TASTY4"][1]
    return Order.model_validate(
        {
            "id": key,
            **({"promotion": "TASTY4", "discount": PROMOTIONS["TASTY4"][0]} if saves else {}),
            "restaurant": name,
            **draw_times(rng, status),
            "address": customer.address,
            "payment": rng.choice(customer.payments),
            "items": lines,
            "delivery_fee": "0.00" if customer.member else place.delivery_fee,
            "tip": rng.choice(("0.00", "1.00", "2.00", "3.00")),
            "dropoff": rng.choice(("hand it to me", "hand it to me", "leave at the door")),
        }
    )


def _lines(rng: random.Random, place: Restaurant, taken: Container[str]) -> list[Line]:
    """Some dishes that are not taken, enough of them to reach the restaurant's minimum."""
    menu = {name: dish for name, dish in place.menu.items() if name not in taken and not dish.alcohol}
    count = rng.choice((1, 2, 2, 3)) if len(menu) > 3 else 1
    main = rng.choice([name for name, dish in menu.items() if dish.allergens] or list(menu))
    others = rng.sample([name for name in menu if name != main], count - 1)
    lines = [_line(rng, name, menu[name]) for name in (main, *others)]
    short = place.minimum - sum(line.price for line in lines)
    first, each = lines[0], lines[0].price / lines[0].quantity
    more = max(0, math.ceil(short / each))
    return [first.replace(quantity=first.quantity + more, price=first.price + more * each), *lines[1:]]


def _line(rng: random.Random, name: str, dish: Dish) -> Line:
    options = (rng.choice(list(dish.options)),) if dish.options and rng.random() < 0.3 else ()
    quantity = rng.choice((1, 1, 1, 2))
    return Line(name=name, options=options, quantity=quantity, price=quantity * cost_of(dish, options))
