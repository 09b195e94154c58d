"""Requests to cancel, change, return or exchange, and to change the account."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import get_args

from understudy.domains.authoring.payments import PAYMENT_CUES, payment_kind
from understudy.domains.authoring.people import draw_address
from understudy.domains.authoring.request import (
    CANCEL_TERMS,
    VAGUE_SHARE,
    Detail,
    Draw,
    answer,
    change_mind,
    extend,
    grant,
    plain_request,
    refuse,
    request,
    status_variants,
    tell,
    transfer,
)
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.retail.state import Line, Order, Reason, Status
from understudy.domains.retail.task_builder import RetailOrderMention, RetailTaskBuilder
from understudy.envs.gold import gold_call

_REASON_TERMS: Mapping[Reason, str] = {
    "no longer needed": "no longer needed|no longer need|not needed|not need|don't need|not needing",
    "ordered by mistake": "mistake|mistaken|mistakenly|accident|accidentally|accidental",
}
"""The accepted forms of a reason in a proposal."""
_RETURN = "return|returned|returning|returns|refund|refunds|refunded|refunding"
_SWAP = (
    "exchange|exchanges|exchanged|exchanging|change|changes|changed|changing|replace|replaces|replaced|replacing|replacement"
    "|swap|swaps|swapped|swapping|modify|modifies|modified|modifying|switch|switches|switched|switching"
)
_GONE = "available|unavailable|in stock|out of stock"
_WHY, _WHICH_ITEM = ("why", "reason"), ("which item", "what item", "which product", "what would you like to return")
_WHICH_ADDRESS = ("new address", "which address", "what address", "what is the address", "the address", "where")
_WHICH_OPTION = ("which one", "which variant", "which option", "size", "color", "colour", "instead")
_FORBIDS: Mapping[Status, tuple[Status, ...]] = {
    "pending": ("shipped", "delivered", "cancelled"),
    "delivered": ("pending", "shipped", "cancelled"),
}
"""The statuses that forbid a request that needs another status."""

ITEM = Detail("return", "return_vague", "which_item", "Which item is it?", _WHICH_ITEM)
ADDRESS = Detail("address", "address_vague", "new_address", "What is the new address?", _WHICH_ADDRESS)
PROFILE = replace(ADDRESS, stated="profile", vague="profile_vague")
PAYMENT = Detail("payment", "payment_vague", "pay_with", "How would you like to pay?", PAYMENT_CUES)
CHANGE = Detail("change_item", "other_vague", "which_option", "Which one would you like instead?", _WHICH_OPTION)
EXCHANGE = replace(CHANGE, stated="exchange")


def cancel_order(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Cancel an order."""
    mention, reason = b.order_mention(draw), b.rng.choice(get_args(Reason))
    why, told = b.phrase(f"why.{reason}"), draw.easy or b.draw_bool(0.5)
    goal = plain_request(b.phrase("cancel"), mention, CANCEL_TERMS, _REASON_TERMS[reason])
    goal = tell(goal, why, "Why do you want to cancel it?", _WHY, vague=not told)
    if not draw.grantable:
        return _refuse_status(b, goal, draw, "pending", "cancel it")
    b.set_status(draw.entity, "pending")
    call = gold_call("cancel_order", order_id=draw.entity.id, reason=reason)
    return grant(goal, f"cancel {mention.proposal_phrase}, reason: {reason}", call, "The order has been cancelled.")


