"""Requests to cancel, change, return or exchange, and to change the account. `base` defines `grantable`."""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import get_args

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.people import draw_address
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change, gold_proposal, gold_text
from understudy.domains.retail.goals.base import payment_kind, status_variants
from understudy.domains.retail.state import Line, Order, Reason, Status
from understudy.domains.retail.task_builder import RetailOrderMention, RetailTaskBuilder

_CANCEL = "cancel|cancelled|canceled|cancelling|canceling|cancellation"
_REASON_TERMS: Mapping[Reason, str] = {
    "no longer needed": "no longer needed|no longer need|not needed|not need|don't need|not needing",
    "ordered by mistake": "mistake|mistaken|mistakenly|accident|accidentally|accidental",
}
"""The accepted forms of a reason in a proposal."""
_RETURN = "return|returned|returning|returns|refund"
_SWAP = "exchange|exchanged|exchanging|change|changed|replace|replaced|swap|modify|switch"
_GONE = "available|unavailable|in stock|out of stock"
_WHY, _WHICH_ITEM = ("why", "reason"), ("which item", "what item", "which product", "what would you like to return")
_WHICH_ADDRESS = ("new address", "which address", "what address", "what is the address", "the address", "where")
_WHICH_OPTION = ("which one", "which variant", "which option", "size", "color", "colour", "instead")
_WHICH_PAYMENT = (
    "how do you want",
    "how would you like",
    "which payment",
    "what payment",
    "payment method",
    "pay with",
    "like to pay",
)


