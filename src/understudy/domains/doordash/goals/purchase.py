"""Requests to place orders: in the customer's words, a reorder, or one that depends on menus."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from understudy.core.messages import Message
from understudy.domains.authoring.payments import payment_kind
from understudy.domains.authoring.request import VAGUE_SHARE, Draw, answer, extend, plain_request, refuse, tell
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.doordash.goals.basket import Basket, format_choice
from understudy.domains.doordash.state import Choice, Cuisine, Dish, Order, Restaurant
from understudy.domains.doordash.task_builder import DoordashTaskBuilder
from understudy.envs.gold import gold_call, gold_change, gold_text

_CUISINES: Mapping[Cuisine, str] = {"burgers": "burger", "indian": "Indian", "pizza": "pizza", "thai": "Thai"}
"""A cuisine as the word before "restaurant"."""
_HOW = ("do you want to pay", "would you like to pay", "which payment", "what payment", "payment method", "pay with")
_OBSTACLES = ("closed", "paused", "sold out", "minimum", "alcohol", "far", "credit")


def place_order(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Order dishes from a restaurant."""
    why = "" if draw.grantable else b.rng.choice(_OBSTACLES)
    name, vague = _near(b, far=why == "far"), not draw.easy and b.draw_bool(VAGUE_SHARE)
    drinks = why == "alcohol" or (draw.grantable and b.draw_bool(0.2))
    by_credit = why == "credit" or (draw.grantable and b.draw_bool(0.2))
    payment = "credit" if by_credit else b.rng.choice(b.customer.payments)
    basket = _basket(b, name, _choices(b, name, drinks, draw.easy), payment, "" if draw.easy else _tip(b))
    if not draw.easy and not b.draw_bool(0.6):
        basket = _coded(b, basket)
    how = b.phrase("pay", kind=payment_kind(payment))
    text = b.phrase("place", items=basket.description, restaurant=name)
    goal = _add_extras(b, plain_request(text, None, *basket.required_terms), basket)
    goal = tell(goal, how, "How would you like to pay?", _HOW, vague=vague)
    return _buy(b, goal, draw, basket, why)


