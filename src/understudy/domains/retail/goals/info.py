"""Questions about orders and products: nothing changes."""

import functools

from understudy.domains.authoring.payments import payment_kind
from understudy.domains.authoring.request import Draw, answer, status_variants
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.retail.state import Order, RetailState, Status
from understudy.domains.retail.task_builder import RetailTaskBuilder
from understudy.envs.gold import gold_call

_UNSOLD = ("piano", "canoe", "bicycle", "sofa", "ladder", "microscope", "trampoline", "chainsaw")


def ask_price(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask what an item cost, or unless `easy` what the whole order cost."""
    order = draw.entity
    if draw.easy or len(order.items) == 1:
        mention = b.order_mention(draw, itemized=True)
        item, cost = mention.item.name, f"{mention.item.price}"
        goal = GoalSpec(b.phrase("price", item=item), mention, kind="number")
        return answer(goal, f"The {item} was {cost}.", cost)
    total, expression = f"{order.total:.2f}", " + ".join(f"{line.price}" for line in order.items)
    mention = b.order_mention(draw)
    goal = GoalSpec(b.phrase("total"), mention, kind="number")
    reads = [gold_call("calculate", expression=expression)]
    return answer(goal, f"The total of order {order.id} was {total}.", total, reads=reads)


def ask_status(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask for the status of an order, or unless `easy` for its address or payment."""
    mention, order = b.order_mention(draw), draw.entity
    asked = "status" if draw.easy else b.rng.choice(("status", "address", "payment"))
    if asked == "address":
        goal = GoalSpec(b.phrase("where_to"), mention, kind="text")
        return answer(goal, f"Order {order.id} will be delivered to {order.address}.", order.address)
    if asked == "payment":
        goal, kind = GoalSpec(b.phrase("paid_with"), mention, kind="text"), payment_kind(order.payment)
        text = f"Order {order.id} was paid with your {kind} {order.payment}."
        return answer(goal, text, f"{order.payment}|{kind}")
    status: Status = b.rng.choice(("pending", "shipped", "delivered", "cancelled"))
    b.set_status(order, status)
    goal = GoalSpec(b.phrase("status"), mention, kind="text")
    return answer(goal, f"Order {order.id} is {status}.", status_variants(status))


def ask_stock_price(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask for the price of a variant, or unless `easy` which of three products is sold, and its lowest price."""
    item, cheapest = b.rng.choice(_cheapest(b.world))
    product = gold_call("get_product", name=item)
    if draw.easy:
        offer = b.rng.choice(list(b.world.products[item].variants.values()))
        goal = GoalSpec(b.phrase("stock", item=item, option=offer.option), kind="number")
        return answer(goal, f"The {offer.option} {item} costs {offer.price}.", f"{offer.price}", reads=[product])
    things = ", ".join(b.rng.sample([item, *b.rng.sample(_UNSOLD, 2)], 3))
    goal, reads = GoalSpec(b.phrase("sold", things=things), kind="number"), [gold_call("list_products"), product]
    return answer(goal, f"We sell the {item}. The cheapest one costs {cheapest}.", cheapest, reads=reads)


@functools.cache
def _cheapest(world: RetailState) -> list[tuple[str, str]]:
    """Return products whose cheapest variant is available, each with its price. Other products would be ambiguous."""
    offers = {name: min(product.variants.values(), key=lambda v: v.price) for name, product in world.products.items()}
    return [(name, f"{offer.price}") for name, offer in offers.items() if offer.available]
