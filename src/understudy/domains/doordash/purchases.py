"""Requests to buy: an order in the customer's words, an earlier one again, and one that the menu has to decide."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from understudy.domains.callers import Knowledge
from understudy.domains.doordash import phrases
from understudy.domains.doordash.basket import Basket, worded
from understudy.domains.doordash.drafts import Draft
from understudy.domains.doordash.state import Choice, Dish, Order, Restaurant
from understudy.domains.doordash.wants import CUISINES, hour_said, kind, refused
from understudy.domains.drafts import Want, call, change, say
from understudy.messages import Message
from understudy.tasks import Fact

_HOW = ("do you want to pay", "would you like to pay", "which payment", "what payment", "payment method", "pay with")
_OBSTACLES = ("closed", "paused", "sold out", "minimum", "alcohol", "far", "credit")


def place(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Order some dishes of a restaurant."""
    why = "" if ok else draft.random.choice(_OBSTACLES)
    name, vague = _near(draft, far=why == "far"), not easy and draft.likely(0.3)
    drinks = why == "alcohol" or (ok and draft.likely(0.2))
    by_credit = why == "credit" or (ok and draft.likely(0.2))
    payment = "credit" if by_credit else draft.random.choice(draft.customer.payments)
    basket = _basket(draft, name, _choices(draft, name, drinks, easy), payment, "" if easy else _tip(draft))
    basket = basket if easy or draft.likely(0.6) else _coded(draft, basket)
    how = draft.pick(phrases.PAY, kind=kind(payment))
    texts = (draft.pick(phrases.PLACE, items=basket.listed, restaurant=name), *_extras(draft, basket))
    text = " ".join(texts if vague else (*texts, how))
    asks = (say("How do you want to pay?"),) if vague else ()
    facts = (Fact(says=how, cues=_HOW, opened=not vague),)
    return _bought(draft, Want(text, turns=asks, names=basket.names, facts=facts), basket, why, easy)


