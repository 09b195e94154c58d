"""Requests to change a current order: cancel it, or change its address, dropoff, tip, items or promotion."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

from understudy.core.messages import Message
from understudy.domains.authoring.request import (
    CANCEL_TERMS,
    VAGUE_SHARE,
    Detail,
    Draw,
    add_detail,
    change_mind,
    extend,
    grant,
    plain_request,
    refuse,
    request,
    status_variants,
)
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.doordash.catalog import AREAS
from understudy.domains.doordash.policy_rules import CANCELLATION_FEE
from understudy.domains.doordash.state import Dish, Dropoff, Order, Status, parse_area
from understudy.domains.doordash.task_builder import DoordashOrderMention, DoordashTaskBuilder
from understudy.domains.doordash.world import PROMOTIONS, draw_address
from understudy.envs.dates import date_variants
from understudy.envs.gold import gold_call

_FREE = "free|no fee|without a fee|no charge|without charge|no cost"
_REMOVE = "remove|removes|removed|removing|removal|take|takes|taken|taking|drop|drops|dropped|dropping"
_ADD = "add|adds|added|adding|put|puts|putting"
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
_PAST, _COMING = ("2025-04-30", "2025-05-11", "2025-05-15"), ("2025-05-16", "2025-05-31", "2025-06-30")

ADDRESS = Detail("address", "address_vague", "new_address", "What is the new address?", _WHICH_ADDRESS)
TIP = Detail("tip", "tip_vague", "new_tip", "How much should the tip be?", _WHICH_TIP)


def cancel_order(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Cancel an order, free of charge or for a fee that some customers do not want to pay."""
    order, mention, fee = draw.entity, b.order_mention(draw), f"{CANCELLATION_FEE}"
    free_only = not draw.easy and b.draw_bool(0.4)
    goal = plain_request(b.phrase("cancel"), mention, CANCEL_TERMS)
    if free_only:
        goal = extend(goal, b.phrase("free_only"), _FREE)
    if not draw.grantable and free_only and b.draw_bool(0.6):
        b.set_status(order, "accepted")
        reason = f"Order {order.id} is accepted, so I cannot cancel it free of charge. The fee is {fee}."
        return refuse(b, goal, reason, "accepted", fee, easy=draw.easy)
    if not draw.grantable:
        return refuse_status(b, goal, draw, _PREPARED, "cancel it")
    free = free_only or b.draw_bool(0.6)
    b.set_status(order, "placed" if free else "accepted")
    proposal = f"cancel {mention.proposal_phrase} {'free of charge' if free else f'for a fee of {fee}'}"
    call = gold_call("cancel_order", order_id=order.id)
    return grant(goal, proposal, call, "The order has been cancelled.", terms=() if free else (fee,))