def reorder(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Reorder an earlier order."""
    order, mention = draw.entity, b.order_mention(draw)
    why = "" if draw.grantable else b.rng.choice(("closed", "paused", "sold out"))
    choices = tuple(Choice(item=line.name, options=line.options, quantity=line.quantity) for line in order.items)
    basket = _basket(b, order.restaurant, choices, order.payment, "" if draw.easy else _tip(b))
    goal = GoalSpec(b.phrase("again"), mention, required_terms=basket.required_terms)
    goal = extend(_add_extras(b, goal, basket), b.phrase("same_payment"))
    b.set_status(order, "delivered")
    return _buy(b, goal, draw, basket, why)


def order_without_allergen(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Order a dish unless the menu lists an allergen for it, else another one."""
    name, payment = _near(b), b.rng.choice(b.customer.payments)
    first, second, allergen = b.rng.choice(_conflicts(b.world.restaurants[name], draw.grantable))
    basket = _basket(b, name, (Choice(item=first if draw.grantable else second),), payment)
    text = b.phrase("allergy", first=first, second=second, allergen=allergen, restaurant=name)
    goal = extend(plain_request(text, None, *basket.required_terms), b.phrase("pay", kind=payment_kind(payment)))
    _remove_obstacles(b, basket)
    note = f"The menu lists {'no ' if draw.grantable else ''}{allergen} for the {first}. "
    return _place(goal, basket, (*_reads(name), *_sums(basket)), note)


def order_cheapest(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask for the cheapest open restaurant for a dish, including delivery; sometimes order it there."""
    baskets = b.rng.choice(_duels(b))
    for basket in baskets:
        _remove_obstacles(b, basket)
    shut = None if draw.grantable else b.rng.choice(baskets)
    if shut:
        b.patch("restaurants", shut.restaurant, paused=True)
    opened = sorted((basket for basket in baskets if basket is not shut), key=lambda basket: basket.total)
    best, cuisine = opened[0], opened[0].restaurant_data.cuisine
    reads = [
        gold_call("get_customer"),
        gold_call("search_restaurants", cuisine=cuisine),
        *(gold_call("get_restaurant", name=basket.restaurant) for basket in opened),
        *(turn for basket in opened for turn in _sums(basket)),
    ]
    words = {"items": format_choice(best.choices[0]), "cuisine": _CUISINES[cuisine]}
    if not draw.easy and b.draw_bool(0.5):
        goal = plain_request(b.phrase("order_cheapest", **words), None, *best.required_terms)
        return _place(extend(goal, b.phrase("pay", kind=payment_kind(best.payment))), best, reads)
    goal, total = GoalSpec(b.phrase("cheapest", **words), kind="number"), f"{best.total:.2f}"
    text = f"{best.restaurant} is the cheapest at {total} with delivery."
    return answer(goal, text, best.restaurant, total, reads=reads)


def _buy(b: DoordashTaskBuilder, goal: GoalSpec, draw: Draw[Order], basket: Basket, why: str) -> GoalSpec:
    """Settle a request to place an order, or refuse it for the obstacle `why`."""
    _remove_obstacles(b, basket)
    reads = _reads(basket.restaurant)
    if why:
        reason, output = _add_obstacle(b, basket, why)
        reason = f"{reason}, so I cannot place the order."
        return refuse(b, goal, reason, output, easy=draw.easy, reads=reads)
    codes = [gold_call("get_promotion", code=basket.code)] if basket.code else []
    return _place(goal, basket, (*reads, *codes, *_sums(basket)))


def _place(goal: GoalSpec, basket: Basket, reads: Sequence[Message], allergen_note: str = "") -> GoalSpec:
    """Return the request with the gold turns that propose and place the order."""
    total = f"{basket.total:.2f}"
    report = f"The order has been placed. The total is {total}."
    proposal, *done = gold_change(basket.proposal, basket.order_call(), report)
    turns = (*goal.gold_turns, *reads, gold_text(f"{allergen_note}{proposal.content}"), *done)
    return replace(goal, gold_turns=turns, required_terms=(*goal.required_terms, total), outputs=(total,))


def _add_extras(b: DoordashTaskBuilder, goal: GoalSpec, basket: Basket) -> GoalSpec:
    """Add what the customer says about tip and promotion."""
    if basket.tip:
        goal = extend(goal, b.phrase("with_tip", tip=basket.tip))
    return extend(goal, b.phrase("with_code", code=basket.code)) if basket.code else goal


def _add_obstacle(b: DoordashTaskBuilder, basket: Basket, why: str) -> tuple[str, str]:
    """Set an obstacle to the order. Return the reason in words, and the fact to tell."""
    name, first = basket.restaurant, basket.choices[0].item
    if why == "closed":
        closes = b.rng.choice(("15:00", "17:00", "19:00"))
        b.patch("restaurants", name, closes=closes)
        hour = int(closes[:2]) - 12
        return f"{name} closed at {closes}", f"{closes}|{hour} pm|{hour}pm|{hour}:00 pm"
    if why == "paused":
        b.patch("restaurants", name, paused=True)
        return f"{name} has paused orders", "paused"
    if why == "sold out":
        b.patch("restaurants", name, menu={first: {"sold_out": True}})
        return f"{name} is sold out of {first}", "sold out|sold_out"
    if why == "minimum":
        minimum = f"{int(basket.food) + b.rng.randint(1, 5)}.00"
        b.patch("restaurants", name, minimum=minimum)
        return f"The minimum order at {name} is {minimum}", minimum
    if why == "alcohol":
        age = b.rng.choice(("under age", "not on file"))
        b.set_account(age=age)
        return f"Alcohol is only for customers of legal age, and your age status is {age}", age
    if why == "far":
        return f"{name} only delivers in {basket.restaurant_data.area}", basket.restaurant_data.area
    credit = max(Decimal(0), basket.total - b.rng.randint(1, 9))
    b.set_credit(credit)
    return f"Your credit is only {credit:.2f}", f"{credit:.2f}"


def _remove_obstacles(b: DoordashTaskBuilder, basket: Basket) -> None:
    """Remove all obstacles to an order."""
    menu = {choice.item: {"sold_out": False} for choice in basket.choices}
    minimum = f"{min(basket.restaurant_data.minimum, int(basket.food)):.2f}"
    b.patch("restaurants", basket.restaurant, paused=False, minimum=minimum, menu=menu)
    if basket.has_alcohol:
        b.set_account(age="of age")
    if basket.payment == "credit":
        b.set_credit(basket.total + b.rng.randint(0, 20))


def _basket(b: DoordashTaskBuilder, name: str, choices: tuple[Choice, ...], payment: str, tip: str = "") -> Basket:
    return Basket(name, b.world.restaurants[name], choices, payment, b.customer.member, tip)


def _reads(name: str) -> tuple[Message, ...]:
    return gold_call("get_customer"), gold_call("get_restaurant", name=name)


def _sums(basket: Basket) -> tuple[Message, ...]:
    return (gold_call("calculate", expression=basket.total_expression),) if basket.total_expression else ()


def _near(b: DoordashTaskBuilder, far: bool = False) -> str:
    """Draw a restaurant in the customer's area, or outside it, that they have not ordered from."""
    area, known = b.customer.area, {order.restaurant for order in b.orders()}
    names = [
        key for key, restaurant in b.world.restaurants.items() if (restaurant.area != area) == far and key not in known
    ]
    return b.rng.choice(names)


def _choices(b: DoordashTaskBuilder, name: str, drinks: bool, easy: bool) -> tuple[Choice, ...]:
    """Draw a dish, sometimes with a second one; with alcohol if `drinks`."""
    menu = b.world.restaurants[name].menu
    alcohol = [key for key, dish in menu.items() if dish.alcohol]
    first = b.rng.choice([key for key, dish in menu.items() if _is_food(dish)])
    second = b.rng.choice([key for key in menu if key != first and key not in alcohol])
    names = (first, *alcohol) if drinks else (first,) if easy or b.draw_bool(0.5) else (first, second)
    return tuple(_choice(b, key, menu[key], easy) for key in names)


def _choice(b: DoordashTaskBuilder, name: str, dish: Dish, easy: bool) -> Choice:
    options = (b.rng.choice(list(dish.options)),) if dish.options and not easy and b.draw_bool(0.4) else ()
    return Choice(item=name, options=options, quantity=1 if b.draw_bool(0.7) else 2)


def _is_food(dish: Dish) -> bool:
    return bool(dish.allergens) and not dish.alcohol


def _tip(b: DoordashTaskBuilder) -> str:
    return b.rng.choice(("", "", "1.00", "2.00", "2.50", "4.00"))


def _coded(b: DoordashTaskBuilder, basket: Basket) -> Basket:
    """Return the basket with a valid promotion, if there is one."""
    fitting = [(code, row.off) for code, row in b.world.promotions.items() if row.off < basket.food]
    if not fitting:
        return basket
    code, off = b.rng.choice(fitting)
    expires, minimum = b.rng.choice(("2025-05-16", "2025-05-31")), f"{min(12, int(basket.food))}.00"
    b.patch("promotions", code, expires=expires, minimum=minimum, members_only=False)
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


def _duels(b: DoordashTaskBuilder) -> list[tuple[Basket, Basket]]:
    """Return baskets of the same dish at two nearby restaurants, above both minimums, with different totals."""
    near = [key for key, restaurant in b.world.restaurants.items() if restaurant.area == b.customer.area]
    payment, found = b.rng.choice(b.customer.payments), []
    for pair in itertools.combinations(near, 2):
        for choice in _common(*(b.world.restaurants[name] for name in pair)):
            one, other = (_basket(b, name, (choice,), payment) for name in pair)
            found += [(one, other)] if one.total != other.total else []
    return found


def _common(first: Restaurant, second: Restaurant) -> list[Choice]:
    """Return dishes on both menus, in quantities above both minimums."""
    dishes = [key for key, dish in first.menu.items() if _is_food(dish) and key in second.menu]
    least = {
        key: max(restaurant.minimum / restaurant.menu[key].price for restaurant in (first, second)) for key in dishes
    }
    return [Choice(item=key, quantity=math.ceil(quantity)) for key, quantity in least.items()]
