"""Requests to change an order that is underway: to cancel it, send it elsewhere, or change what is in it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

from understudy.domains.callers import Knowledge
from understudy.domains.days import any_day
from understudy.domains.doordash import phrases
from understudy.domains.doordash.dishes import AREAS
from understudy.domains.doordash.drafts import Draft, Ref
from understudy.domains.doordash.pricing import CANCELLATION_FEE
from understudy.domains.doordash.state import Dish, Dropoff, Order, Status, area_of
from understudy.domains.doordash.wants import refused, too_late
from understudy.domains.doordash.world import PROMOTIONS, draw_address
from understudy.domains.drafts import Want, call, change, propose, say
from understudy.domains.talks import MIND
from understudy.messages import Message
from understudy.tasks import Fact

_CANCEL = "cancel|cancelled|canceled|cancelling|canceling|cancellation"
_FREE = "free|no fee|without a fee|no charge|without charge|no cost"
_REMOVE, _ADD = "remove|take|removing|taking|drop", "add|adding|put"
_PROMOTION = "promotion|code|discount"
_DROPOFF_NAMES: Mapping[Dropoff, str] = {
    "hand it to me": "hand|handed|in person",
    "leave at the door": "door",
    "leave with reception": "reception",
    "meet outside": "outside",
}
_WHICH_ADDRESS = ("new address", "which address", "what address", "what is the address", "where")
_WHICH_DROPOFF = ("handed over", "hand it over", "hand over", "dropoff", "drop-off", "instructions", "how should")
_WHICH_TIP = ("how much", "what tip", "which tip", "new tip")

_OPEN: Sequence[Status] = ("placed", "accepted")
_PREPARED: Sequence[Status] = ("preparing", "picked up", "delivered", "cancelled")
_GONE: Sequence[Status] = ("picked up", "delivered", "cancelled")
_OVER: Sequence[Status] = ("delivered", "cancelled")


def cancel(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Cancel an order; free, or for a fee that some customers do not want to pay."""
    ref, free_only = draft.ref(order, knows), not easy and draft.likely(0.4)
    text = draft.pick(phrases.CANCEL) + (f" {draft.pick(phrases.FREE_ONLY)}" if free_only else "")
    want = Want(text, ref, names=(*ref.names, _CANCEL))
    fee = f"{CANCELLATION_FEE}"
    if free_only:
        want = replace(want, names=(*want.names, _FREE))
        if not ok and draft.likely(0.6):
            draft.in_status(order, "accepted")
            reason = f"Order {order.id} is accepted, so I cannot cancel it free of charge. The fee is {fee}."
            return refused(draft, want, (), reason, ("accepted", fee), easy)
    if not ok:
        return too_late(draft, want, order, _PREPARED, "cancel it", easy)
    free = free_only or draft.likely(0.6)
    draft.in_status(order, "placed" if free else "accepted")
    proposal = f"cancel {ref.named} {'free of charge' if free else f'for a fee of {fee}'}"
    turns = change(proposal, call("cancel_order", order_id=order.id), "The order is cancelled.")
    return replace(want, turns=turns, names=want.names if free else (*want.names, fee))


