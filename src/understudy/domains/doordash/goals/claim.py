"""Requests about deliveries that went wrong: missing dishes, late deliveries, and cases for a human agent."""

from collections.abc import Sequence
from dataclasses import replace

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change, gold_text
from understudy.domains.doordash.goals.base import add_refusal, add_status_refusal, payment_kind, payment_variants
from understudy.domains.doordash.policy_rules import LATE_CREDITS, MAX_REFUNDS, refund_amount
from understudy.domains.doordash.state import Order, OrderLine, RefundTarget, Status
from understudy.domains.doordash.task_builder import DoordashOrderMention, DoordashTaskBuilder
from understudy.envs.dates import date_variants

_REFUND = "refund|refunded|refunding|pay back|give back|credit"
_AS_CREDIT = "as credit|to credit|in credit|delivery credit|account credit|credit balance"
_AGAIN = "again|redeliver|redelivered|redelivery|resend|re-send|replacement|new"
_WHERE_TO = ("as credit", "how do you want", "how would you like", "where should", "where do you want", "payment or")
_UNDELIVERED: Sequence[Status] = ("placed", "accepted", "preparing", "picked up", "cancelled")
_ACCOUNT = gold_call("get_customer")


def claim_missing_items(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for a refund of one or two missing dishes."""
    mention, lines = builder.order_mention(order, knowledge, itemized=True), _some(builder, order, 1 if easy else 2)
    to: RefundTarget = builder.rng.choice(("payment", "credit"))
    vague = not easy and builder.draw_bool(0.3)
    back = builder.phrase(f"back.{to}", kind=payment_kind(order.payment))
    text = builder.phrase("missing", items=_listed(lines)) + ("" if vague else f" {back}")
    facts = (Fact(text=back, keywords=_WHERE_TO, in_opening=not vague),)
    goal = GoalSpec(
        text, mention, required_terms=(*mention.required_terms, *(line.name for line in lines), _REFUND), facts=facts
    )
    if not grantable:
        return _not_claimed(builder, goal, order, lines, "refund anything", easy)
    builder.set_few_refunds()
    builder.set_delivered(order)
    return _refund(replace(goal, gold_turns=(_ACCOUNT,)), order, lines, to, vague)


def claim_late_delivery(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for compensation for a late delivery."""
    mention = builder.order_mention(order, knowledge)
    goal = GoalSpec(
        builder.phrase("late"),
        mention,
        required_terms=(*mention.required_terms, "credit|credited|crediting"),
    )
    if not grantable and builder.draw_bool(0.6):
        return _not_claimed(builder, goal, order, (), "give a credit", easy)
    minutes = builder.rng.randint(1, 14) if not grantable else builder.rng.randint(15, 95)
    builder.set_few_refunds()
    builder.set_delivered(order, late=minutes)
    if not grantable:
        reason = f"Order {order.id} was {minutes} minutes late, so I cannot give a credit."
        return add_refusal(builder, goal, (), reason, (f"{minutes}",), easy)
    amount = f"{next(amount for least, amount in LATE_CREDITS if minutes >= least)}"
    do = gold_call("credit_late_delivery", order_id=order.id, amount=float(amount))
    proposal = f"credit {amount} for {mention.proposal_phrase}, which was {minutes} minutes late"
    turns = (_ACCOUNT, *gold_change(proposal, do, f"You have received a credit of {amount}."))
    return replace(goal, gold_turns=turns, required_terms=(*goal.required_terms, amount), outputs=(amount,))


def claim_redelivery(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask to redeliver a missing dish; some customers accept a credit otherwise."""
    mention, lines = builder.order_mention(order, knowledge, itemized=True), _some(builder, order, 1)
    either = not easy and builder.draw_bool(0.5)
    text = builder.phrase("redeliver", items=_listed(lines)) + (f" {builder.phrase('or_credit')}" if either else "")
    goal = GoalSpec(text, mention, required_terms=(*mention.required_terms, lines[0].name, _AGAIN))
    why = "" if grantable else builder.rng.choice(("claim", "paused", "sold out"))
    if why == "claim":
        return _not_claimed(builder, goal, order, lines, "redeliver anything", easy)
    builder.set_few_refunds()
    builder.set_delivered(order, builder.draw_minutes_ago(0, 0))
    menu = {lines[0].name: {"sold_out": why == "sold out"}}
    builder.patch("restaurants", order.restaurant, paused=why == "paused", menu=menu)
    reads = (_ACCOUNT, gold_call("get_restaurant", name=order.restaurant))
    if why and either:
        goal = replace(goal, required_terms=(*mention.required_terms, lines[0].name), gold_turns=reads)
        return _refund(goal, order, lines, "credit", vague=False)
    if why:
        what = "has paused orders" if why == "paused" else f"is sold out of {lines[0].name}"
        reason = f"{order.restaurant} {what}, so I cannot redeliver it."
        return add_refusal(builder, goal, reads, reason, (why if why == "paused" else "sold out|sold_out",), easy)
    do = gold_call("redeliver_items", order_id=order.id, items=[lines[0].name])
    turns = gold_change(f"redeliver the {lines[0].name} of {mention.proposal_phrase}", do, "It is on its way.")
    return replace(goal, gold_turns=reads + turns)


def claim_over_refund_limit(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for a refund after so many refunds that a human must decide."""
    mention, lines = builder.order_mention(order, knowledge), _some(builder, order, 1)
    back = builder.phrase(f"back.{'credit'}")
    missed = f"{builder.phrase('missing', items=_listed(lines))} {back}"
    text = builder.rng.choice((missed, builder.phrase("late")))
    builder.set_refunds(MAX_REFUNDS)
    builder.set_delivered(order, late=builder.rng.randint(20, 90))
    return GoalSpec(text, mention, (_ACCOUNT, *_transfer("refund limit reached")), required_terms=(_HUMAN,))


def ask_out_of_scope(
    builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for something that no tool can do."""
    summary = builder.rng.choice(_OUTSIDE)
    return GoalSpec(builder.phrase(f"outside.{summary}"), gold_turns=_transfer(summary), required_terms=(_HUMAN,))


_HUMAN = "human|transfer|transferred"
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


def _transfer(summary: str) -> tuple[Message, ...]:
    return gold_call("transfer_to_human", summary=summary), gold_text("I have transferred you to a human agent.")


def _not_claimed(
    builder: DoordashTaskBuilder, goal: GoalSpec, order: Order, lines: Sequence[OrderLine], action: str, easy: bool
) -> GoalSpec:
    """Refuse a claim: the order was not delivered, or too long ago, or the dishes were already refunded."""
    why = builder.rng.choice(("status", "old", "refunded") if lines else ("status", "old"))
    if why == "status":
        return add_status_refusal(builder, goal, order, _UNDELIVERED, action, easy)
    if why == "old":
        day = builder.set_delivered(order, builder.draw_minutes_ago(3, 25), late=40)[:10]
        reason = f"Order {order.id} was delivered on {day}, more than 48 hours ago, so I cannot {action}."
        return add_refusal(builder, goal, (), reason, (date_variants(day),), easy)
    builder.set_delivered(order)
    builder.patch("orders", order.id, refunded={line.name: "payment" for line in lines})
    reason = f"The {_listed(lines)} of order {order.id} was already refunded, so I cannot {action}."
    return add_refusal(builder, goal, (), reason, ("refunded",), easy)


def _refund(goal: GoalSpec, order: Order, lines: Sequence[OrderLine], to: RefundTarget, vague: bool) -> GoalSpec:
    """Add the gold turns that ask for the target, calculate and refund."""
    assert isinstance(goal.mention, DoordashOrderMention)
    refund, price = refund_amount(order, lines), sum(line.price for line in lines)
    amount, summed = f"{refund:.2f}", lines if refund == price else order.items
    expression = " + ".join(f"{line.price}" for line in summed) + f" - {order.discount}" * (refund < price)
    asks = (gold_text("Where should the refund go: to your payment method or as credit?"),) if vague else ()
    sums = (gold_call("calculate", expression=expression),) if expression != amount else ()
    where = "as credit" if to == "credit" else f"to your {payment_kind(order.payment)} {order.payment}"
    do = gold_call("refund_items", order_id=order.id, items=[line.name for line in lines], to=to)
    proposal = f"refund {amount} for the {_listed(lines)} of {goal.mention.proposal_phrase} {where}"
    names = (*goal.required_terms, _AS_CREDIT if to == "credit" else payment_variants(order.payment), amount)
    turns = (*goal.gold_turns, *asks, *sums, *gold_change(proposal, do, f"You have been refunded {amount}."))
    return replace(goal, gold_turns=turns, required_terms=names, outputs=(amount,))


def _some(builder: DoordashTaskBuilder, order: Order, most: int) -> list[OrderLine]:
    """Draw one or more lines of an order."""
    count = builder.rng.randint(1, min(most, len(order.items)))
    return builder.rng.sample(order.items, count)


def _listed(lines: Sequence[OrderLine]) -> str:
    return " and the ".join(line.name for line in lines)
