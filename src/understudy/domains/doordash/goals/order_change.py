"""Requests to change a current order: cancel it, or change its address, dropoff, tip, items or promotion."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change, gold_proposal, gold_text
from understudy.domains.doordash.catalog import AREAS
from understudy.domains.doordash.goals.base import add_refusal, add_status_refusal
from understudy.domains.doordash.policy_rules import CANCELLATION_FEE
from understudy.domains.doordash.state import Dish, Dropoff, Order, Status, parse_area
from understudy.domains.doordash.task_builder import DoordashOrderMention, DoordashTaskBuilder
from understudy.domains.doordash.world import PROMOTIONS, draw_address
from understudy.envs.dates import date_variants

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


def cancel_order(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Cancel an order, free of charge or for a fee that some customers do not want to pay."""
    mention, free_only = builder.order_mention(order, knowledge), not easy and builder.draw_bool(0.4)
    text = builder.phrase("cancel") + (f" {builder.phrase('free_only')}" if free_only else "")
    goal = GoalSpec(text, mention, required_terms=(*mention.required_terms, _CANCEL))
    fee = f"{CANCELLATION_FEE}"
    if free_only:
        goal = replace(goal, required_terms=(*goal.required_terms, _FREE))
        if not grantable and builder.draw_bool(0.6):
            builder.set_status(order, "accepted")
            reason = f"Order {order.id} is accepted, so I cannot cancel it free of charge. The fee is {fee}."
            return add_refusal(builder, goal, (), reason, ("accepted", fee), easy)
    if not grantable:
        return add_status_refusal(builder, goal, order, _PREPARED, "cancel it", easy)
    free = free_only or builder.draw_bool(0.6)
    builder.set_status(order, "placed" if free else "accepted")
    proposal = f"cancel {mention.proposal_phrase} {'free of charge' if free else f'for a fee of {fee}'}"
    turns = gold_change(proposal, gold_call("cancel_order", order_id=order.id), "The order has been cancelled.")
    return replace(goal, gold_turns=turns, required_terms=goal.required_terms if free else (*goal.required_terms, fee))


