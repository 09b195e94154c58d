"""The world: 500 users, 1,000 orders and 50 products. A seed always gives the same world.

Each user, with their orders, belongs to one split. All splits share the catalog.
"""

import functools
import itertools
import random
from collections.abc import Iterator, Mapping
from decimal import Decimal

from understudy.domains.authoring.payments import Payment
from understudy.domains.authoring.people import draw_address, draw_counts, draw_email, draw_names, split_words
from understudy.domains.retail.state import Line, Order, Product, RetailState, User, Variant

GOODS = split_words(
    "backpack desk_lamp water_bottle coffee_mug yoga_mat wall_clock jacket blanket picture_frame towel pillow rug vase",
    "basket tent umbrella suitcase speaker hat scarf shirt sweater raincoat bathrobe apron notebook tray bowl teapot",
    "kettle frying_pan cutting_board candle mirror bookshelf stool cushion curtain flower_pot watering_can kite puzzle",
    "toy_car teddy_bear lunch_box wallet tote_bag beach_ball sleeping_bag phone_case",
)
SIZES = ("small", "medium", "large")
COLORS = ("black", "white", "red", "blue", "green", "grey")

USERS, ORDERS = 500, 1000


@functools.cache
def build_world(seed: int = 0) -> RetailState:
    """Return the state before any task. It is shared, so fork it before changing it."""
    rng = random.Random(f"retail/{seed}")
    products = dict(_products(rng))
    orders: dict[str, Order] = {}
    users: dict[str, User] = {}
    goods = {name: _lines(name, product) for name, product in products.items()}
    ids = iter(rng.sample(range(1000, 10000), ORDERS))
    names, counts = draw_names(rng, USERS), draw_counts(rng, USERS // 4, USERS // 2, USERS // 4)
    for name, count in zip(names, counts, strict=True):
        address, payments = draw_address(rng), _payments(rng)
        own = [_order(rng, f"W{next(ids)}", address, list(payments)) for _ in range(count)]
        filled = _filled(rng, own, goods)
        users[draw_email(rng, name)] = User(
            name=name, address=address, payments=payments, orders=tuple(o.id for o in own)
        )
        orders |= {order.id: order for order in filled}
    return RetailState(users=users, orders=orders, products=products)


def _products(rng: random.Random) -> Iterator[tuple[str, Product]]:
    ids = iter(rng.sample(range(100, 1000), 4 * len(GOODS)))
    for name in GOODS:
        options = itertools.product(sorted(rng.sample(SIZES, 2)), sorted(rng.sample(COLORS, 2)))
        offers = zip(options, rng.sample(range(10, 90), 4), strict=True)
        variants = {f"i{next(ids)}": _variant(rng, " ".join(option), price) for option, price in offers}
        yield name, Product(variants=variants)


def _variant(rng: random.Random, option: str, price: int) -> Variant:
    cents = rng.choice(("00", "25", "50", "90"))
    return Variant(option=option, price=Decimal(f"{price}.{cents}"), available=rng.random() < 0.8)


def _payments(rng: random.Random) -> dict[str, Payment]:
    others = rng.choice((("gift",), ("paypal",), ("gift", "paypal")))
    numbers = rng.sample(range(10, 100), 1 + len(others))
    balance = {"gift": Payment(balance=Decimal(f"{rng.randint(5, 150)}.00"))}
    return {f"{kind}_{n}": balance.get(kind, Payment()) for kind, n in zip(("card", *others), numbers, strict=True)}


def _order(rng: random.Random, order_id: str, address: str, payments: list[str]) -> Order:
    status = rng.choice(("pending", "pending", "delivered", "delivered", "shipped", "cancelled"))
    return Order(id=order_id, status=status, address=address, payment=rng.choice(payments), items=())


def _lines(name: str, product: Product) -> list[Line]:
    return [Line(id=item, name=name, option=v.option, price=v.price) for item, v in product.variants.items()]


def _filled(rng: random.Random, orders: list[Order], goods: Mapping[str, list[Line]]) -> Iterator[Order]:
    """Yield the orders of one user with their items. No product occurs twice, so any item identifies its order."""
    names = iter(rng.sample(list(goods), 3 * len(orders)))
    for order in orders:
        count = rng.choice((1, 1, 2, 2, 3))
        yield order.replace(items=tuple(rng.choice(goods[next(names)]) for _ in range(count)))
