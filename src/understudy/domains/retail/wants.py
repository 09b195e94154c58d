"""The requests that a customer can have, one function each: what is said, what is drawn, and what a perfect agent does.

`ok` says whether the request can be granted. If not, the opening looks the same; only reading the order tells.
"""

import functools
from dataclasses import replace
from decimal import Decimal
from typing import Protocol, get_args

from understudy.domains.callers import Knowledge
from understudy.domains.drafts import Want, call, change, propose, say
from understudy.domains.people import draw_address
from understudy.domains.retail import phrases
from understudy.domains.retail.drafts import Draft, Ref
from understudy.domains.retail.state import Line, Order, Reason, RetailState, Status
from understudy.domains.talks import MIND
from understudy.messages import Message
from understudy.tasks import Fact

_CANCEL = "cancel|cancelled|canceled|cancelling|canceling|cancellation"
_RETURN = "return|returned|returning|returns|refund"
_SWAP = "exchange|exchanged|exchanging|change|changed|replace|replaced|swap|modify|switch"
_GONE = "available|unavailable|in stock|out of stock"
_WHY, _WHICH_ITEM = ("why", "reason"), ("which item", "what item", "which product", "what would you like to return")
_WHICH_ADDRESS = ("new address", "which address", "what address", "what is the address", "the address", "where")
_WHICH_OPTION = ("which one", "which variant", "which option", "size", "color", "colour", "instead")
_WHICH_PAYMENT = ("how do you want", "which payment", "what payment", "payment method", "pay with", "like to pay")


