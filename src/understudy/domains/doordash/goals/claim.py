"""Requests about deliveries that went wrong: missing dishes, late deliveries, and cases for a human agent."""

from collections.abc import Sequence
from dataclasses import replace

from understudy.domains.authoring.payments import payment_kind
from understudy.domains.authoring.request import (
    VAGUE_SHARE,
    Draw,
    extend,
    grant,
    plain_request,
    refuse,
    tell,
    transfer,
)
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.doordash.goals.basket import payment_variants
from understudy.domains.doordash.goals.order_change import refuse_status
from understudy.domains.doordash.policy_rules import LATE_CREDITS, MAX_REFUNDS, refund_amount
from understudy.domains.doordash.state import Order, OrderLine, RefundTarget, Status
from understudy.domains.doordash.task_builder import DoordashOrderMention, DoordashTaskBuilder
from understudy.envs.dates import date_variants
from understudy.envs.gold import gold_call

_REFUND = (
    "refund|refunds|refunded|refunding|pay back|paid back|paying back|give back|given back|giving back"
    "|credit|credits|credited|crediting"
)
_AS_CREDIT = "as credit|to credit|in credit|delivery credit|account credit|credit balance"
_AGAIN = (
    "again|redeliver|redelivers|redelivered|redelivering|redelivery|resend|resends|resent|resending"
    "|re-send|re-sent|replace|replaces|replaced|replacing|replacement|new"
)
_WHERE_TO = ("as credit", "how do you want", "how would you like", "where should", "where do you want", "payment or")
_UNDELIVERED: Sequence[Status] = ("placed", "accepted", "preparing", "picked up", "cancelled")
_ACCOUNT = gold_call("get_customer")
_OUTSIDE = (
    "accident with a courier",
    "allergic reaction",
    "food poisoning",
    "rude courier",
    "stolen account",
    "tax invoice",
    "charged twice",
)
"""Cases for a human agent: lists of the table `outside` of phrases.toml."""


