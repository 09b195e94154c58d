"""Requests to buy: an order in the customer's words, an earlier one again, and one that the menu has to decide."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from understudy.domains.doordash import phrases
from understudy.domains.doordash.drafts import Draft, Knowledge
from understudy.domains.doordash.state import Choice, Dish, Order, Restaurant, cost_of
from understudy.domains.doordash.wants import CUISINES, hour_said, kind, refused
from understudy.domains.doordash.world import PROMOTIONS
from understudy.domains.drafts import Want, call, change, say
from understudy.messages import Message
from understudy.tasks import Fact

_HOW = (
    "how do you want to pay",
    "how would you like to pay",
    "which payment",
    "what payment",
    "payment method",
    "pay with",
)


@dataclass(frozen=True)
class Basket:
    """What is to be ordered, and how it is paid."""

    restaurant: str
    choices: tuple[Choice, ...]
    payment: str
    tip: str = ""
    code: str = ""
    off: Decimal = Decimal(0)
    """What the promotion of the code takes off."""

    def listed(self) -> str:
        """The dishes in words."""
        return " and ".join(_worded(choice) for choice in self.choices)

    def summands(self, place: Restaurant, member: bool) -> list[Decimal]:
        """What the total is made of."""
        dishes = [choice.quantity * cost_of(place.menu[choice.item], choice.options) for choice in self.choices]
        extras = [Decimal(0) if member else place.delivery_fee, Decimal(self.tip or 0)]
        return [*dishes, *(amount for amount in extras if amount)]

    def total(self, place: Restaurant, member: bool) -> Decimal:
        """All that is to be paid."""
        return sum(self.summands(place, member), Decimal("0.00")) - self.off

    def names(self) -> tuple[str, ...]:
        """What a proposal has to name."""
        paid = "credit" if self.payment == "credit" else f"{self.payment}|{kind(self.payment)}"
        return (*(choice.item for choice in self.choices), self.restaurant, paid, *filter(None, (self.tip, self.code)))

    def order(self) -> Message:
        """The call that places it."""
        items = [choice.model_dump(mode="json", exclude_defaults=True) for choice in self.choices]
        extras: dict[str, Any] = {"tip": float(self.tip)} if self.tip else {}
        extras |= {"promotion": self.code} if self.code else {}
        return call("place_order", restaurant=self.restaurant, items=items, payment=self.payment, **extras)


_OBSTACLES = ("closed", "paused", "sold out", "minimum", "alcohol", "far", "credit")


def place(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Order some dishes of a restaurant."""
    why = "" if ok else draft.random.choice(_OBSTACLES)
    name, vague = _near(draft, far=why == "far"), not easy and draft.likely(0.3)
    drinks = why == "alcohol" or (ok and draft.likely(0.2))
    by_credit = why == "credit" or (ok and draft.likely(0.2))
    payment = "credit" if by_credit else draft.random.choice(draft.customer.payments)
    basket = Basket(name, _choices(draft, name, drinks, easy), payment, "" if easy else _tip(draft))
    basket = basket if easy or draft.likely(0.6) else _coded(draft, basket)
    how = draft.pick(phrases.PAY, kind=kind(payment))
    texts = (draft.pick(phrases.PLACE, items=basket.listed(), restaurant=name), *_extras(draft, basket))
    text = " ".join(texts if vague else (*texts, how))
    asks = (say("How do you want to pay?"),) if vague else ()
    facts = (Fact(says=how, cues=_HOW, opened=not vague),)
    return _bought(draft, Want(text, turns=asks, names=basket.names(), facts=facts), basket, why, easy)