def cancel_order(
    builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Cancel an order."""
    mention = builder.order_mention(order, knowledge)
    reason = builder.rng.choice(get_args(Reason))
    why, in_opening = builder.phrase(f"why.{reason}"), easy or builder.draw_bool(0.5)
    text = builder.phrase("cancel") + (f" {why}" if in_opening else "")
    goal = GoalSpec(
        text,
        mention,
        required_terms=(*mention.required_terms, _CANCEL, _REASON_TERMS[reason]),
        facts=(Fact(text=why, keywords=_WHY, in_opening=in_opening),),
    )
    if not grantable:
        return _add_status_refusal(builder, goal, order, "pending", "cancel it", easy)
    builder.set_status(order, "pending")
    asks = () if in_opening else (gold_text("Why do you want to cancel it?"),)
    do = gold_call("cancel_order", order_id=order.id, reason=reason)
    return replace(
        goal,
        gold_turns=asks
        + gold_change(f"cancel {mention.proposal_phrase}, reason: {reason}", do, "The order has been cancelled."),
    )


def return_items(
    builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Return one or two items; sometimes to a gift card, sometimes without naming the item at first."""
    mention = builder.order_mention(order, knowledge, itemized=True)
    lines = _some(builder, order, mention.item, 1 if easy else 2)
    item = " and the ".join(line.name for line in lines)
    vague = not easy and mention.by_number and builder.draw_bool(0.3)
    text = builder.phrase("return_vague") if vague else builder.phrase("return", item=item)
    facts = (Fact(text=builder.phrase("which_item", item=item), keywords=_WHICH_ITEM, in_opening=not vague),)
    goal = GoalSpec(
        text, mention, required_terms=(*mention.required_terms, _RETURN, *(line.name for line in lines)), facts=facts
    )
    if not grantable:
        return _add_status_refusal(builder, goal, order, "delivered", "return anything", easy)
    builder.set_status(order, "delivered")
    asks = (gold_text("Which item is it?"),) if vague else ()
    gift = "" if easy or builder.draw_bool(0.5) else _payment(builder, "gift", order.payment)
    arguments = {"order_id": order.id, "item_ids": [line.id for line in lines]}
    proposal, done = f"return the {item} of order {order.id}", "The return has been started."
    if not gift:
        return replace(goal, gold_turns=asks + gold_change(proposal, gold_call("return_items", **arguments), done))
    do = gold_call("return_items", **arguments, refund_to=gift)
    turns = (*asks, gold_call("get_user"), *gold_change(f"{proposal} and refund your gift card {gift}", do, done))
    text = f"{text} {builder.phrase('refund_to_gift_card')}"
    return replace(goal, text=text, gold_turns=turns, required_terms=(*goal.required_terms, f"gift card|{gift}"))


def exchange_item(
    builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Exchange an item of a delivered order for another variant."""
    return _swap(builder, order, knowledge, grantable, easy, pending=False)


def change_item(
    builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Change an item of a pending order to another variant."""
    return _swap(builder, order, knowledge, grantable, easy, pending=True)


def _swap(
    builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool, *, pending: bool
) -> GoalSpec:
    mention = builder.order_mention(order, knowledge, itemized=True)
    verb, into, status, tool = _SWAPS[pending]
    vague, gone = not easy and builder.draw_bool(0.3), not grantable and builder.draw_bool(0.4)
    item, option = _other_variant(builder, mention.item)
    name = "other_vague" if vague else "change_item" if pending else "exchange"
    text = builder.phrase(name, item=mention.item.name, option=option)
    facts = (
        Fact(
            text=builder.phrase("which_option", option=option),
            keywords=_WHICH_OPTION,
            in_opening=not vague,
        ),
    )
    goal = GoalSpec(
        text, mention, required_terms=(*mention.required_terms, _SWAP, _option_variants(option)), facts=facts
    )
    if not grantable and not gone:
        return _add_status_refusal(builder, goal, order, status, f"{verb} anything", easy)
    builder.set_status(order, status)
    builder.patch("products", mention.item.name, variants={item: {"available": not gone}})
    asks = (gold_text("Which one would you like instead?"),) if vague else ()
    reads = (*asks, gold_call("get_product", name=mention.item.name))
    if gone:
        refusal = gold_text(f"The {option} {mention.item.name} is not available, so I cannot {verb} anything.")
        return replace(goal, gold_turns=(*reads, refusal), outputs=(_GONE,))
    payer = "" if easy or builder.draw_bool(0.5) else _payment(builder, "", order.payment)
    builder.set_balance(payer or order.payment, "200.00")
    proposal = f"{verb} the {mention.item.option} {mention.item.name} of order {order.id} {into} the {option} one"
    arguments = {"order_id": order.id, "item_ids": [mention.item.id], "new_item_ids": [item]}
    if not payer:
        return replace(
            goal, gold_turns=reads + gold_change(proposal, gold_call(tool, **arguments), f"The {verb} has been made.")
        )
    kind, do = payment_kind(payer), gold_call(tool, **arguments, payment_id=payer)
    turns = (
        *reads,
        gold_call("get_user"),
        *gold_change(f"{proposal}, with your {kind} {payer}", do, f"The {verb} has been made."),
    )
    text = f"{text} {builder.phrase('difference_by', kind=kind)}"
    return replace(goal, text=text, gold_turns=turns, required_terms=(*goal.required_terms, f"{kind}|{payer}"))


_SWAPS: dict[bool, tuple[str, str, Status, str]] = {
    True: ("change", "to", "pending", "change_items"),
    False: ("exchange", "for", "delivered", "exchange_items"),
}


def change_address(
    builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Change the address of an order."""
    mention = builder.order_mention(order, knowledge)
    address, vague = draw_address(builder.rng), not easy and builder.draw_bool(0.3)
    text = builder.phrase("address_vague" if vague else "address", address=address)
    facts = (
        Fact(
            text=builder.phrase("new_address", address=address),
            keywords=_WHICH_ADDRESS,
            in_opening=not vague,
        ),
    )
    goal = GoalSpec(text, mention, required_terms=(*mention.required_terms, *_parts(address)), facts=facts)
    if not grantable:
        return _add_status_refusal(builder, goal, order, "pending", "change its address", easy)
    builder.set_status(order, "pending")
    asks = (gold_text("What is the new address?"),) if vague else ()
    return replace(goal, gold_turns=asks + _send(mention, address))


def change_profile(
    builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Change the address of the account. It affects no order."""
    address, vague = draw_address(builder.rng), not easy and builder.draw_bool(0.5)
    text = builder.phrase("profile_vague" if vague else "profile", address=address)
    facts = (
        Fact(
            text=builder.phrase("new_address", address=address),
            keywords=_WHICH_ADDRESS,
            in_opening=not vague,
        ),
    )
    asks = (gold_text("What is the new address?"),) if vague else ()
    do = gold_call("change_user_address", address=address)
    turns = asks + gold_change(f"change the address of your account to {address}", do, "Your address has been changed.")
    return GoalSpec(text, gold_turns=turns, required_terms=_parts(address), facts=facts)


def change_payment(
    builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Change the payment of an order."""
    mention = builder.order_mention(order, knowledge)
    vague, target = not easy and builder.draw_bool(0.3), _payment(builder, "", order.payment)
    short = not grantable and target.startswith("gift")
    kind = payment_kind(target)
    text = builder.phrase("payment_vague" if vague else "payment", kind=kind)
    facts = (Fact(text=builder.phrase("pay_with", kind=kind), keywords=_WHICH_PAYMENT, in_opening=not vague),)
    goal = GoalSpec(text, mention, required_terms=(*mention.required_terms, f"{kind}|{target}"), facts=facts)
    if not grantable and not short:
        return _add_status_refusal(builder, goal, order, "pending", "change its payment", easy)
    builder.set_status(order, "pending")
    asks = (gold_text("How would you like to pay?"),) if vague else ()
    reads = (*asks, gold_call("get_user"))
    balance = f"{order.total - Decimal(builder.rng.randint(1, 9)):.2f}" if short else "250.00"
    builder.set_balance(target, balance)
    if short:
        refusal = gold_text(
            f"Your gift card {target} has a balance of {balance}, so it cannot cover the {order.total}."
        )
        return replace(goal, gold_turns=(*reads, refusal), outputs=(balance,))
    do = gold_call("change_payment", order_id=order.id, payment_id=target)
    turns = reads + gold_change(
        f"pay {mention.proposal_phrase} with your {kind} {target}", do, "The payment has been changed."
    )
    return replace(goal, gold_turns=turns)


def ask_out_of_scope(
    builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for something that no tool can do, which requires a human agent."""
    text = builder.phrase("outside")
    turns = (gold_call("transfer_to_human", summary=text), gold_text("I have transferred you to a human agent."))
    return GoalSpec(text, gold_turns=turns, required_terms=("human|transfer|transferred",))


def correct_address(
    builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Give one address, then another one when asked to confirm."""
    mention, first = builder.order_mention(order, knowledge), draw_address(builder.rng)
    text = builder.phrase("address", address=first)
    return _rather_send(
        builder, mention, GoalSpec(text, mention, (gold_proposal(f"send {mention.proposal_phrase} to {first}"),)), ""
    )


def switch_cancel_to_address(
    builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask to cancel an order, then to change its address instead when asked to confirm."""
    mention, reason = builder.order_mention(order, knowledge), builder.rng.choice(get_args(Reason))
    text = f"{builder.phrase('cancel')} {builder.phrase(f'why.{reason}')}"
    return _rather_send(
        builder,
        mention,
        GoalSpec(text, mention, (gold_proposal(f"cancel {mention.proposal_phrase}, reason: {reason}"),)),
        builder.phrase("keep_it"),
    )


def _rather_send(builder: RetailTaskBuilder, mention: RetailOrderMention, first: GoalSpec, link: str) -> GoalSpec:
    """After the first proposal, change the order's address to a new one."""
    builder.set_status(mention.order, "pending")
    address = draw_address(builder.rng)
    meant = f"{builder.phrase('change_of_mind')}{link} {builder.phrase('address', address=address)}"
    names = (*mention.required_terms, *_parts(address))
    return replace(first, gold_turns=first.gold_turns + _send(mention, address), required_terms=names, final_text=meant)


def _add_status_refusal(
    builder: RetailTaskBuilder, goal: GoalSpec, order: Order, needed: Status, action: str, easy: bool
) -> GoalSpec:
    """Refuse a request for an order whose status forbids it. Some customers contest the refusal."""
    status = builder.rng.choice(_FORBIDS[needed])
    builder.set_status(order, status)
    refusal = gold_text(f"Order {order.id} is {status}, so I cannot {action}.")
    contests = not easy and builder.draw_bool(0.5)
    return replace(
        goal, gold_turns=(refusal,) * (1 + contests), outputs=(status_variants(status),), contests_refusal=contests
    )


_FORBIDS: dict[Status, tuple[Status, ...]] = {
    "pending": ("shipped", "delivered", "cancelled"),
    "delivered": ("pending", "shipped", "cancelled"),
}


def _send(mention: RetailOrderMention, address: str) -> tuple[Message, ...]:
    do = gold_call("change_address", order_id=mention.order.id, address=address)
    return gold_change(f"send {mention.proposal_phrase} to {address}", do, "The address has been changed.")


def _parts(address: str) -> tuple[str, ...]:
    """Return street and zip, which identify an address in any spelling."""
    return address.split(",")[0], address.split()[-1]


def _some(builder: RetailTaskBuilder, order: Order, item: Line, most: int) -> list[Line]:
    """Return the item and possibly others of the order."""
    others = [line for line in order.items if line is not item]
    return [item, *others[: builder.rng.randint(0, min(most - 1, len(others)))]]


def _other_variant(builder: RetailTaskBuilder, line: Line) -> tuple[str, str]:
    variants = builder.world.products[line.name].variants
    item = builder.rng.choice([key for key in variants if key != line.id])
    return item, variants[item].option


def _option_variants(option: str) -> str:
    """Return the accepted forms of an option like "medium black". Its words belong together: the old item has some."""
    size, _, color = option.partition(" ")
    links = (" ", ", ", " and ", "/", " / ", " in ", " one in ", " one, ", " one in size ", " in size ", ", size ")
    return "|".join(f"{one}{link}{other}" for one, other in ((size, color), (color, size)) for link in links)


def _payment(builder: RetailTaskBuilder, kind: str, current: str) -> str:
    """Return another payment method of the customer of this kind, or an empty string."""
    fitting = [key for key in builder.user.payments if key != current and key.startswith(kind)]
    return builder.rng.choice(fitting) if fitting else ""