def claim_missing_items(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask for a refund of one or two missing dishes."""
    order, mention = draw.entity, b.order_mention(draw, itemized=True)
    lines = _some(b, order, 1 if draw.easy else 2)
    to: RefundTarget = b.rng.choice(("payment", "credit"))
    vague = not draw.easy and b.draw_bool(VAGUE_SHARE)
    back = b.phrase(f"back.{to}", kind=payment_kind(order.payment))
    text = b.phrase("missing", items=_listed(lines))
    goal = plain_request(text, mention, *(line.name for line in lines), _REFUND)
    goal = tell(goal, back, "Where should the refund go: to your payment method or as credit?", _WHERE_TO, vague=vague)
    if not draw.grantable:
        return _refuse_claim(b, goal, draw, lines, "refund anything")
    b.set_few_refunds()
    b.set_delivered(order)
    return _refund(replace(goal, gold_turns=(_ACCOUNT, *goal.gold_turns)), mention, lines, to)


def claim_late_delivery(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask for compensation for a late delivery."""
    order, mention = draw.entity, b.order_mention(draw)
    goal = plain_request(b.phrase("late"), mention, "credit|credits|credited|crediting")
    if not draw.grantable and b.draw_bool(0.6):
        return _refuse_claim(b, goal, draw, (), "give a credit")
    minutes = b.rng.randint(15, 95) if draw.grantable else b.rng.randint(1, 14)
    b.set_few_refunds()
    b.set_delivered(order, late=minutes)
    if not draw.grantable:
        reason = f"Order {order.id} was {minutes} minutes late, so I cannot give a credit."
        return refuse(b, goal, reason, f"{minutes}", easy=draw.easy)
    amount = f"{next(amount for least, amount in LATE_CREDITS if minutes >= least)}"
    call = gold_call("credit_late_delivery", order_id=order.id, amount=float(amount))
    proposal = f"credit {amount} for {mention.proposal_phrase}, which was {minutes} minutes late"
    report = f"You have received a credit of {amount}."
    return grant(goal, proposal, call, report, [_ACCOUNT], terms=(amount,), outputs=(amount,))


def claim_redelivery(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask to redeliver a missing dish; some customers accept a credit otherwise."""
    order, mention = draw.entity, b.order_mention(draw, itemized=True)
    lines = _some(b, order, 1)
    dish, either = lines[0].name, not draw.easy and b.draw_bool(0.5)
    goal = plain_request(b.phrase("redeliver", items=dish), mention, dish, _AGAIN)
    if either:
        goal = extend(goal, b.phrase("or_credit"))
    why = "" if draw.grantable else b.rng.choice(("claim", "paused", "sold out"))
    if why == "claim":
        return _refuse_claim(b, goal, draw, lines, "redeliver anything")
    b.set_few_refunds()
    b.set_delivered(order, b.draw_minutes_ago(0, 0))
    b.patch("restaurants", order.restaurant, paused=why == "paused", menu={dish: {"sold_out": why == "sold out"}})
    reads = (_ACCOUNT, gold_call("get_restaurant", name=order.restaurant))
    if why and either:
        goal = plain_request(goal.text, mention, dish)
        return _refund(replace(goal, gold_turns=reads), mention, lines, "credit")
    if why:
        what = "has paused orders" if why == "paused" else f"is sold out of {dish}"
        reason = f"{order.restaurant} {what}, so I cannot redeliver it."
        output = "paused" if why == "paused" else "sold out|sold_out"
        return refuse(b, goal, reason, output, easy=draw.easy, reads=reads)
    call = gold_call("redeliver_items", order_id=order.id, items=[dish])
    return grant(goal, f"redeliver the {dish} of {mention.proposal_phrase}", call, "It is on its way.", reads)


def claim_over_refund_limit(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask for a refund after so many refunds that a human must decide."""
    order, mention, lines = draw.entity, b.order_mention(draw), _some(b, draw.entity, 1)
    back = b.phrase("back.credit")
    missed = f"{b.phrase('missing', items=_listed(lines))} {back}"
    text = b.rng.choice((missed, b.phrase("late")))
    b.set_refunds(MAX_REFUNDS)
    b.set_delivered(order, late=b.rng.randint(20, 90))
    return transfer(GoalSpec(text, mention, (_ACCOUNT,)), "refund limit reached")


def ask_out_of_scope(b: DoordashTaskBuilder, draw: Draw[Order]) -> GoalSpec:
    """Ask for something that no tool can do."""
    summary = b.rng.choice(_OUTSIDE)
    return transfer(GoalSpec(b.phrase(f"outside.{summary}")), summary)


def _refuse_claim(
    b: DoordashTaskBuilder, goal: GoalSpec, draw: Draw[Order], lines: Sequence[OrderLine], action: str
) -> GoalSpec:
    """Refuse a claim: the order was not delivered, or too long ago, or the dishes were already refunded."""
    order, why = draw.entity, b.rng.choice(("status", "old", "refunded") if lines else ("status", "old"))
    goal = replace(goal, gold_turns=())  # the order tells it before any question for a detail
    if why == "status":
        return refuse_status(b, goal, draw, _UNDELIVERED, action)
    if why == "old":
        day = b.set_delivered(order, b.draw_minutes_ago(3, 25), late=40)[:10]
        reason = f"Order {order.id} was delivered on {day}, more than 48 hours ago, so I cannot {action}."
        return refuse(b, goal, reason, date_variants(day), easy=draw.easy)
    b.set_delivered(order)
    b.patch("orders", order.id, refunded={line.name: "payment" for line in lines})
    reason = f"The {_listed(lines)} of order {order.id} was already refunded, so I cannot {action}."
    return refuse(b, goal, reason, "refunded", easy=draw.easy)


def _refund(goal: GoalSpec, mention: DoordashOrderMention, lines: Sequence[OrderLine], to: RefundTarget) -> GoalSpec:
    """Settle a claim with a refund."""
    order = mention.order
    refund, price = refund_amount(order, lines), sum(line.price for line in lines)
    amount, summed = f"{refund:.2f}", lines if refund == price else order.items
    expression = " + ".join(f"{line.price}" for line in summed) + f" - {order.discount}" * (refund < price)
    sums = [gold_call("calculate", expression=expression)] if expression != amount else []
    where, variants = "as credit", _AS_CREDIT
    if to == "payment":
        where, variants = f"to your {payment_kind(order.payment)} {order.payment}", payment_variants(order.payment)
    call = gold_call("refund_items", order_id=order.id, items=[line.name for line in lines], to=to)
    proposal = f"refund {amount} for the {_listed(lines)} of {mention.proposal_phrase} {where}"
    report = f"You have been refunded {amount}."
    return grant(goal, proposal, call, report, sums, terms=(variants, amount), outputs=(amount,))


def _some(b: DoordashTaskBuilder, order: Order, most: int) -> list[OrderLine]:
    """Draw one or more lines of an order."""
    count = b.rng.randint(1, min(most, len(order.items)))
    return b.rng.sample(order.items, count)


def _listed(lines: Sequence[OrderLine]) -> str:
    return " and the ".join(line.name for line in lines)
