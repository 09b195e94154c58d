"""Questions about prices, menus and the location of an order."""

from collections.abc import Sequence

from understudy.domains.authoring.request import Draw, answer, status_variants
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.doordash.state import Order, Status
from understudy.domains.doordash.task_builder import DoordashTaskBuilder
from understudy.envs.gold import gold_call


def ask_price_paid(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask what a dish cost, or unless `easy` what the whole order cost."""
    order, mention = draw.entity, b.order_mention(draw, itemized=draw.easy)
    line = b.rng.choice(order.items)
    if draw.easy:
        goal = GoalSpec(b.phrase("price", item=line.name), mention, kind="number")
        return answer(goal, f"You paid {line.price} for the {line.name}.", f"{line.price}")
    added = [f"{amount}" for amount in (*(line.price for line in order.items), order.delivery_fee, order.tip) if amount]
    total, expression = f"{order.total:.2f}", " + ".join(added) + (f" - {order.discount}" if order.discount else "")
    sums = [gold_call("calculate", expression=expression)] if expression != total else []
    goal = GoalSpec(b.phrase("total"), mention, kind="number")
    return answer(goal, f"You paid {total} for order {order.id}.", total, reads=sums)


def track_order(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask where an order is: the minutes left once it was picked up, else its status."""
    order, mention = draw.entity, b.order_mention(draw)
    picked_up = draw.grantable
    statuses: Sequence[Status] = ("picked up",) if picked_up else ("accepted", "preparing", "delivered", "cancelled")
    status = b.rng.choice(statuses)
    b.set_status(order, status)
    goal = GoalSpec(b.phrase("where"), mention, kind="text")
    if not picked_up:
        return answer(goal, f"The status of order {order.id} is {status}.", status_variants(status))
    minutes = b.rng.randint(3, 28)
    b.patch("trips", order.id, minutes=minutes)
    reads = [gold_call("track_courier", order_id=order.id)]
    return answer(goal, f"Order {order.id} will arrive in {minutes} minutes.", f"{minutes}", reads=reads)


def ask_menu(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask for the price of a dish, or unless `easy` for its allergens or the cheapest vegan dish."""
    name = b.rng.choice(list(b.world.restaurants))
    menu, reads = b.world.restaurants[name].menu, [gold_call("get_restaurant", name=name)]
    dish, row = b.rng.choice([(key, row) for key, row in menu.items() if row.allergens])
    vegan = sorted((row.price, key) for key, row in menu.items() if row.vegan)
    if draw.easy:
        goal = GoalSpec(b.phrase("cost", item=dish, restaurant=name), kind="number")
        return answer(goal, f"The price of the {dish} is {row.price}.", f"{row.price}", reads=reads)
    if vegan and b.draw_bool(0.5):
        price, dish = vegan[0]
        goal = GoalSpec(b.phrase("vegan", restaurant=name), kind="number")
        return answer(goal, f"The cheapest vegan dish is the {dish} for {price}.", dish, f"{price}", reads=reads)
    goal = GoalSpec(b.phrase("allergens", item=dish, restaurant=name), kind="number")
    text = f"The menu lists {' and '.join(row.allergens)} for the {dish}, at a price of {row.price}."
    return answer(goal, text, *row.allergens, f"{row.price}", reads=reads)
