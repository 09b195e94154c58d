"""Requests to place orders: in the customer's words, a reorder, or one that depends on menus."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change, gold_text
from understudy.domains.doordash.goals.base import CUISINES, add_refusal, hour_variants, payment_kind
from understudy.domains.doordash.goals.basket import Basket, format_choice
from understudy.domains.doordash.state import Choice, Dish, Order, Restaurant
from understudy.domains.doordash.task_builder import DoordashTaskBuilder

_HOW = ("do you want to pay", "would you like to pay", "which payment", "what payment", "payment method", "pay with")
_OBSTACLES = ("closed", "paused", "sold out", "minimum", "alcohol", "far", "credit")


def place_order(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Order dishes from a restaurant."""
    why = "" if grantable else builder.rng.choice(_OBSTACLES)
    name, vague = _near(builder, far=why == "far"), not easy and builder.draw_bool(0.3)
    drinks = why == "alcohol" or (grantable and builder.draw_bool(0.2))
    by_credit = why == "credit" or (grantable and builder.draw_bool(0.2))
    payment = "credit" if by_credit else builder.rng.choice(builder.customer.payments)
    basket = _basket(builder, name, _choices(builder, name, drinks, easy), payment, "" if easy else _tip(builder))
    basket = basket if easy or builder.draw_bool(0.6) else _coded(builder, basket)
    how = builder.phrase("pay", kind=payment_kind(payment))
    texts = (builder.phrase("place", items=basket.description, restaurant=name), *_extras(builder, basket))
    text = " ".join(texts if vague else (*texts, how))
    asks = (gold_text("How would you like to pay?"),) if vague else ()
    facts = (Fact(text=how, keywords=_HOW, in_opening=not vague),)
    return _bought(
        builder, GoalSpec(text, gold_turns=asks, required_terms=basket.required_terms, facts=facts), basket, why, easy
    )


def reorder(builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool) -> GoalSpec:
    """Reorder an earlier order."""
    mention, why = (
        builder.order_mention(order, knowledge),
        "" if grantable else builder.rng.choice(("closed", "paused", "sold out")),
    )
    choices = tuple(Choice(item=line.name, options=line.options, quantity=line.quantity) for line in order.items)
    basket = _basket(builder, order.restaurant, choices, order.payment, "" if easy else _tip(builder))
    text = " ".join((builder.phrase("again"), *_extras(builder, basket), builder.phrase("same_payment")))
    builder.set_status(order, "delivered")
    return _bought(builder, GoalSpec(text, mention, required_terms=basket.required_terms), basket, why, easy)