def again(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Order the same as some time before."""
    ref, why = draft.ref(order, knows), "" if ok else draft.random.choice(("closed", "paused", "sold out"))
    choices = tuple(Choice(item=line.name, options=line.options, quantity=line.quantity) for line in order.items)
    basket = Basket(order.restaurant, choices, order.payment, "" if easy else _tip(draft))
    text = " ".join((draft.pick(phrases.AGAIN), *_extras(draft, basket), draft.pick(phrases.SAME_PAYMENT)))
    draft.in_status(order, "delivered")
    return _bought(draft, Want(text, ref, names=basket.names()), basket, why, easy)


def allergy(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Want a dish unless the menu lists an allergen for it, else another one."""
    name, payment = _near(draft), draft.random.choice(draft.customer.payments)
    first, second, allergen = draft.random.choice(_conflicts(draft, name, ok))
    basket = Basket(name, (Choice(item=first if ok else second),), payment)
    text = draft.pick(phrases.ALLERGY, first=first, second=second, allergen=allergen, restaurant=name)
    want = Want(f"{text} {draft.pick(phrases.PAY, kind=kind(payment))}", names=basket.names())
    _possible(draft, basket)
    told = f"The menu lists {'no ' if ok else ''}{allergen} for the {first}. "
    return _paid(draft, want, basket, _reads(name), told=told)


def cheaper(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask which of the open restaurants has a dish for the least, delivery included; perhaps order it there."""
    choice, names = draft.random.choice(_duels(draft))
    payment, shut = draft.random.choice(draft.customer.payments), "" if ok else draft.random.choice(names)
    baskets = [Basket(name, (choice,), payment) for name in names]
    for basket in baskets:
        _possible(draft, basket)
    if shut:
        draft.patch("restaurants", shut, paused=True)
    opened = sorted((b for b in baskets if b.restaurant != shut), key=lambda b: _total(draft, b))
    reads = _comparison(draft, opened)
    words = {"items": _worded(choice), "cuisine": CUISINES[draft.restaurant(names[0]).cuisine]}
    if not easy and draft.likely(0.5):
        text = f"{draft.pick(phrases.ORDER_CHEAPEST, **words)} {draft.pick(phrases.PAY, kind=kind(payment))}"
        return _paid(draft, Want(text, names=opened[0].names()), opened[0], reads, summed=True)
    total, name = f"{_total(draft, opened[0]):.2f}", opened[0].restaurant
    answer = say(f"{name} is the cheapest: {total} with delivery.")
    text = draft.pick(phrases.CHEAPEST, **words)
    return Want(text, turns=(*reads, answer), kind="number", outputs=(name, total))


def _bought(draft: Draft, want: Want, basket: Basket, why: str, easy: bool) -> Want:
    """The order is placed, unless something stands in its way."""
    _possible(draft, basket)
    reads = (*want.turns, *_reads(basket.restaurant))
    if not why:
        codes = (call("get_promotion", code=basket.code),) if basket.code else ()
        return _paid(draft, want, basket, (*reads, *codes))
    reason, output = _obstacle(draft, basket, why)
    return refused(draft, want, reads, f"{reason}, so I cannot place the order.", (output,), easy)


def _paid(
    draft: Draft, want: Want, basket: Basket, reads: Sequence[Message], told: str = "", summed: bool = False
) -> Want:
    """Sum up, propose, place."""
    total = f"{_total(draft, basket):.2f}"
    sums = () if summed else _sums(draft, basket)
    extras = f" with a tip of {basket.tip}" * bool(basket.tip) + f" and the code {basket.code}" * bool(basket.code)
    paid = "your delivery credit" if basket.payment == "credit" else f"your {kind(basket.payment)} {basket.payment}"
    proposal = f"order {basket.listed()} from {basket.restaurant} for {total}{extras}, paid with {paid}"
    asked, *done = change(proposal, basket.order(), f"You pay {total}.")
    turns = (*reads, *sums, say(f"{told}{asked.content}"), *done)
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
        minimum = f"{_food(draft, basket) + draft.random.randint(1, 5):.2f}"
        draft.patch("restaurants", name, minimum=minimum)
        return f"The minimum of {name} is {minimum}", minimum
    if why == "alcohol":
        age = draft.random.choice(("under age", "not on file"))
        draft.account(age=age)
        return f"Alcohol is for customers of age, and your age is {age}", age
    if why == "far":
        area = draft.restaurant(name).area
        return f"{name} delivers in {area} only", area
    credit = max(Decimal(0), _total(draft, basket) - draft.random.randint(1, 9))
    draft.credit(credit)
    return f"Your credit is {credit:.2f}", f"{credit:.2f}"


def _possible(draft: Draft, basket: Basket) -> None:
    """Let nothing stand in the way of an order."""
    place, food = draft.restaurant(basket.restaurant), _food(draft, basket)
    menu = {choice.item: {"sold_out": False} for choice in basket.choices}
    minimum = f"{min(place.minimum, food):.2f}"
    draft.patch("restaurants", basket.restaurant, paused=False, minimum=minimum, menu=menu)
    if any(place.menu[choice.item].alcohol for choice in basket.choices):
        draft.account(age="of age")
    if basket.payment == "credit":
        draft.credit(_total(draft, basket) + draft.random.randint(0, 20))


def _reads(name: str) -> tuple[Message, ...]:
    return call("get_customer"), call("get_restaurant", name=name)


def _comparison(draft: Draft, baskets: Sequence[Basket]) -> tuple[Message, ...]:
    """Read the account, the restaurants and those that are open, and sum up."""
    cuisine = draft.restaurant(baskets[0].restaurant).cuisine
    reads = (call("get_customer"), call("search_restaurants", cuisine=cuisine))
    menus = (call("get_restaurant", name=basket.restaurant) for basket in baskets)
    return (*reads, *menus, *(turn for basket in baskets for turn in _sums(draft, basket)))


def _sums(draft: Draft, basket: Basket) -> tuple[Message, ...]:
    """The calculation of the total, if there is anything to add up."""
    summands = basket.summands(draft.restaurant(basket.restaurant), draft.customer.member)
    if len(summands) == 1 and not basket.off:
        return ()
    return (call("calculate", expression=" + ".join(map(str, summands)) + f" - {basket.off}" * bool(basket.off)),)


def _total(draft: Draft, basket: Basket) -> Decimal:
    return basket.total(draft.restaurant(basket.restaurant), draft.customer.member)


def _food(draft: Draft, basket: Basket) -> Decimal:
    place = draft.restaurant(basket.restaurant)
    return sum((c.quantity * cost_of(place.menu[c.item], c.options) for c in basket.choices), Decimal("0.00"))


def _near(draft: Draft, far: bool = False) -> str:
    """A restaurant in the customer's area, or far from it; none that an order of theirs is from."""
    area, known = draft.customer.area, {order.restaurant for order in draft.orders()}
    places = [key for key, place in draft.world.restaurants.items() if (place.area != area) == far and key not in known]
    return draft.random.choice(places)


def _choices(draft: Draft, name: str, drinks: bool, easy: bool) -> tuple[Choice, ...]:
    """One dish or two, one of them alcohol if the customer `drinks`."""
    menu = draft.restaurant(name).menu
    food = draft.random.sample([key for key, dish in menu.items() if not dish.alcohol], 1 if easy else 2)
    alcohol = [key for key, dish in menu.items() if dish.alcohol]
    names = (food[0], *alcohol) if drinks else food[: draft.random.randint(1, 2)]
    return tuple(_choice(draft, key, menu[key], easy) for key in names)


def _choice(draft: Draft, name: str, dish: Dish, easy: bool) -> Choice:
    options = (draft.random.choice(list(dish.options)),) if dish.options and not easy and draft.likely(0.4) else ()
    return Choice(item=name, options=options, quantity=1 if draft.likely(0.7) else 2)


def _tip(draft: Draft) -> str:
    return draft.random.choice(("", "", "1.00", "2.00", "2.50", "4.00"))


def _extras(draft: Draft, basket: Basket) -> tuple[str, ...]:
    """What the customer says of tip and promotion."""
    tip = [draft.pick(phrases.WITH_TIP, tip=basket.tip)] if basket.tip else []
    return (*tip, *([draft.pick(phrases.WITH_CODE, code=basket.code)] if basket.code else []))


def _coded(draft: Draft, basket: Basket) -> Basket:
    """The basket with a promotion that fits it."""
    code, food = draft.random.choice(list(PROMOTIONS)), _food(draft, basket)
    expires, minimum = draft.random.choice(("2025-05-16", "2025-05-31")), f"{min(food, Decimal(12)):.2f}"
    draft.patch("promotions", code, expires=expires, minimum=minimum, members_only=False)
    return replace(basket, code=code, off=draft.world.promotions[code].off)


def _worded(choice: Choice) -> str:
    """A choice in words, like 2x Margherita (large)."""
    count = f"{choice.quantity}x " if choice.quantity > 1 else ""
    return f"{count}{choice.item}" + (f" ({', '.join(choice.options)})" if choice.options else "")


def _conflicts(draft: Draft, name: str, ok: bool) -> list[tuple[str, str, str]]:
    """Two dishes and an allergen that the second has not; the first has it unless `ok`."""
    menu = {key: dish for key, dish in draft.restaurant(name).menu.items() if dish.allergens and not dish.alcohol}
    known = sorted({allergen for dish in menu.values() for allergen in dish.allergens})
    return [
        (first, second, allergen)
        for first, second in itertools.permutations(menu, 2)
        for allergen in known
        if (allergen not in menu[first].allergens) == ok and allergen not in menu[second].allergens
    ]


def _duels(draft: Draft) -> list[tuple[Choice, tuple[str, str]]]:
    """Dishes that two restaurants near the customer have, so many that both deliver, at different totals."""
    area, places = draft.customer.area, draft.world.restaurants
    near = sorted((key for key, place in places.items() if place.area == area), key=lambda key: places[key].cuisine)
    pairs = [(near[i], near[i + 1]) for i in range(0, len(near), 2)]
    drawn = [(choice, pair) for pair in pairs for choice in _shared(*(places[key] for key in pair))]
    return [
        (choice, pair)
        for choice, pair in drawn
        if len({_total(draft, Basket(name, (choice,), "")) for name in pair}) == len(pair)
    ]


def _shared(first: Restaurant, second: Restaurant) -> list[Choice]:
    """Dishes on both menus, so many of each that both deliver."""
    dishes = [key for key, dish in first.menu.items() if dish.allergens and not dish.alcohol and key in second.menu]
    least = {key: max(place.minimum / place.menu[key].price for place in (first, second)) for key in dishes}
    return [Choice(item=key, quantity=math.ceil(quantity)) for key, quantity in least.items()]