def change_address(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Send an order elsewhere, perhaps out of its area."""
    ref, home = draft.ref(order, knows), area_of(order.address)
    outside, vague = not ok and draft.likely(0.5), not easy and draft.likely(0.3)
    area = draft.random.choice([other for other in AREAS if other != home]) if outside else home
    address = draw_address(draft.random, area)
    text = draft.pick(phrases.ADDRESS_VAGUE if vague else phrases.ADDRESS, address=address)
    facts = (Fact(says=f"The new address is {address}.", cues=_WHICH_ADDRESS, opened=not vague),)
    want = Want(text, ref, names=(*ref.names, address.partition(",")[0]), facts=facts)
    if not ok and not outside:
        return too_late(draft, want, order, _GONE, "change its address", easy)
    draft.in_status(order, draft.random.choice((*_OPEN, "preparing")))
    asks = (say("What is the new address?"),) if vague else ()
    if outside:
        reason = f"Order {order.id} can only be delivered in {home}, so I cannot send it to {area}."
        return refused(draft, want, asks, reason, (home,), easy)
    return replace(want, turns=asks + _send(ref, address))


def change_dropoff(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Change how an order is handed over."""
    ref, vague = draft.ref(order, knows), not easy and draft.likely(0.3)
    dropoff = _other_dropoff(draft, order)
    texts = phrases.DROPOFF_VAGUE if vague else phrases.DROPOFF[dropoff]
    facts = (Fact(says=phrases.HANDED[dropoff], cues=_WHICH_DROPOFF, opened=not vague),)
    want = Want(draft.pick(texts), ref, names=(*ref.names, _DROPOFF_NAMES[dropoff]), facts=facts)
    if not ok:
        return too_late(draft, want, order, _OVER, "change how it is handed over", easy)
    draft.in_status(order, draft.random.choice((*_OPEN, "preparing", "picked up")))
    asks = (say("How should it be handed over?"),) if vague else ()
    return replace(want, turns=asks + _hand_over(ref, dropoff))


def change_tip(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Raise a tip, or lower it while that is possible."""
    ref, vague = draft.ref(order, knows), not easy and draft.likely(0.3)
    lower = (not ok and draft.likely(0.6)) or (ok and draft.likely(0.3))
    low, high = _tips(draft)
    before, tip = (high, low) if lower else (low, high)
    draft.patch("orders", order.id, tip=before)
    text = draft.pick(phrases.TIP_VAGUE if vague else phrases.TIP, tip=tip)
    facts = (Fact(says=f"Make it {tip}.", cues=_WHICH_TIP, opened=not vague),)
    want = Want(text, ref, names=(*ref.names, "tip", tip), facts=facts)
    asks = (say("How much should the tip be?"),) if vague else ()
    if not ok and not lower:
        return too_late(draft, want, order, ("cancelled",), "change its tip", easy)
    if not ok:
        since = draft.came(order, draft.past(0, 6))
        reason = f"Order {order.id} was delivered at {since}, so I cannot lower its tip."
        return refused(draft, want, asks, reason, (f"{since[11:]}|{any_day(since[:10])}",), easy)
    if lower and draft.likely(0.5):
        draft.came(order, draft.random.randint(5, 55))
    else:
        draft.in_status(order, draft.random.choice(("accepted", "picked up") if lower else ("accepted", "delivered")))
    return replace(want, turns=asks + _give_tip(ref, tip))


def change_items(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Take a dish out of an order, or put one in."""
    removes = len(order.items) > 1 and draft.likely(0.5)
    return _remove(draft, order, knows, ok, easy) if removes else _add(draft, order, knows, ok, easy)


def _remove(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    ref, line = draft.ref(order, knows, itemized=True), draft.random.choice(order.items)
    want = Want(draft.pick(phrases.REMOVE, item=line.name), ref, names=(*ref.names, line.name, _REMOVE))
    if not ok and draft.likely(0.6):
        return too_late(draft, want, order, _PREPARED, "change its items", easy)
    _no_promotion(draft, order)
    draft.in_status(order, draft.random.choice(_OPEN))
    left = int(order.food - line.price)
    minimum = f"{min(left, 8) if ok else left + draft.random.randint(1, 4)}.00"
    draft.patch("restaurants", order.restaurant, minimum=minimum)
    reads = (call("get_restaurant", name=order.restaurant),)
    if not ok:
        reason = f"The minimum of {order.restaurant} is {minimum}, so I cannot remove the {line.name}."
        return refused(draft, want, reads, reason, (minimum,), easy)
    do = call("change_items", order_id=order.id, remove=[line.name])
    return replace(want, turns=reads + change(f"remove the {line.name} from {ref.named}", do, "The order is changed."))


def _add(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    ref, (name, dish) = draft.ref(order, knows), _new_dish(draft, order)
    text = draft.pick(phrases.ADD, item=name)
    want = Want(text, ref, names=(*ref.names, name, _ADD, f"{dish.price}"), outputs=(f"{dish.price}",))
    if not ok and draft.likely(0.5):
        return too_late(draft, want, order, _PREPARED, "change its items", easy)
    draft.in_status(order, draft.random.choice(_OPEN))
    draft.patch("restaurants", order.restaurant, menu={name: {"sold_out": not ok}})
    reads = (call("get_restaurant", name=order.restaurant),)
    if not ok:
        reason = f"{order.restaurant} is sold out of {name}, so I cannot add that."
        return refused(draft, want, reads, reason, ("sold out|sold_out",), easy)
    do = call("change_items", order_id=order.id, add=[{"item": name}])
    turns = reads + change(f"add {name} for {dish.price} to {ref.named}", do, "The order is changed.")
    return replace(want, turns=turns)


def apply_promotion(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Use a promotion code on an order; it may have expired, be for members, need more, or meet another one."""
    ref, why = draft.ref(order, knows), draft.random.choice(("status", "expired", "members", "minimum", "stacked"))
    why, code = "" if ok else why, draft.random.choice(list(PROMOTIONS))
    want = Want(draft.pick(phrases.PROMOTION, code=code), ref, names=(*ref.names, code, _PROMOTION))
    if why == "status":
        return too_late(draft, want, order, _PREPARED, "apply a promotion", easy)
    draft.in_status(order, draft.random.choice(_OPEN))
    if why == "stacked":
        first = draft.random.choice([other for other in PROMOTIONS if other != code])
        draft.patch("orders", order.id, promotion=first, discount=f"{draft.world.promotions[first].off}")
        reason = f"Order {order.id} has the promotion {first}, and two do not stack, so I cannot apply {code}."
        return refused(draft, want, (), reason, (first,), easy)
    _no_promotion(draft, order)
    reason, output, reads = _terms(draft, order, code, why)
    if why:
        return refused(draft, want, reads, f"{reason}, so I cannot apply it to order {order.id}.", (output,), easy)
    off = draft.world.promotions[code].off
    do = call("apply_promotion", order_id=order.id, code=code)
    turns = reads + change(f"apply the promotion {code} to {ref.named}", do, f"You save {off}.")
    return replace(want, turns=turns, outputs=(f"{off}",))


def _terms(draft: Draft, order: Order, code: str, why: str) -> tuple[str, str, tuple[Message, ...]]:
    """Set the terms of a code: why they forbid it, the fact in that which has to be told, and what tells it."""
    expires = draft.random.choice(_PAST if why == "expired" else _COMING)
    minimum = int(order.food) + (draft.random.randint(1, 6) if why == "minimum" else -draft.random.randint(0, 5))
    members = why == "members" or (why != "minimum" and draft.likely(0.3))
    draft.patch("promotions", code, expires=expires, minimum=f"{minimum}.00", members_only=members)
    if members:
        draft.account(member=why != "members")
    reasons = {
        "expired": (f"{code} expired on {expires}", any_day(expires)),
        "members": (f"{code} is for members only", "members only|members_only|members"),
        "minimum": (f"{code} has a minimum of {minimum}.00", f"{minimum}.00"),
    }
    reads = (call("get_promotion", code=code), *[call("get_customer")] * (members and why != "expired"))
    return *reasons.get(why, ("", "")), reads


_PAST, _COMING = ("2025-04-30", "2025-05-11", "2025-05-15"), ("2025-05-16", "2025-05-31", "2025-06-30")


def other_address(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Name one address, and another one when asked to confirm it."""
    ref, home = draft.ref(order, knows), area_of(order.address)
    first, second = (draw_address(draft.random, home) for _ in range(2))
    draft.in_status(order, draft.random.choice((*_OPEN, "preparing")))
    proposed = Want(draft.pick(phrases.ADDRESS, address=first), ref, (propose(f"send {ref.named} to {first}"),))
    return _rather(draft, proposed, phrases.ADDRESS, _send(ref, second), second.partition(",")[0], address=second)


def other_tip(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Name one tip, and another one when asked to confirm it."""
    ref, (tip, first) = draft.ref(order, knows), _tips(draft)
    draft.patch("orders", order.id, tip="0.00")
    draft.in_status(order, draft.random.choice(("preparing", "picked up")))
    proposed = Want(draft.pick(phrases.TIP, tip=first), ref, (propose(f"change the tip of {ref.named} to {first}"),))
    return _rather(draft, proposed, phrases.TIP, _give_tip(ref, tip), "tip", tip, tip=tip)


def rather_keep(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Want an order cancelled, and only handed over in another way when asked to confirm that."""
    ref, dropoff = draft.ref(order, knows), _other_dropoff(draft, order)
    draft.in_status(order, "placed")
    proposed = Want(draft.pick(phrases.CANCEL), ref, (propose(f"cancel {ref.named} free of charge"),))
    texts = [f"I keep it. {text}" for text in phrases.DROPOFF[dropoff]]
    return _rather(draft, proposed, texts, _hand_over(ref, dropoff), _DROPOFF_NAMES[dropoff])


def _rather(
    draft: Draft, first: Want, texts: Sequence[str], turns: Sequence[Message], *names: str, **words: str
) -> Want:
    """After a first proposal, want something else of the same order."""
    assert isinstance(first.about, Ref)
    meant = f"{draft.pick(MIND)} {draft.pick(texts, **words)}"
    return replace(first, turns=(*first.turns, *turns), names=(*first.about.names, *names), meant=meant)


def _send(ref: Ref, address: str) -> tuple[Message, ...]:
    do = call("change_address", order_id=ref.order.id, address=address)
    return change(f"send {ref.named} to {address}", do, "The address is changed.")


def _hand_over(ref: Ref, dropoff: Dropoff) -> tuple[Message, ...]:
    do = call("change_dropoff", order_id=ref.order.id, dropoff=dropoff)
    return change(f"change the dropoff of {ref.named} to: {dropoff}", do, "The courier will see it.")


def _give_tip(ref: Ref, tip: str) -> tuple[Message, ...]:
    do = call("change_tip", order_id=ref.order.id, tip=float(tip))
    return change(f"change the tip of {ref.named} to {tip}", do, "The tip is changed.")


def _tips(draft: Draft) -> tuple[str, str]:
    """A lower and a higher tip."""
    low, high = sorted(draft.random.sample(range(1, 13), 2))
    return f"{low / 2:.2f}", f"{high / 2:.2f}"


def _other_dropoff(draft: Draft, order: Order) -> Dropoff:
    choices: Sequence[Dropoff] = get_args(Dropoff)
    return draft.random.choice([dropoff for dropoff in choices if dropoff != order.dropoff])


def _no_promotion(draft: Draft, order: Order) -> None:
    if order.promotion:
        draft.patch("orders", order.id, promotion="", discount="0.00")


def _new_dish(draft: Draft, order: Order) -> tuple[str, Dish]:
    """A dish of the order's restaurant that is not in the order."""
    menu = draft.restaurant(order.restaurant).menu
    taken = {line.name for line in order.items}
    return draft.random.choice([(k, d) for k, d in menu.items() if k not in taken and not d.alcohol])