def order_without_allergen(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Order a dish unless the menu lists an allergen for it, else another one."""
    name, payment = _near(builder), builder.rng.choice(builder.customer.payments)
    first, second, allergen = builder.rng.choice(_conflicts(builder.find_restaurant(name), grantable))
    basket = _basket(builder, name, (Choice(item=first if grantable else second),), payment)
    text = builder.phrase("allergy", first=first, second=second, allergen=allergen, restaurant=name)
    goal = GoalSpec(
        f"{text} {builder.phrase('pay', kind=payment_kind(payment))}",
        gold_turns=_reads(name),
        required_terms=basket.required_terms,
    )
    _possible(builder, basket)
    allergen_note = f"The menu lists {'no ' if grantable else ''}{allergen} for the {first}. "
    return _paid(goal, basket, _sums(basket), allergen_note)


def order_cheapest(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for the cheapest open restaurant for a dish, including delivery; sometimes order it there."""
    baskets = builder.rng.choice(_duels(builder))
    for basket in baskets:
        _possible(builder, basket)
    shut = None if grantable else builder.rng.choice(baskets)
    if shut:
        builder.patch("restaurants", shut.restaurant, paused=True)
    opened = sorted((basket for basket in baskets if basket is not shut), key=lambda basket: basket.total)
    best, cuisine = opened[0], opened[0].restaurant_data.cuisine
    menus = (gold_call("get_restaurant", name=basket.restaurant) for basket in opened)
    reads = (gold_call("get_customer"), gold_call("search_restaurants", cuisine=cuisine), *menus)
    sums = tuple(turn for basket in opened for turn in _sums(basket))
    words = {"items": format_choice(best.choices[0]), "cuisine": CUISINES[cuisine]}
    if not easy and builder.draw_bool(0.5):
        request = builder.phrase("order_cheapest", **words)
        text = f"{request} {builder.phrase('pay', kind=payment_kind(best.payment))}"
        return _paid(GoalSpec(text, gold_turns=reads, required_terms=best.required_terms), best, sums)
    total, text = f"{best.total:.2f}", builder.phrase("cheapest", **words)
    answer = gold_text(f"{best.restaurant} is the cheapest at {total} with delivery.")
    return GoalSpec(text, gold_turns=(*reads, *sums, answer), kind="number", outputs=(best.restaurant, total))


def _bought(builder: DoordashTaskBuilder, goal: GoalSpec, basket: Basket, why: str, easy: bool) -> GoalSpec:
    """Add the gold turns that place the order, or the refusal."""
    _possible(builder, basket)
    reads = (*goal.gold_turns, *_reads(basket.restaurant))
    if not why:
        codes = (gold_call("get_promotion", code=basket.code),) if basket.code else ()
        return _paid(replace(goal, gold_turns=(*reads, *codes)), basket, _sums(basket))
    reason, output = _obstacle(builder, basket, why)
    return add_refusal(builder, goal, reads, f"{reason}, so I cannot place the order.", (output,), easy)


def _paid(goal: GoalSpec, basket: Basket, sums: Sequence[Message], allergen_note: str = "") -> GoalSpec:
    """Add the gold turns that calculate, propose and place the order."""
    total = f"{basket.total:.2f}"
    proposal, *done = gold_change(
        basket.proposal, basket.order_call(), f"The order has been placed. The total is {total}."
    )
    turns = (*goal.gold_turns, *sums, gold_text(f"{allergen_note}{proposal.content}"), *done)
    return replace(goal, gold_turns=turns, required_terms=(*goal.required_terms, total), outputs=(total,))


def _obstacle(builder: DoordashTaskBuilder, basket: Basket, why: str) -> tuple[str, str]:
    """Set an obstacle to the order. Return the reason in words, and the fact to tell."""
    name, first = basket.restaurant, basket.choices[0].item
    if why == "closed":
        closes = builder.rng.choice(("15:00", "17:00", "19:00"))
        builder.patch("restaurants", name, closes=closes)
        return f"{name} closed at {closes}", hour_variants(closes)
    if why == "paused":
        builder.patch("restaurants", name, paused=True)
        return f"{name} has paused orders", "paused"
    if why == "sold out":
        builder.patch("restaurants", name, menu={first: {"sold_out": True}})
        return f"{name} is sold out of {first}", "sold out|sold_out"
    if why == "minimum":
        minimum = f"{int(basket.food) + builder.rng.randint(1, 5)}.00"
        builder.patch("restaurants", name, minimum=minimum)
        return f"The minimum order at {name} is {minimum}", minimum
    if why == "alcohol":
        age = builder.rng.choice(("under age", "not on file"))
        builder.set_account(age=age)
        return f"Alcohol is only for customers of legal age, and your age status is {age}", age
    if why == "far":
        return f"{name} only delivers in {basket.restaurant_data.area}", basket.restaurant_data.area
    credit = max(Decimal(0), basket.total - builder.rng.randint(1, 9))
    builder.set_credit(credit)
    return f"Your credit is only {credit:.2f}", f"{credit:.2f}"


def _possible(builder: DoordashTaskBuilder, basket: Basket) -> None:
    """Remove all obstacles to an order."""
    menu = {choice.item: {"sold_out": False} for choice in basket.choices}
    minimum = f"{min(basket.restaurant_data.minimum, int(basket.food)):.2f}"
    builder.patch("restaurants", basket.restaurant, paused=False, minimum=minimum, menu=menu)
    if basket.has_alcohol:
        builder.set_account(age="of age")
    if basket.payment == "credit":
        builder.set_credit(basket.total + builder.rng.randint(0, 20))


def _basket(
    builder: DoordashTaskBuilder, name: str, choices: tuple[Choice, ...], payment: str, tip: str = ""
) -> Basket:
    return Basket(name, builder.find_restaurant(name), choices, payment, builder.customer.member, tip)


def _reads(name: str) -> tuple[Message, ...]:
    return gold_call("get_customer"), gold_call("get_restaurant", name=name)


def _sums(basket: Basket) -> tuple[Message, ...]:
    return (gold_call("calculate", expression=basket.total_expression),) if basket.total_expression else ()


def _near(builder: DoordashTaskBuilder, far: bool = False) -> str:
    """Draw a restaurant in the customer's area, or outside it, that they have not ordered from."""
    area, known = builder.customer.area, {order.restaurant for order in builder.orders()}
    names = [
        key
        for key, restaurant in builder.world.restaurants.items()
        if (restaurant.area != area) == far and key not in known
    ]
    return builder.rng.choice(names)


def _choices(builder: DoordashTaskBuilder, name: str, drinks: bool, easy: bool) -> tuple[Choice, ...]:
    """Draw a dish, sometimes with a second one; with alcohol if `drinks`."""
    menu = builder.find_restaurant(name).menu
    alcohol = [key for key, dish in menu.items() if dish.alcohol]
    first = builder.rng.choice([key for key, dish in menu.items() if _is_food(dish)])
    second = builder.rng.choice([key for key in menu if key != first and key not in alcohol])
    names = (first, *alcohol) if drinks else (first,) if easy or builder.draw_bool(0.5) else (first, second)
    return tuple(_choice(builder, key, menu[key], easy) for key in names)


def _choice(builder: DoordashTaskBuilder, name: str, dish: Dish, easy: bool) -> Choice:
    options = (builder.rng.choice(list(dish.options)),) if dish.options and not easy and builder.draw_bool(0.4) else ()
    return Choice(item=name, options=options, quantity=1 if builder.draw_bool(0.7) else 2)


def _is_food(dish: Dish) -> bool:
    return bool(dish.allergens) and not dish.alcohol


def _tip(builder: DoordashTaskBuilder) -> str:
    return builder.rng.choice(("", "", "1.00", "2.00", "2.50", "4.00"))


def _extras(builder: DoordashTaskBuilder, basket: Basket) -> tuple[str, ...]:
    """Return what the customer says about tip and promotion."""
    tip = [builder.phrase("with_tip", tip=basket.tip)] if basket.tip else []
    return (*tip, *([builder.phrase("with_code", code=basket.code)] if basket.code else []))


def _coded(builder: DoordashTaskBuilder, basket: Basket) -> Basket:
    """Return the basket with a valid promotion, if there is one."""
    fitting = [(code, row.off) for code, row in builder.world.promotions.items() if row.off < basket.food]
    if not fitting:
        return basket
    code, off = builder.rng.choice(fitting)
    expires, minimum = builder.rng.choice(("2025-05-16", "2025-05-31")), f"{min(12, int(basket.food))}.00"
    builder.patch("promotions", code, expires=expires, minimum=minimum, members_only=False)
    return replace(basket, code=code, discount=off)


def _conflicts(restaurant: Restaurant, grantable: bool) -> list[tuple[str, str, str]]:
    """Return two dishes and an allergen that the second lacks; the first has it unless `grantable`."""
    menu = {key: dish for key, dish in restaurant.menu.items() if _is_food(dish)}
    known = sorted({allergen for dish in menu.values() for allergen in dish.allergens})
    return [
        (first, second, allergen)
        for first, second in itertools.permutations(menu, 2)
        for allergen in known
        if (allergen not in menu[first].allergens) == grantable and allergen not in menu[second].allergens
    ]


def _duels(builder: DoordashTaskBuilder) -> list[tuple[Basket, Basket]]:
    """Return baskets of the same dish at two nearby restaurants, above both minimums, with different totals."""
    near = [key for key, restaurant in builder.world.restaurants.items() if restaurant.area == builder.customer.area]
    payment, found = builder.rng.choice(builder.customer.payments), []
    for pair in itertools.combinations(near, 2):
        for choice in _common(*(builder.find_restaurant(name) for name in pair)):
            one, other = (_basket(builder, name, (choice,), payment) for name in pair)
            found += [(one, other)] if one.total != other.total else []
    return found


def _common(first: Restaurant, second: Restaurant) -> list[Choice]:
    """Return dishes on both menus, in quantities above both minimums."""
    dishes = [key for key, dish in first.menu.items() if _is_food(dish) and key in second.menu]
    least = {
        key: max(restaurant.minimum / restaurant.menu[key].price for restaurant in (first, second)) for key in dishes
    }
    return [Choice(item=key, quantity=math.ceil(quantity)) for key, quantity in least.items()]
