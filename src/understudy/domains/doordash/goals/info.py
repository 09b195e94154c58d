"""Questions about prices, menus and the location of an order."""

from collections.abc import Sequence

from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_text
from understudy.domains.doordash.goals.base import status_variants
from understudy.domains.doordash.state import Order, Status
from understudy.domains.doordash.task_builder import DoordashTaskBuilder


def ask_price_paid(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask what a dish cost, or unless `easy` what the whole order cost."""
    mention, line = builder.order_mention(order, knowledge, itemized=easy), builder.rng.choice(order.items)
    if easy:
        answer = gold_text(f"You paid {line.price} for the {line.name}.")
        return GoalSpec(
            builder.phrase("price", item=line.name),
            mention,
            (answer,),
            "number",
            outputs=(f"{line.price}",),
        )
    added = [f"{amount}" for amount in (*(line.price for line in order.items), order.delivery_fee, order.tip) if amount]
    total, expression = f"{order.total:.2f}", " + ".join(added) + (f" - {order.discount}" if order.discount else "")
    sums = (gold_call("calculate", expression=expression),) if expression != total else ()
    turns = (*sums, gold_text(f"You paid {total} for order {order.id}."))
    return GoalSpec(builder.phrase("total"), mention, turns, "number", outputs=(total,))


def track_order(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask where an order is: the minutes left once it was picked up, else its status."""
    mention = builder.order_mention(order, knowledge)
    statuses: Sequence[Status] = ("picked up",) if grantable else ("accepted", "preparing", "delivered", "cancelled")
    status = builder.rng.choice(statuses)
    builder.set_status(order, status)
    text = builder.phrase("where")
    if not grantable:
        return GoalSpec(
            text,
            mention,
            (gold_text(f"The status of order {order.id} is {status}."),),
            "text",
            outputs=(status_variants(status),),
        )
    minutes = builder.rng.randint(3, 28)
    builder.patch("trips", order.id, minutes=minutes)
    answer = gold_text(f"Order {order.id} will arrive in {minutes} minutes.")
    return GoalSpec(
        text, mention, (gold_call("track_courier", order_id=order.id), answer), "text", outputs=(f"{minutes}",)
    )


def ask_menu(builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for the price of a dish, or unless `easy` for its allergens or the cheapest vegan dish."""
    name = builder.rng.choice(list(builder.world.restaurants))
    restaurant = builder.find_restaurant(name)
    reads = (gold_call("get_restaurant", name=name),)
    dish, row = builder.rng.choice([(key, row) for key, row in restaurant.menu.items() if row.allergens])
    vegan = sorted((row.price, key) for key, row in restaurant.menu.items() if row.vegan)
    if easy:
        text = builder.phrase("cost", item=dish, restaurant=name)
        return GoalSpec(
            text,
            gold_turns=(*reads, gold_text(f"The price of the {dish} is {row.price}.")),
            kind="number",
            outputs=(f"{row.price}",),
        )
    if vegan and builder.draw_bool(0.5):
        price, dish = vegan[0]
        text, answer = (
            builder.phrase("vegan", restaurant=name),
            f"The cheapest vegan dish is the {dish} for {price}.",
        )
        return GoalSpec(text, gold_turns=(*reads, gold_text(answer)), kind="number", outputs=(dish, f"{price}"))
    text, listed = builder.phrase("allergens", item=dish, restaurant=name), " and ".join(row.allergens)
    answer = f"The menu lists {listed} for the {dish}, at a price of {row.price}."
    return GoalSpec(
        text, gold_turns=(*reads, gold_text(answer)), kind="number", outputs=(*row.allergens, f"{row.price}")
    )
