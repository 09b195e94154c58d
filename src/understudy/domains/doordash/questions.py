"""Questions: what something cost or costs, what is in it, and where an order is."""

from collections.abc import Sequence

from understudy.domains.callers import Knowledge
from understudy.domains.doordash import phrases
from understudy.domains.doordash.drafts import Draft
from understudy.domains.doordash.state import Order, Status
from understudy.domains.doordash.wants import said
from understudy.domains.drafts import Want, call, say


def paid(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask what a dish cost; or, not as easy, what was paid in all."""
    ref, line = draft.ref(order, knows, itemized=easy), draft.random.choice(order.items)
    if easy:
        answer = say(f"You paid {line.price} for the {line.name}.")
        return Want(draft.pick(phrases.PRICE, item=line.name), ref, (answer,), "number", outputs=(f"{line.price}",))
    added = [f"{amount}" for amount in (*(line.price for line in order.items), order.delivery_fee, order.tip) if amount]
    total, expression = f"{order.total:.2f}", " + ".join(added) + (f" - {order.discount}" if order.discount else "")
    sums = (call("calculate", expression=expression),) if expression != total else ()
    turns = (*sums, say(f"You paid {total} for order {order.id}."))
    return Want(draft.pick(phrases.TOTAL), ref, turns, "number", outputs=(total,))


def track(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask where an order is: the minutes it takes once it was picked up, else its status."""
    ref = draft.ref(order, knows)
    statuses: Sequence[Status] = ("picked up",) if ok else ("accepted", "preparing", "delivered", "cancelled")
    status = draft.random.choice(statuses)
    draft.in_status(order, status)
    text = draft.pick(phrases.WHERE)
    if not ok:
        return Want(text, ref, (say(f"The status of order {order.id} is {status}."),), "text", outputs=(said(status),))
    minutes = draft.random.randint(3, 28)
    draft.patch("trips", order.id, minutes=minutes)
    answer = say(f"Order {order.id} arrives in {minutes} minutes.")
    return Want(text, ref, (call("track_courier", order_id=order.id), answer), "text", outputs=(f"{minutes}",))


def menu(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask about a menu: what a dish costs; or, not as easy, its allergens or the cheapest vegan dish."""
    name = draft.random.choice(list(draft.world.restaurants))
    place = draft.restaurant(name)
    reads = (call("get_restaurant", name=name),)
    dish, row = draft.random.choice([(key, row) for key, row in place.menu.items() if row.allergens])
    vegan = sorted((row.price, key) for key, row in place.menu.items() if row.vegan)
    if easy:
        text = draft.pick(phrases.COST, item=dish, restaurant=name)
        return Want(
            text,
            turns=(*reads, say(f"The price of the {dish} is {row.price}.")),
            kind="number",
            outputs=(f"{row.price}",),
        )
    if vegan and draft.likely(0.5):
        price, dish = vegan[0]
        text, answer = draft.pick(phrases.VEGAN, restaurant=name), f"The cheapest vegan dish is the {dish} for {price}."
        return Want(text, turns=(*reads, say(answer)), kind="number", outputs=(dish, f"{price}"))
    text, listed = draft.pick(phrases.ALLERGENS, item=dish, restaurant=name), " and ".join(row.allergens)
    answer = f"The menu lists {listed} for the {dish}, at a price of {row.price}."
    return Want(text, turns=(*reads, say(answer)), kind="number", outputs=(*row.allergens, f"{row.price}"))