def change_address(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Change the address of an order, sometimes to another area."""
    mention, home = builder.order_mention(order, knowledge), parse_area(order.address)
    outside, vague = not grantable and builder.draw_bool(0.5), not easy and builder.draw_bool(0.3)
    area = builder.rng.choice([other for other in AREAS if other != home]) if outside else home
    address = draw_address(builder.rng, area)
    text = builder.phrase("address_vague" if vague else "address", address=address)
    facts = (
        Fact(
            text=builder.phrase("new_address", address=address),
            keywords=_WHICH_ADDRESS,
            in_opening=not vague,
        ),
    )
    goal = GoalSpec(text, mention, required_terms=(*mention.required_terms, address.partition(",")[0]), facts=facts)
    if not grantable and not outside:
        return add_status_refusal(builder, goal, order, _GONE, "change its address", easy)
    builder.set_status(order, builder.rng.choice((*_OPEN, "preparing")))
    asks = (gold_text("What is the new address?"),) if vague else ()
    if outside:
        reason = f"Order {order.id} can only be delivered in {home}, so I cannot send it to {area}."
        return add_refusal(builder, goal, asks, reason, (home,), easy)
    return replace(goal, gold_turns=asks + _send(mention, address))


def change_dropoff(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Change how an order is handed over."""
    mention, vague = builder.order_mention(order, knowledge), not easy and builder.draw_bool(0.3)
    dropoff = _other_dropoff(builder, order)
    facts = (Fact(text=builder.phrase(f"handed.{dropoff}"), keywords=_WHICH_DROPOFF, in_opening=not vague),)
    goal = GoalSpec(
        builder.phrase("dropoff_vague" if vague else f"dropoff.{dropoff}"),
        mention,
        required_terms=(*mention.required_terms, _DROPOFF_NAMES[dropoff]),
        facts=facts,
    )
    if not grantable:
        return add_status_refusal(builder, goal, order, _OVER, "change how it is handed over", easy)
    builder.set_status(order, builder.rng.choice((*_OPEN, "preparing", "picked up")))
    asks = (gold_text("How should it be handed over?"),) if vague else ()
    return replace(goal, gold_turns=asks + _hand_over(mention, dropoff))


def change_tip(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Raise a tip, or lower it while that is possible."""
    mention, vague = builder.order_mention(order, knowledge), not easy and builder.draw_bool(0.3)
    lower = (not grantable and builder.draw_bool(0.6)) or (grantable and builder.draw_bool(0.3))
    low, high = _tips(builder)
    before, tip = (high, low) if lower else (low, high)
    builder.patch("orders", order.id, tip=before)
    text = builder.phrase("tip_vague" if vague else "tip", tip=tip)
    facts = (Fact(text=builder.phrase("new_tip", tip=tip), keywords=_WHICH_TIP, in_opening=not vague),)
    goal = GoalSpec(text, mention, required_terms=(*mention.required_terms, "tip", tip), facts=facts)
    asks = (gold_text("How much should the tip be?"),) if vague else ()
    if not grantable and not lower:
        return add_status_refusal(builder, goal, order, ("cancelled",), "change its tip", easy)
    if not grantable:
        since = builder.set_delivered(order, builder.draw_minutes_ago(0, 6))
        reason = f"Order {order.id} was delivered at {since}, so I cannot lower its tip."
        return add_refusal(builder, goal, asks, reason, (f"{since[11:]}|{date_variants(since[:10])}",), easy)
    if lower and builder.draw_bool(0.5):
        builder.set_delivered(order, builder.rng.randint(5, 55))
    else:
        builder.set_status(order, builder.rng.choice(("accepted", "picked up") if lower else ("accepted", "delivered")))
    return replace(goal, gold_turns=asks + _give_tip(mention, tip))


def change_items(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Remove a dish from an order, or add one."""
    removes = len(order.items) > 1 and builder.draw_bool(0.5)
    return (
        _remove(builder, order, knowledge, grantable, easy)
        if removes
        else _add(builder, order, knowledge, grantable, easy)
    )


def _remove(builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool) -> GoalSpec:
    mention, line = builder.order_mention(order, knowledge, itemized=True), builder.rng.choice(order.items)
    goal = GoalSpec(
        builder.phrase("remove", item=line.name),
        mention,
        required_terms=(*mention.required_terms, line.name, _REMOVE),
    )
    if not grantable and builder.draw_bool(0.6):
        return add_status_refusal(builder, goal, order, _PREPARED, "change its items", easy)
    _no_promotion(builder, order)
    builder.set_status(order, builder.rng.choice(_OPEN))
    left = int(order.food - line.price)
    minimum = f"{min(left, 8) if grantable else left + builder.rng.randint(1, 4)}.00"
    builder.patch("restaurants", order.restaurant, minimum=minimum)
    reads = (gold_call("get_restaurant", name=order.restaurant),)
    if not grantable:
        reason = f"The minimum order at {order.restaurant} is {minimum}, so I cannot remove the {line.name}."
        return add_refusal(builder, goal, reads, reason, (minimum,), easy)
    do = gold_call("change_items", order_id=order.id, remove=[line.name])
    return replace(
        goal,
        gold_turns=reads
        + gold_change(f"remove the {line.name} from {mention.proposal_phrase}", do, "The order has been changed."),
    )


def _add(builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool) -> GoalSpec:
    mention, (name, dish) = builder.order_mention(order, knowledge), _new_dish(builder, order)
    text = builder.phrase("add", item=name)
    goal = GoalSpec(
        text, mention, required_terms=(*mention.required_terms, name, _ADD, f"{dish.price}"), outputs=(f"{dish.price}",)
    )
    if not grantable and builder.draw_bool(0.5):
        return add_status_refusal(builder, goal, order, _PREPARED, "change its items", easy)
    builder.set_status(order, builder.rng.choice(_OPEN))
    builder.patch("restaurants", order.restaurant, menu={name: {"sold_out": not grantable}})
    reads = (gold_call("get_restaurant", name=order.restaurant),)
    if not grantable:
        reason = f"{order.restaurant} is sold out of {name}, so I cannot add it."
        return add_refusal(builder, goal, reads, reason, ("sold out|sold_out",), easy)
    do = gold_call("change_items", order_id=order.id, add=[{"item": name}])
    turns = reads + gold_change(
        f"add {name} for {dish.price} to {mention.proposal_phrase}", do, "The order has been changed."
    )
    return replace(goal, gold_turns=turns)


def apply_promotion(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Apply a promotion code. It may be expired, for members only, below its minimum, or not combinable."""
    mention, why = (
        builder.order_mention(order, knowledge),
        builder.rng.choice(("status", "expired", "members", "minimum", "stacked")),
    )
    why, code = "" if grantable else why, builder.rng.choice(list(PROMOTIONS))
    goal = GoalSpec(
        builder.phrase("promotion", code=code),
        mention,
        required_terms=(*mention.required_terms, code, _PROMOTION),
    )
    if why == "status":
        return add_status_refusal(builder, goal, order, _PREPARED, "apply a promotion", easy)
    builder.set_status(order, builder.rng.choice(_OPEN))
    if why == "stacked":
        first = builder.rng.choice([other for other in PROMOTIONS if other != code])
        builder.patch("orders", order.id, promotion=first, discount=f"{builder.world.promotions[first].off}")
        reason = f"Order {order.id} already has the promotion {first}, so I cannot apply {code} as well."
        return add_refusal(builder, goal, (), reason, (first,), easy)
    _no_promotion(builder, order)
    reason, output, reads = _terms(builder, order, code, why)
    if why:
        return add_refusal(
            builder, goal, reads, f"{reason}, so I cannot apply it to order {order.id}.", (output,), easy
        )
    off = builder.world.promotions[code].off
    do = gold_call("apply_promotion", order_id=order.id, code=code)
    turns = reads + gold_change(f"apply the promotion {code} to {mention.proposal_phrase}", do, f"You save {off}.")
    return replace(goal, gold_turns=turns, outputs=(f"{off}",))


def _terms(builder: DoordashTaskBuilder, order: Order, code: str, why: str) -> tuple[str, str, tuple[Message, ...]]:
    """Set the terms of a code. Return why they forbid it, the fact to tell, and the lookups that show it."""
    expires = builder.rng.choice(_PAST if why == "expired" else _COMING)
    minimum = int(order.food) + (builder.rng.randint(1, 6) if why == "minimum" else -builder.rng.randint(0, 5))
    members = why == "members" or (why != "minimum" and builder.draw_bool(0.3))
    builder.patch("promotions", code, expires=expires, minimum=f"{minimum}.00", members_only=members)
    if members:
        builder.set_account(member=why != "members")
    reasons = {
        "expired": (f"{code} expired on {expires}", date_variants(expires)),
        "members": (f"{code} is for members only", "members only|members_only|members"),
        "minimum": (f"{code} has a minimum of {minimum}.00", f"{minimum}.00"),
    }
    reads = (gold_call("get_promotion", code=code), *[gold_call("get_customer")] * (members and why != "expired"))
    return *reasons.get(why, ("", "")), reads


_PAST, _COMING = ("2025-04-30", "2025-05-11", "2025-05-15"), ("2025-05-16", "2025-05-31", "2025-06-30")


def correct_address(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Give one address, then another one when asked to confirm."""
    mention, home = builder.order_mention(order, knowledge), parse_area(order.address)
    first, second = (draw_address(builder.rng, home) for _ in range(2))
    builder.set_status(order, builder.rng.choice((*_OPEN, "preparing")))
    proposed = GoalSpec(
        builder.phrase("address", address=first),
        mention,
        (gold_proposal(f"send {mention.proposal_phrase} to {first}"),),
    )
    return _rather(builder, proposed, "address", _send(mention, second), second.partition(",")[0], address=second)


def correct_tip(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Give one tip, then another one when asked to confirm."""
    mention, (tip, first) = builder.order_mention(order, knowledge), _tips(builder)
    builder.patch("orders", order.id, tip="0.00")
    builder.set_status(order, builder.rng.choice(("preparing", "picked up")))
    proposed = GoalSpec(
        builder.phrase("tip", tip=first),
        mention,
        (gold_proposal(f"change the tip of {mention.proposal_phrase} to {first}"),),
    )
    return _rather(builder, proposed, "tip", _give_tip(mention, tip), "tip", tip, tip=tip)


def switch_cancel_to_dropoff(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask to cancel an order, then to change its dropoff instead when asked to confirm."""
    mention, dropoff = builder.order_mention(order, knowledge), _other_dropoff(builder, order)
    builder.set_status(order, "placed")
    proposed = GoalSpec(
        builder.phrase("cancel"),
        mention,
        (gold_proposal(f"cancel {mention.proposal_phrase} free of charge"),),
    )
    keep = builder.phrase("keep_it") + " "
    turns = _hand_over(mention, dropoff)
    return _rather(builder, proposed, f"dropoff.{dropoff}", turns, _DROPOFF_NAMES[dropoff], keep=keep)


def _rather(
    builder: DoordashTaskBuilder,
    first: GoalSpec,
    phrase: str,
    turns: Sequence[Message],
    *names: str,
    keep: str = "",
    **words: str,
) -> GoalSpec:
    """After the first proposal, ask for something else about the same order."""
    assert isinstance(first.mention, DoordashOrderMention)
    meant = f"{builder.phrase('change_of_mind')} {keep}{builder.phrase(phrase, **words)}"
    return replace(
        first,
        gold_turns=(*first.gold_turns, *turns),
        required_terms=(*first.mention.required_terms, *names),
        final_text=meant,
    )


def _send(mention: DoordashOrderMention, address: str) -> tuple[Message, ...]:
    do = gold_call("change_address", order_id=mention.order.id, address=address)
    return gold_change(f"send {mention.proposal_phrase} to {address}", do, "The address has been changed.")


def _hand_over(mention: DoordashOrderMention, dropoff: Dropoff) -> tuple[Message, ...]:
    do = gold_call("change_dropoff", order_id=mention.order.id, dropoff=dropoff)
    return gold_change(f"change the dropoff of {mention.proposal_phrase} to: {dropoff}", do, "The courier will see it.")


def _give_tip(mention: DoordashOrderMention, tip: str) -> tuple[Message, ...]:
    do = gold_call("change_tip", order_id=mention.order.id, tip=float(tip))
    return gold_change(f"change the tip of {mention.proposal_phrase} to {tip}", do, "The tip has been changed.")


def _tips(builder: DoordashTaskBuilder) -> tuple[str, str]:
    """Draw a lower and a higher tip."""
    low, high = sorted(builder.rng.sample(range(1, 13), 2))
    return f"{low / 2:.2f}", f"{high / 2:.2f}"


def _other_dropoff(builder: DoordashTaskBuilder, order: Order) -> Dropoff:
    choices: Sequence[Dropoff] = get_args(Dropoff)
    return builder.rng.choice([dropoff for dropoff in choices if dropoff != order.dropoff])


def _no_promotion(builder: DoordashTaskBuilder, order: Order) -> None:
    if order.promotion:
        builder.patch("orders", order.id, promotion="", discount="0.00")


def _new_dish(builder: DoordashTaskBuilder, order: Order) -> tuple[str, Dish]:
    """Draw a dish of the order's restaurant that is not in the order."""
    menu = builder.find_restaurant(order.restaurant).menu
    taken = {line.name for line in order.items}
    return builder.rng.choice([(k, d) for k, d in menu.items() if k not in taken and not d.alcohol])