def return_items(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Return one or two items; sometimes to a gift card, sometimes without naming the item at first."""
    order, mention = draw.entity, b.order_mention(draw, itemized=True)
    lines = _some(b, order, mention.item, 1 if draw.easy else 2)
    item = " and the ".join(line.name for line in lines)
    vague = not draw.easy and mention.by_number and b.draw_bool(VAGUE_SHARE)
    goal = request(b, ITEM, mention, vague, _RETURN, *(line.name for line in lines), item=item)
    if not draw.grantable:
        return _refuse_status(b, goal, draw, "delivered", "return anything")
    b.set_status(order, "delivered")
    gift = "" if draw.easy or b.draw_bool(0.5) else _payment(b, "gift", order.payment)
    arguments = {"order_id": order.id, "item_ids": [line.id for line in lines]}
    proposal, done = f"return the {item} of order {order.id}", "The return has been started."
    if not gift:
        return grant(goal, proposal, gold_call("return_items", **arguments), done)
    call = gold_call("return_items", **arguments, refund_to=gift)
    goal = extend(goal, b.phrase("refund_to_gift_card"), f"gift card|{gift}")
    return grant(goal, f"{proposal} and refund your gift card {gift}", call, done, [gold_call("get_user")])


@dataclass(frozen=True)
class _Swap:
    """The words and the tool that put another variant in the place of an item."""

    detail: Detail
    verb: str
    into: str
    status: Status
    """The status that the order must have."""
    tool: str


def exchange_item(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Exchange an item of a delivered order for another variant."""
    return _swap(b, draw, _Swap(EXCHANGE, "exchange", "for", "delivered", "exchange_items"))


def change_item(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Change an item of a pending order to another variant."""
    return _swap(b, draw, _Swap(CHANGE, "change", "to", "pending", "change_items"))


def _swap(b: RetailTaskBuilder, draw: Draw[Order], swap: _Swap) -> GoalSpec:
    order, mention = draw.entity, b.order_mention(draw, itemized=True)
    vague, gone = not draw.easy and b.draw_bool(VAGUE_SHARE), not draw.grantable and b.draw_bool(0.4)
    old, (item, option) = mention.item, _other_variant(b, mention.item)
    goal = request(b, swap.detail, mention, vague, _SWAP, _option_variants(option), item=old.name, option=option)
    if not draw.grantable and not gone:
        return _refuse_status(b, goal, draw, swap.status, f"{swap.verb} anything")
    b.set_status(order, swap.status)
    b.patch("products", old.name, variants={item: {"available": not gone}})
    reads = [gold_call("get_product", name=old.name)]
    if gone:
        reason = f"The {option} {old.name} is not available, so I cannot {swap.verb} anything."
        return answer(goal, reason, _GONE, reads=reads)
    payer = "" if draw.easy or b.draw_bool(0.5) else _payment(b, "", order.payment)
    b.set_balance(payer or order.payment, "200.00")
    proposal = f"{swap.verb} the {old.option} {old.name} of order {order.id} {swap.into} the {option} one"
    arguments = {"order_id": order.id, "item_ids": [old.id], "new_item_ids": [item]}
    done = f"The {swap.verb} has been made."
    if not payer:
        return grant(goal, proposal, gold_call(swap.tool, **arguments), done, reads)
    kind, call = payment_kind(payer), gold_call(swap.tool, **arguments, payment_id=payer)
    goal = extend(goal, b.phrase("difference_by", kind=kind), f"{kind}|{payer}")
    return grant(goal, f"{proposal}, with your {kind} {payer}", call, done, [*reads, gold_call("get_user")])


def change_address(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Change the address of an order."""
    mention, address = b.order_mention(draw), draw_address(b.rng)
    vague = not draw.easy and b.draw_bool(VAGUE_SHARE)
    goal = request(b, ADDRESS, mention, vague, *_parts(address), address=address)
    if not draw.grantable:
        return _refuse_status(b, goal, draw, "pending", "change its address")
    b.set_status(draw.entity, "pending")
    return _send(goal, mention, address)


def change_profile(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Change the address of the account. It affects no order."""
    address, vague = draw_address(b.rng), not draw.easy and b.draw_bool(0.5)
    goal = request(b, PROFILE, None, vague, *_parts(address), address=address)
    call = gold_call("change_user_address", address=address)
    return grant(goal, f"change the address of your account to {address}", call, "Your address has been changed.")


def change_payment(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Change the payment of an order."""
    order, mention = draw.entity, b.order_mention(draw)
    vague, target = not draw.easy and b.draw_bool(VAGUE_SHARE), _payment(b, "", order.payment)
    short, kind = not draw.grantable and target.startswith("gift"), payment_kind(target)
    goal = request(b, PAYMENT, mention, vague, f"{kind}|{target}", kind=kind)
    if not draw.grantable and not short:
        return _refuse_status(b, goal, draw, "pending", "change its payment")
    b.set_status(order, "pending")
    reads = [gold_call("get_user")]
    balance = f"{order.total - Decimal(b.rng.randint(1, 9)):.2f}" if short else "250.00"
    b.set_balance(target, balance)
    if short:
        reason = f"Your gift card {target} has a balance of {balance}, so it cannot cover the {order.total}."
        return answer(goal, reason, balance, reads=reads)
    call = gold_call("change_payment", order_id=order.id, payment_id=target)
    proposal = f"pay {mention.proposal_phrase} with your {kind} {target}"
    return grant(goal, proposal, call, "The payment has been changed.", reads)


def ask_out_of_scope(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask for something that no tool can do, which requires a human agent."""
    text = b.phrase("outside")
    return transfer(GoalSpec(text), text)


def correct_address(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Give one address, then another one when asked to confirm."""
    mention, first = b.order_mention(draw), draw_address(b.rng)
    text = b.phrase("address", address=first)
    return _send_instead(b, mention, text, f"send {mention.proposal_phrase} to {first}", "")


def switch_cancel_to_address(b: RetailTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask to cancel an order, then to change its address instead when asked to confirm."""
    mention, reason = b.order_mention(draw), b.rng.choice(get_args(Reason))
    text = f"{b.phrase('cancel')} {b.phrase(f'why.{reason}')}"
    return _send_instead(b, mention, text, f"cancel {mention.proposal_phrase}, reason: {reason}", b.phrase("keep_it"))


def _send_instead(b: RetailTaskBuilder, mention: RetailOrderMention, text: str, proposal: str, keep: str) -> GoalSpec:
    """Return a request whose user wants an order sent to another address when the agent makes `proposal`."""
    b.set_status(mention.order, "pending")
    address = draw_address(b.rng)
    meant = f"{b.phrase('change_of_mind')}{keep} {b.phrase('address', address=address)}"
    goal = plain_request(text, mention, *_parts(address))
    return _send(change_mind(goal, proposal, meant), mention, address)


def _refuse_status(b: RetailTaskBuilder, goal: GoalSpec, draw: Draw[Order], needed: Status, action: str) -> GoalSpec:
    """Refuse a request for an order whose status forbids it."""
    order, status = draw.entity, b.rng.choice(_FORBIDS[needed])
    b.set_status(order, status)
    reason = f"Order {order.id} is {status}, so I cannot {action}."
    goal = replace(goal, gold_turns=())  # the status is known before any question for a detail
    return refuse(b, goal, reason, status_variants(status), easy=draw.easy)


def _send(goal: GoalSpec, mention: RetailOrderMention, address: str) -> GoalSpec:
    call = gold_call("change_address", order_id=mention.order.id, address=address)
    return grant(goal, f"send {mention.proposal_phrase} to {address}", call, "The address has been changed.")


def _parts(address: str) -> tuple[str, ...]:
    """Return street and zip, which identify an address in any spelling."""
    return address.split(",")[0], address.split()[-1]


def _some(b: RetailTaskBuilder, order: Order, item: Line, most: int) -> list[Line]:
    """Return the item and possibly others of the order."""
    others = [line for line in order.items if line is not item]
    return [item, *others[: b.rng.randint(0, min(most - 1, len(others)))]]


def _other_variant(b: RetailTaskBuilder, line: Line) -> tuple[str, str]:
    variants = b.world.products[line.name].variants
    item = b.rng.choice([key for key in variants if key != line.id])
    return item, variants[item].option


def _option_variants(option: str) -> str:
    """Return the accepted forms of an option like "medium black". Its words belong together: the old item has some."""
    size, _, color = option.partition(" ")
    links = (" ", ", ", " and ", "/", " / ", " in ", " one in ", " one, ", " one in size ", " in size ", ", size ")
    return "|".join(f"{one}{link}{other}" for one, other in ((size, color), (color, size)) for link in links)


def _payment(b: RetailTaskBuilder, kind: str, current: str) -> str:
    """Return another payment method of the customer of this kind, or an empty string."""
    fitting = [key for key in b.user.payments if key != current and key.startswith(kind)]
    return b.rng.choice(fitting) if fitting else ""