class MakeWant(Protocol):
    """Draws one request about an order."""

    def __call__(self, draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
        """`easy` leaves nothing about the request itself unsaid."""


def cancel(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Cancel an order."""
    ref = draft.ref(order, knows)
    reason = draft.random.choice(get_args(Reason))
    why, told = draft.pick(phrases.WHY[reason]), easy or draft.likely(0.5)
    text = draft.pick(phrases.CANCEL) + (f" {why}" if told else "")
    want = Want(text, ref, names=(*ref.names, _CANCEL), facts=(Fact(says=why, cues=_WHY, opened=told),))
    if not ok:
        return _refused(draft, want, order, "pending", "cancel it", easy)
    draft.in_status(order, "pending")
    asks = () if told else (say("Why do you want to cancel it?"),)
    do = call("cancel_order", order_id=order.id, reason=reason)
    return replace(want, turns=asks + change(f"cancel {ref.named}, reason: {reason}", do, "The order is cancelled."))


def give_back(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Return one item or two; sometimes to a gift card, sometimes without saying which item."""
    ref = draft.ref(order, knows, itemized=True)
    lines = _some(draft, order, ref.item, 1 if easy else 2)
    item = " and the ".join(line.name for line in lines)
    vague = not easy and ref.by_number and draft.likely(0.3)
    text = draft.pick(phrases.RETURN_VAGUE) if vague else draft.pick(phrases.RETURN, item=item)
    facts = (Fact(says=f"The {item}.", cues=_WHICH_ITEM, opened=not vague),)
    want = Want(text, ref, names=(*ref.names, _RETURN, *(line.name for line in lines)), facts=facts)
    if not ok:
        return _refused(draft, want, order, "delivered", "return anything", easy)
    draft.in_status(order, "delivered")
    asks = (say("Which item is it?"),) if vague else ()
    gift = "" if easy or draft.likely(0.5) else _payment(draft, "gift", order.payment)
    arguments = {"order_id": order.id, "item_ids": [line.id for line in lines]}
    proposal, done = f"return the {item} of order {order.id}", "The return is open."
    if not gift:
        return replace(want, turns=asks + change(proposal, call("return_items", **arguments), done))
    do = call("return_items", **arguments, refund_to=gift)
    turns = (*asks, call("get_user"), *change(f"{proposal} and refund your gift card {gift}", do, done))
    text = f"{text} The refund should go to my gift card."
    return replace(want, text=text, turns=turns, names=(*want.names, f"gift card|{gift}"))


def exchange(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Exchange an item of a delivered order for another variant."""
    return _swap(draft, order, knows, ok, easy, pending=False)


def change_item(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Change an item of a pending order to another variant."""
    return _swap(draft, order, knows, ok, easy, pending=True)


def _swap(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool, *, pending: bool) -> Want:
    ref = draft.ref(order, knows, itemized=True)
    verb, into, status, tool = _SWAPS[pending]
    vague, gone = not easy and draft.likely(0.3), not ok and draft.likely(0.4)
    item, option = _other_variant(draft, ref.item)
    openings = phrases.OTHER_VAGUE if vague else phrases.CHANGE_ITEM if pending else phrases.EXCHANGE
    text = draft.pick(openings, item=ref.item.name, option=option)
    facts = (Fact(says=f"The {option} one.", cues=_WHICH_OPTION, opened=not vague),)
    want = Want(text, ref, names=(*ref.names, _SWAP, *option.split()), facts=facts)
    if not ok and not gone:
        return _refused(draft, want, order, status, f"{verb} anything", easy)
    draft.in_status(order, status)
    draft.patch("products", ref.item.name, variants={item: {"available": not gone}})
    asks = (say("Which one do you want instead?"),) if vague else ()
    reads = (*asks, call("get_product", name=ref.item.name))
    if gone:
        refusal = say(f"The {option} {ref.item.name} is not available, so I cannot {verb} anything.")
        return replace(want, turns=(*reads, refusal), outputs=(_GONE,))
    payer = "" if easy or draft.likely(0.5) else _payment(draft, "", order.payment)
    draft.holds(payer or order.payment, "200.00")
    proposal = f"{verb} the {ref.item.option} {ref.item.name} of order {order.id} {into} the {option} one"
    arguments = {"order_id": order.id, "item_ids": [ref.item.id], "new_item_ids": [item]}
    if not payer:
        return replace(want, turns=reads + change(proposal, call(tool, **arguments), f"The {verb} is made."))
    kind, do = _kind(payer), call(tool, **arguments, payment_id=payer)
    turns = (*reads, call("get_user"), *change(f"{proposal}, with your {kind} {payer}", do, f"The {verb} is made."))
    text = f"{text} Any difference goes to my {kind}."
    return replace(want, text=text, turns=turns, names=(*want.names, f"{kind}|{payer}"))


_SWAPS: dict[bool, tuple[str, str, Status, str]] = {
    True: ("change", "to", "pending", "change_items"),
    False: ("exchange", "for", "delivered", "exchange_items"),
}


def change_address(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Send an order elsewhere."""
    ref = draft.ref(order, knows)
    address, vague = draw_address(draft.random), not easy and draft.likely(0.3)
    text = draft.pick(phrases.ADDRESS_VAGUE if vague else phrases.ADDRESS, address=address)
    facts = (Fact(says=f"The new address is {address}.", cues=_WHICH_ADDRESS, opened=not vague),)
    want = Want(text, ref, names=(*ref.names, *_parts(address)), facts=facts)
    if not ok:
        return _refused(draft, want, order, "pending", "change its address", easy)
    draft.in_status(order, "pending")
    asks = (say("What is the new address?"),) if vague else ()
    return replace(want, turns=asks + _send(ref, address))


def change_profile(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Change the customer's own address; no order is concerned."""
    address, vague = draw_address(draft.random), not easy and draft.likely(0.5)
    text = draft.pick(phrases.PROFILE_VAGUE if vague else phrases.PROFILE, address=address)
    facts = (Fact(says=f"The new address is {address}.", cues=_WHICH_ADDRESS, opened=not vague),)
    asks = (say("What is the new address?"),) if vague else ()
    do = call("change_user_address", address=address)
    turns = asks + change(f"change the address of your account to {address}", do, "Your address is changed.")
    return Want(text, turns=turns, names=_parts(address), facts=facts)


def change_payment(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Pay an order in another way."""
    ref = draft.ref(order, knows)
    vague, target = not easy and draft.likely(0.3), _payment(draft, "", order.payment)
    short = not ok and target.startswith("gift")
    kind = _kind(target)
    text = draft.pick(phrases.PAYMENT_VAGUE if vague else phrases.PAYMENT, kind=kind)
    facts = (Fact(says=f"With my {kind}.", cues=_WHICH_PAYMENT, opened=not vague),)
    want = Want(text, ref, names=(*ref.names, f"{kind}|{target}"), facts=facts)
    if not ok and not short:
        return _refused(draft, want, order, "pending", "change its payment", easy)
    draft.in_status(order, "pending")
    asks = (say("How do you want to pay?"),) if vague else ()
    reads = (*asks, call("get_user"))
    balance = f"{order.total - Decimal(draft.random.randint(1, 9)):.2f}" if short else "250.00"
    draft.holds(target, balance)
    if short:
        refusal = say(f"Your gift card {target} holds {balance}, so I cannot pay the {order.total} with it.")
        return replace(want, turns=(*reads, refusal), outputs=(balance,))
    do = call("change_payment", order_id=order.id, payment_id=target)
    turns = reads + change(f"pay {ref.named} with your {kind} {target}", do, "The payment is changed.")
    return replace(want, turns=turns)


def price(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask what an item cost; or, not as easy, what the whole order cost."""
    if not easy and len(order.items) > 1:
        ref = draft.ref(order, knows)
        total = f"{order.total:.2f}"
        expression = " + ".join(str(line.price) for line in order.items)
        turns = (call("calculate", expression=expression), say(f"Order {order.id} was {total}."))
        return Want(draft.pick(phrases.TOTAL), ref, turns, "number", outputs=(total,))
    ref = draft.ref(order, knows, itemized=True)
    cost = str(ref.item.price)
    answer = say(f"The {ref.item.name} was {cost}.")
    return Want(draft.pick(phrases.PRICE, item=ref.item.name), ref, (answer,), "number", outputs=(cost,))


def status(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask about an order: its status; or, not as easy, where it goes or how it was paid."""
    ref = draft.ref(order, knows)
    asked = "status" if easy else draft.random.choice(("status", "address", "payment"))
    if asked == "address":
        answer = say(f"Order {order.id} goes to {order.address}.")
        return Want(draft.pick(phrases.WHERE_TO), ref, (answer,), "text", outputs=(order.address,))
    if asked == "payment":
        kind = _kind(order.payment)
        answer = say(f"Order {order.id} was paid with your {kind} {order.payment}.")
        return Want(draft.pick(phrases.PAID_WITH), ref, (answer,), "text", outputs=(f"{order.payment}|{kind}",))
    status: Status = draft.random.choice(("pending", "shipped", "delivered", "cancelled"))
    draft.in_status(order, status)
    return Want(
        draft.pick(phrases.STATUS), ref, (say(f"Order {order.id} is {status}."),), "text", outputs=(_said(status),)
    )


def stock(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask what a variant costs now; or, not as easy, which of some things is sold at all and what it costs at least."""
    item, cheapest = draft.random.choice(_cheapest(draft.world))
    if easy:
        offer = draft.random.choice(list(draft.world.products[item].variants.values()))
        text, cost = draft.pick(phrases.STOCK, item=item, option=offer.option), f"{offer.price}"
        answer = (call("get_product", name=item), say(f"The {offer.option} {item} costs {cost}."))
        return Want(text, turns=answer, kind="number", outputs=(cost,))
    things = ", ".join(draft.random.sample([item, *draft.random.sample(phrases.UNSOLD, 2)], 3))
    reads = (call("list_products"), call("get_product", name=item))
    turns = (*reads, say(f"We sell the {item}, the cheapest one costs {cheapest}."))
    return Want(draft.pick(phrases.SOLD, things=things), turns=turns, kind="number", outputs=(cheapest,))


def outside(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask for what no tool can do: the one case for a human agent."""
    text = draft.pick(phrases.OUTSIDE)
    turns = (call("transfer_to_human", summary=text), say("You are transferred to a human agent."))
    return Want(text, turns=turns, names=("human|transfer|transferred",))


def other_address(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Name one address, and another one when asked to confirm it."""
    ref, first = draft.ref(order, knows), draw_address(draft.random)
    text = draft.pick(phrases.ADDRESS, address=first)
    return _rather_send(draft, ref, Want(text, ref, (propose(f"send {ref.named} to {first}"),)), "")


def rather_keep(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Want an order cancelled, and sent elsewhere instead when asked to confirm that."""
    ref, reason = draft.ref(order, knows), draft.random.choice(get_args(Reason))
    text = f"{draft.pick(phrases.CANCEL)} {draft.pick(phrases.WHY[reason])}"
    return _rather_send(draft, ref, Want(text, ref, (propose(f"cancel {ref.named}, reason: {reason}"),)), " I keep it.")


def _rather_send(draft: Draft, ref: Ref, first: Want, link: str) -> Want:
    """After a first proposal, send the order to an address that was not named before."""
    draft.in_status(ref.order, "pending")
    address = draw_address(draft.random)
    meant = f"{draft.pick(MIND)}{link} {draft.pick(phrases.ADDRESS, address=address)}"
    names = (*ref.names, *_parts(address))
    return replace(first, turns=first.turns + _send(ref, address), names=names, meant=meant)


def _refused(draft: Draft, want: Want, order: Order, needed: Status, action: str, easy: bool) -> Want:
    """The request on an order whose status forbids it. Some customers contest the refusal."""
    status = draft.random.choice(_FORBIDS[needed])
    draft.in_status(order, status)
    refusal = say(f"Order {order.id} is {status}, so I cannot {action}.")
    contests = not easy and draft.likely(0.5)
    return replace(want, turns=(refusal,) * (1 + contests), outputs=(_said(status),), contests=contests)


_FORBIDS: dict[Status, tuple[Status, ...]] = {
    "pending": ("shipped", "delivered", "cancelled"),
    "delivered": ("pending", "shipped", "cancelled"),
}


def _said(status: Status) -> str:
    return "cancelled|canceled" if status == "cancelled" else status


def _send(ref: Ref, address: str) -> tuple[Message, ...]:
    do = call("change_address", order_id=ref.order.id, address=address)
    return change(f"send {ref.named} to {address}", do, "The address is changed.")


def _parts(address: str) -> tuple[str, ...]:
    """Street and zip: enough to recognize an address, however it is written."""
    return address.split(",")[0], address.split()[-1]


def _some(draft: Draft, order: Order, item: Line, most: int) -> list[Line]:
    """The item, and perhaps others of the order."""
    others = [line for line in order.items if line is not item]
    return [item, *others[: draft.random.randint(0, min(most - 1, len(others)))]]


def _other_variant(draft: Draft, line: Line) -> tuple[str, str]:
    variants = draft.world.products[line.name].variants
    item = draft.random.choice([key for key in variants if key != line.id])
    return item, variants[item].option


@functools.cache
def _cheapest(world: RetailState) -> list[tuple[str, str]]:
    """Products whose cheapest variant is available, so that nobody can argue which one that is, and its price."""
    offers = {name: min(product.variants.values(), key=lambda v: v.price) for name, product in world.products.items()}
    return [(name, f"{offer.price}") for name, offer in offers.items() if offer.available]


def _payment(draft: Draft, kind: str, current: str) -> str:
    """One of the customer's other ways to pay, of this kind, if there is any."""
    fitting = [key for key in draft.user.payments if key != current and key.startswith(kind)]
    return draft.random.choice(fitting) if fitting else ""


def _kind(payment_id: str) -> str:
    return phrases.KINDS[payment_id.partition("_")[0]]
