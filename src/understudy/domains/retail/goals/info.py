"""Questions about orders and products: nothing changes."""

import functools

from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_text
from understudy.domains.retail.goals.base import payment_kind, status_variants
from understudy.domains.retail.state import Order, RetailState, Status
from understudy.domains.retail.task_builder import RetailTaskBuilder

_UNSOLD = ("piano", "canoe", "bicycle", "sofa", "ladder", "microscope", "trampoline", "chainsaw")


def ask_price(builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool) -> GoalSpec:
    """Ask what an item cost, or unless `easy` what the whole order cost."""
    if not easy and len(order.items) > 1:
        mention = builder.order_mention(order, knowledge)
        total = f"{order.total:.2f}"
        expression = " + ".join(str(line.price) for line in order.items)
        turns = (
            gold_call("calculate", expression=expression),
            gold_text(f"The total of order {order.id} was {total}."),
        )
        return GoalSpec(builder.phrase("total"), mention, turns, "number", outputs=(total,))
    mention = builder.order_mention(order, knowledge, itemized=True)
    cost = str(mention.item.price)
    answer = gold_text(f"The {mention.item.name} was {cost}.")
    return GoalSpec(builder.phrase("price", item=mention.item.name), mention, (answer,), "number", outputs=(cost,))


def ask_status(builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for the status of an order, or unless `easy` for its address or payment."""
    mention = builder.order_mention(order, knowledge)
    asked = "status" if easy else builder.rng.choice(("status", "address", "payment"))
    if asked == "address":
        answer = gold_text(f"Order {order.id} will be delivered to {order.address}.")
        return GoalSpec(builder.phrase("where_to"), mention, (answer,), "text", outputs=(order.address,))
    if asked == "payment":
        kind = payment_kind(order.payment)
        answer = gold_text(f"Order {order.id} was paid with your {kind} {order.payment}.")
        return GoalSpec(builder.phrase("paid_with"), mention, (answer,), "text", outputs=(f"{order.payment}|{kind}",))
    status: Status = builder.rng.choice(("pending", "shipped", "delivered", "cancelled"))
    builder.set_status(order, status)
    return GoalSpec(
        builder.phrase("status"),
        mention,
        (gold_text(f"Order {order.id} is {status}."),),
        "text",
        outputs=(status_variants(status),),
    )


def ask_stock_price(
    builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for the price of a variant, or unless `easy` which of three products is sold, and its lowest price."""
    item, cheapest = builder.rng.choice(_cheapest(builder.world))
    if easy:
        offer = builder.rng.choice(list(builder.world.products[item].variants.values()))
        text, cost = builder.phrase("stock", item=item, option=offer.option), f"{offer.price}"
        answer = (gold_call("get_product", name=item), gold_text(f"The {offer.option} {item} costs {cost}."))
        return GoalSpec(text, gold_turns=answer, kind="number", outputs=(cost,))
    things = ", ".join(builder.rng.sample([item, *builder.rng.sample(_UNSOLD, 2)], 3))
    reads = (gold_call("list_products"), gold_call("get_product", name=item))
    turns = (*reads, gold_text(f"We sell the {item}. The cheapest one costs {cheapest}."))
    return GoalSpec(builder.phrase("sold", things=things), gold_turns=turns, kind="number", outputs=(cheapest,))


@functools.cache
def _cheapest(world: RetailState) -> list[tuple[str, str]]:
    """Return products whose cheapest variant is available, each with its price. Other products would be ambiguous."""
    offers = {name: min(product.variants.values(), key=lambda v: v.price) for name, product in world.products.items()}
    return [(name, f"{offer.price}") for name, offer in offers.items() if offer.available]