def again(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Order the same as some time before."""
    ref, why = draft.ref(order, knows), "" if ok else draft.random.choice(("closed", "paused", "sold out"))
    choices = tuple(Choice(item=line.name, options=line.options, quantity=line.quantity) for line in order.items)
    basket = _basket(draft, order.restaurant, choices, order.payment, "" if easy else _tip(draft))
    text = " ".join((draft.pick(phrases.AGAIN), *_extras(draft, basket), draft.pick(phrases.SAME_PAYMENT)))
    draft.in_status(order, "delivered")
    return _bought(draft, Want(text, ref, names=basket.names), basket, why, easy)


def allergy(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Want a dish unless the menu lists an allergen for it, else another one."""
    name, payment = _near(draft), draft.random.choice(draft.customer.payments)
    first, second, allergen = draft.random.choice(_conflicts(draft.restaurant(name), ok))
    basket = _basket(draft, name, (Choice(item=first if ok else second),), payment)
    text = draft.pick(phrases.ALLERGY, first=first, second=second, allergen=allergen, restaurant=name)
    want = Want(f"{text} {draft.pick(phrases.PAY, kind=kind(payment))}", turns=_reads(name), names=basket.names)
    _possible(draft, basket)
    told = f"The menu lists {'no ' if ok else ''}{allergen} for the {first}. "
    return _paid(want, basket, _sums(basket), told)


def cheaper(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask which of the open restaurants has a dish for the least, delivery included; perhaps order it there."""
    baskets = draft.random.choice(_duels(draft))
    for basket in baskets:
        _possible(draft, basket)
    shut = None if ok else draft.random.choice(baskets)
    if shut:
        draft.patch("restaurants", shut.restaurant, paused=True)
    opened = sorted((basket for basket in baskets if basket is not shut), key=lambda basket: basket.total)
    best, cuisine = opened[0], opened[0].place.cuisine
    menus = (call("get_restaurant", name=basket.restaurant) for basket in opened)
    reads = (call("get_customer"), call("search_restaurants", cuisine=cuisine), *menus)
    sums = tuple(turn for basket in opened for turn in _sums(basket))
    words = {"items": worded(best.choices[0]), "cuisine": CUISINES[cuisine]}
    if not easy and draft.likely(0.5):
        text = f"{draft.pick(phrases.ORDER_CHEAPEST, **words)} {draft.pick(phrases.PAY, kind=kind(best.payment))}"
        return _paid(Want(text, turns=reads, names=best.names), best, sums)
    total, text = f"{best.total:.2f}", draft.pick(phrases.CHEAPEST, **words)
    answer = say(f"{best.restaurant} is the cheapest: {total} with delivery.")
    return Want(text, turns=(*reads, *sums, answer), kind="number", outputs=(best.restaurant, total))


def _bought(draft: Draft, want: Want, basket: Basket, why: str, easy: bool) -> Want:
    """The order is placed, unless something stands in its way."""
    _possible(draft, basket)
    reads = (*want.turns, *_reads(basket.restaurant))
    if not why:
        codes = (call("get_promotion", code=basket.code),) if basket.code else ()
        return _paid(replace(want, turns=(*reads, *codes)), basket, _sums(basket))
    reason, output = _obstacle(draft, basket, why)
    return refused(draft, want, reads, f"{reason}, so I cannot place the order.", (output,), easy)


def _paid(want: Want, basket: Basket, sums: Sequence[Message], told: str = "") -> Want:
    """After what the want reads: sum up, propose, place."""
    total = f"{basket.total:.2f}"
    proposal, *done = change(basket.proposal, basket.order(), f"You pay {total}.")
    turns = (*want.turns, *sums, say(f"{told}{proposal.content}"), *done)
    return replace(want, turns=turns, names=(*want.names, total), outputs=(total,))


def _obstacle(draft: Draft, basket: Basket, why: str) -> tuple[str, str]:
    """Put something in the way of an order: the reason in words, and the fact in it that has to be told."""
    name, first = basket.restaurant, basket.choices[0].item
    if why == "closed":
        closes = draft.random.choice(("15:00", "17:00", "19:00"))
        draft.patch("restaurants", name, closes=closes)
        return f"{name} closed at {closes}", hour_said(closes)
    if why == "paused":
        draft.patch("restaurants", name, paused=True)
        return f"{name} has paused", "paused"
    if why == "sold out":
        draft.patch("restaurants", name, menu={first: {"sold_out": True}})
        return f"{name} is sold out of {first}", "sold out|sold_out"
    if why == "minimum":
        minimum = f"{int(basket.food) + draft.random.randint(1, 5)}.00"
        draft.patch("restaurants", name, minimum=minimum)
        return f"The minimum of {name} is {minimum}", minimum
    if why == "alcohol":
        age = draft.random.choice(("under age", "not on file"))
        draft.account(age=age)
        return f"Alcohol is for customers of age, and your age is {age}", age
    if why == "far":
        return f"{name} delivers in {basket.place.area} only", basket.place.area
    credit = max(Decimal(0), basket.total - draft.random.randint(1, 9))
    draft.credit(credit)
    return f"Your credit is {credit:.2f}", f"{credit:.2f}"


def _possible(draft: Draft, basket: Basket) -> None:
    """Let nothing stand in the way of an order."""
    menu = {choice.item: {"sold_out": False} for choice in basket.choices}
    minimum = f"{min(basket.place.minimum, int(basket.food)):.2f}"
    draft.patch("restaurants", basket.restaurant, paused=False, minimum=minimum, menu=menu)
    if basket.has_alcohol:
        draft.account(age="of age")
    if basket.payment == "credit":
        draft.credit(basket.total + draft.random.randint(0, 20))


def _basket(draft: Draft, name: str, choices: tuple[Choice, ...], payment: str, tip: str = "") -> Basket:
    return Basket(name, draft.restaurant(name), choices, payment, draft.customer.member, tip)


def _reads(name: str) -> tuple[Message, ...]:
    return call("get_customer"), call("get_restaurant", name=name)


def _sums(basket: Basket) -> tuple[Message, ...]:
    return (call("calculate", expression=basket.sum),) if basket.sum else ()


def _near(draft: Draft, far: bool = False) -> str:
    """A restaurant in the customer's area, or far from it; none that an order of theirs is from."""
    area, known = draft.customer.area, {order.restaurant for order in draft.orders()}
    places = [key for key, place in draft.world.restaurants.items() if (place.area != area) == far and key not in known]
    return draft.random.choice(places)


def _choices(draft: Draft, name: str, drinks: bool, easy: bool) -> tuple[Choice, ...]:
    """A dish, perhaps with another dish or a drink; with alcohol if the customer `drinks`."""
    menu = draft.restaurant(name).menu
    alcohol = [key for key, dish in menu.items() if dish.alcohol]
    first = draft.random.choice([key for key, dish in menu.items() if _is_food(dish)])
    second = draft.random.choice([key for key in menu if key != first and key not in alcohol])
    names = (first, *alcohol) if drinks else (first,) if easy or draft.likely(0.5) else (first, second)
    return tuple(_choice(draft, key, menu[key], easy) for key in names)


def _choice(draft: Draft, name: str, dish: Dish, easy: bool) -> Choice:
    options = (draft.random.choice(list(dish.options)),) if dish.options and not easy and draft.likely(0.4) else ()
    return Choice(item=name, options=options, quantity=1 if draft.likely(0.7) else 2)


def _is_food(dish: Dish) -> bool:
    return bool(dish.allergens) and not dish.alcohol


def _tip(draft: Draft) -> str:
    return draft.random.choice(("", "", "1.00", "2.00", "2.50", "4.00"))


def _extras(draft: Draft, basket: Basket) -> tuple[str, ...]:
    """What the customer says of tip and promotion."""
    tip = [draft.pick(phrases.WITH_TIP, tip=basket.tip)] if basket.tip else []
    return (*tip, *([draft.pick(phrases.WITH_CODE, code=basket.code)] if basket.code else []))


def _coded(draft: Draft, basket: Basket) -> Basket:
    """The basket with a promotion that fits it, if there is any."""
    fitting = [(code, row.off) for code, row in draft.world.promotions.items() if row.off < basket.food]
    if not fitting:
        return basket
    code, off = draft.random.choice(fitting)
    expires, minimum = draft.random.choice(("2025-05-16", "2025-05-31")), f"{min(12, int(basket.food))}.00"
    draft.patch("promotions", code, expires=expires, minimum=minimum, members_only=False)
    return replace(basket, code=code, off=off)


def _conflicts(place: Restaurant, ok: bool) -> list[tuple[str, str, str]]:
    """Two dishes and an allergen that the second has not; the first has it unless `ok`."""
    menu = {key: dish for key, dish in place.menu.items() if _is_food(dish)}
    known = sorted({allergen for dish in menu.values() for allergen in dish.allergens})
    return [
        (first, second, allergen)
        for first, second in itertools.permutations(menu, 2)
        for allergen in known
        if (allergen not in menu[first].allergens) == ok and allergen not in menu[second].allergens
    ]


def _duels(draft: Draft) -> list[tuple[Basket, Basket]]:
    """The same dish of two restaurants near the customer, so many that both deliver, at different totals."""
    near = [key for key, place in draft.world.restaurants.items() if place.area == draft.customer.area]
    payment, found = draft.random.choice(draft.customer.payments), []
    for pair in itertools.combinations(near, 2):
        for choice in _common(*(draft.restaurant(name) for name in pair)):
            one, other = (_basket(draft, name, (choice,), payment) for name in pair)
            found += [(one, other)] if one.total != other.total else []
    return found


def _common(first: Restaurant, second: Restaurant) -> list[Choice]:
    """Dishes on both menus, so many of each that both deliver."""
    dishes = [key for key, dish in first.menu.items() if _is_food(dish) and key in second.menu]
    least = {key: max(place.minimum / place.menu[key].price for place in (first, second)) for key in dishes}
    return [Choice(item=key, quantity=math.ceil(quantity)) for key, quantity in least.items()]