def change_address(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Change the address of an order, sometimes to another area."""
    order, mention, home = draw.entity, b.order_mention(draw), parse_area(draw.entity.address)
    outside, vague = not draw.grantable and b.draw_bool(0.5), not draw.easy and b.draw_bool(VAGUE_SHARE)
    area = b.rng.choice([other for other in AREAS if other != home]) if outside else home
    address = draw_address(b.rng, area)
    goal = request(b, ADDRESS, mention, vague, address.partition(",")[0], address=address)
    if not draw.grantable and not outside:
        return refuse_status(b, goal, draw, _GONE, "change its address")
    b.set_status(order, b.rng.choice((*_OPEN, "preparing")))
    if outside:
        reason = f"Order {order.id} can only be delivered in {home}, so I cannot send it to {area}."
        return refuse(b, goal, reason, home, easy=draw.easy)
    return _send(goal, mention, address)


def change_dropoff(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Change how an order is handed over."""
    order, mention = draw.entity, b.order_mention(draw)
    vague, dropoff = not draw.easy and b.draw_bool(VAGUE_SHARE), _other_dropoff(b, order)
    handed = b.phrase(f"handed.{dropoff}")
    text = b.phrase("dropoff_vague" if vague else f"dropoff.{dropoff}")
    goal = plain_request(text, mention, _DROPOFF_NAMES[dropoff])
    goal = add_detail(goal, handed, "How should it be handed over?", _WHICH_DROPOFF, vague=vague)
    if not draw.grantable:
        return refuse_status(b, goal, draw, _OVER, "change how it is handed over")
    b.set_status(order, b.rng.choice((*_OPEN, "preparing", "picked up")))
    return _hand_over(goal, mention, dropoff)


def change_tip(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Raise a tip, or lower it while that is possible."""
    order, mention = draw.entity, b.order_mention(draw)
    vague = not draw.easy and b.draw_bool(VAGUE_SHARE)
    lower = b.draw_bool(0.3 if draw.grantable else 0.6)
    low, high = _tips(b)
    before, tip = (high, low) if lower else (low, high)
    b.patch("orders", order.id, tip=before)
    goal = request(b, TIP, mention, vague, "tip", tip, tip=tip)
    if not draw.grantable and not lower:
        return refuse_status(b, goal, draw, ("cancelled",), "change its tip")
    if not draw.grantable:
        since = b.set_delivered(order, b.draw_minutes_ago(0, 6))
        reason = f"Order {order.id} was delivered at {since}, so I cannot lower its tip."
        when = f"{since[11:]}|{date_variants(since[:10])}"
        return refuse(b, goal, reason, when, easy=draw.easy)
    if lower and b.draw_bool(0.5):
        b.set_delivered(order, b.rng.randint(5, 55))
    else:
        b.set_status(order, b.rng.choice(("accepted", "picked up") if lower else ("accepted", "delivered")))
    return _give_tip(goal, mention, tip)


def change_items(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Remove a dish from an order, or add one."""
    if len(draw.entity.items) > 1 and b.draw_bool(0.5):
        return _remove(b, draw)
    return _add(b, draw)


def _remove(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    order, mention = draw.entity, b.order_mention(draw, itemized=True)
    line = b.rng.choice(order.items)
    goal = plain_request(b.phrase("remove", item=line.name), mention, line.name, _REMOVE)
    if not draw.grantable and b.draw_bool(0.6):
        return refuse_status(b, goal, draw, _PREPARED, "change its items")
    _no_promotion(b, order)
    b.set_status(order, b.rng.choice(_OPEN))
    left = int(order.food - line.price)
    minimum = f"{min(left, 8) if draw.grantable else left + b.rng.randint(1, 4)}.00"
    b.patch("restaurants", order.restaurant, minimum=minimum)
    reads = [gold_call("get_restaurant", name=order.restaurant)]
    if not draw.grantable:
        reason = f"The minimum order at {order.restaurant} is {minimum}, so I cannot remove the {line.name}."
        return refuse(b, goal, reason, minimum, easy=draw.easy, reads=reads)
    call = gold_call("change_items", order_id=order.id, remove=[line.name])
    proposal = f"remove the {line.name} from {mention.proposal_phrase}"
    return grant(goal, proposal, call, "The order has been changed.", reads)


def _add(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    order, mention, (name, dish) = draw.entity, b.order_mention(draw), _new_dish(b, draw.entity)
    price = f"{dish.price}"
    goal = plain_request(b.phrase("add", item=name), mention, name, _ADD, price)
    if not draw.grantable and b.draw_bool(0.5):
        return refuse_status(b, goal, draw, _PREPARED, "change its items")
    b.set_status(order, b.rng.choice(_OPEN))
    b.patch("restaurants", order.restaurant, menu={name: {"sold_out": not draw.grantable}})
    reads = [gold_call("get_restaurant", name=order.restaurant)]
    if not draw.grantable:
        reason = f"{order.restaurant} is sold out of {name}, so I cannot add it."
        return refuse(b, goal, reason, "sold out|sold_out", easy=draw.easy, reads=reads)
    call = gold_call("change_items", order_id=order.id, add=[{"item": name}])
    proposal = f"add {name} for {price} to {mention.proposal_phrase}"
    return grant(goal, proposal, call, "The order has been changed.", reads, outputs=(price,))


def apply_promotion(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Apply a promotion code. It may be expired, for members only, below its minimum, or not combinable."""
    order, mention = draw.entity, b.order_mention(draw)
    why = b.rng.choice(("status", "expired", "members", "minimum", "stacked"))
    why, code = "" if draw.grantable else why, b.rng.choice(list(PROMOTIONS))
    goal = plain_request(b.phrase("promotion", code=code), mention, code, _PROMOTION)
    if why == "status":
        return refuse_status(b, goal, draw, _PREPARED, "apply a promotion")
    b.set_status(order, b.rng.choice(_OPEN))
    if why == "stacked":
        first = b.rng.choice([other for other in PROMOTIONS if other != code])
        b.patch("orders", order.id, promotion=first, discount=f"{b.world.promotions[first].off}")
        reason = f"Order {order.id} already has the promotion {first}, so I cannot apply {code} as well."
        return refuse(b, goal, reason, first, easy=draw.easy)
    _no_promotion(b, order)
    reason, output, reads = _terms(b, order, code, why)
    if why:
        reason = f"{reason}, so I cannot apply it to order {order.id}."
        return refuse(b, goal, reason, output, easy=draw.easy, reads=reads)
    off = b.world.promotions[code].off
    call = gold_call("apply_promotion", order_id=order.id, code=code)
    proposal = f"apply the promotion {code} to {mention.proposal_phrase}"
    return grant(goal, proposal, call, f"You save {off}.", reads, outputs=(f"{off}",))


def _terms(b: DoordashTaskBuilder, order: Order, code: str, why: str) -> tuple[str, str, tuple[Message, ...]]:
    """Set the terms of a code. Return why they forbid it, the fact to tell, and the lookups that show it."""
    expires = b.rng.choice(_PAST if why == "expired" else _COMING)
    minimum = int(order.food) + (b.rng.randint(1, 6) if why == "minimum" else -b.rng.randint(0, 5))
    members = why == "members" or (why != "minimum" and b.draw_bool(0.3))
    b.patch("promotions", code, expires=expires, minimum=f"{minimum}.00", members_only=members)
    if members:
        b.set_account(member=why != "members")
    reasons = {
        "expired": (f"{code} expired on {expires}", date_variants(expires)),
        "members": (f"{code} is for members only", "members only|members_only|members"),
        "minimum": (f"{code} has a minimum of {minimum}.00", f"{minimum}.00"),
    }
    reads = (gold_call("get_promotion", code=code), *[gold_call("get_customer")] * (members and why != "expired"))
    return *reasons.get(why, ("", "")), reads


def correct_address(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Give one address, then another one when asked to confirm."""
    order, mention, home = draw.entity, b.order_mention(draw), parse_area(draw.entity.address)
    first, second = (draw_address(b.rng, home) for _ in range(2))
    b.set_status(order, b.rng.choice((*_OPEN, "preparing")))
    goal = plain_request(b.phrase("address", address=first), mention, second.partition(",")[0])
    meant = f"{b.phrase('change_of_mind')} {b.phrase('address', address=second)}"
    return _send(change_mind(goal, f"send {mention.proposal_phrase} to {first}", meant), mention, second)


def correct_tip(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Give one tip, then another one when asked to confirm."""
    order, mention, (tip, first) = draw.entity, b.order_mention(draw), _tips(b)
    b.patch("orders", order.id, tip="0.00")
    b.set_status(order, b.rng.choice(("preparing", "picked up")))
    goal = plain_request(b.phrase("tip", tip=first), mention, "tip", tip)
    meant = f"{b.phrase('change_of_mind')} {b.phrase('tip', tip=tip)}"
    return _give_tip(change_mind(goal, f"change the tip of {mention.proposal_phrase} to {first}", meant), mention, tip)


def switch_cancel_to_dropoff(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask to cancel an order, then to change its dropoff instead when asked to confirm."""
    mention, dropoff = b.order_mention(draw), _other_dropoff(b, draw.entity)
    b.set_status(draw.entity, "placed")
    goal, keep = plain_request(b.phrase("cancel"), mention, _DROPOFF_NAMES[dropoff]), b.phrase("keep_it")
    meant = f"{b.phrase('change_of_mind')} {keep} {b.phrase(f'dropoff.{dropoff}')}"
    goal = change_mind(goal, f"cancel {mention.proposal_phrase} free of charge", meant)
    return _hand_over(goal, mention, dropoff)


def refuse_status(
    b: DoordashTaskBuilder, goal: GoalSpec, draw: Draw[Order], statuses: Sequence[Status], action: str
) -> GoalSpec:
    """Refuse a request because of the status of the order, which is drawn from `statuses`."""
    status = b.rng.choice(statuses)
    b.set_status(draw.entity, status)
    reason = f"The status of order {draw.entity.id} is {status}, so I cannot {action}."
    goal = replace(goal, gold_turns=())  # the status is known before any question for a detail
    return refuse(b, goal, reason, status_variants(status), easy=draw.easy)


def _send(goal: GoalSpec, mention: DoordashOrderMention, address: str) -> GoalSpec:
    call = gold_call("change_address", order_id=mention.order.id, address=address)
    return grant(goal, f"send {mention.proposal_phrase} to {address}", call, "The address has been changed.")


def _hand_over(goal: GoalSpec, mention: DoordashOrderMention, dropoff: Dropoff) -> GoalSpec:
    call = gold_call("change_dropoff", order_id=mention.order.id, dropoff=dropoff)
    proposal = f"change the dropoff of {mention.proposal_phrase} to: {dropoff}"
    return grant(goal, proposal, call, "The courier will see it.")


def _give_tip(goal: GoalSpec, mention: DoordashOrderMention, tip: str) -> GoalSpec:
    call = gold_call("change_tip", order_id=mention.order.id, tip=float(tip))
    return grant(goal, f"change the tip of {mention.proposal_phrase} to {tip}", call, "The tip has been changed.")


def _tips(b: DoordashTaskBuilder) -> tuple[str, str]:
    """Draw a lower and a higher tip."""
    low, high = sorted(b.rng.sample(range(1, 13), 2))
    return f"{low / 2:.2f}", f"{high / 2:.2f}"


def _other_dropoff(b: DoordashTaskBuilder, order: Order) -> Dropoff:
    choices: Sequence[Dropoff] = get_args(Dropoff)
    return b.rng.choice([dropoff for dropoff in choices if dropoff != order.dropoff])


def _no_promotion(b: DoordashTaskBuilder, order: Order) -> None:
    if order.promotion:
        b.patch("orders", order.id, promotion="", discount="0.00")


def _new_dish(b: DoordashTaskBuilder, order: Order) -> tuple[str, Dish]:
    """Draw a dish of the order's restaurant that is not in the order."""
    menu = b.world.restaurants[order.restaurant].menu
    taken = {line.name for line in order.items}
    return b.rng.choice([(k, d) for k, d in menu.items() if k not in taken and not d.alcohol])
