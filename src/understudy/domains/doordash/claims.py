"""Requests about a delivery that went wrong: missing dishes, a late arrival, and what a human has to decide."""

from collections.abc import Sequence
from dataclasses import replace

from understudy.domains.callers import Knowledge
from understudy.domains.days import any_day
from understudy.domains.doordash import phrases
from understudy.domains.doordash.drafts import Draft, Ref
from understudy.domains.doordash.pricing import LATE_CREDITS, REFUNDS, refund_of
from understudy.domains.doordash.state import Line, Order, Status, Target
from understudy.domains.doordash.wants import kind, payment_names, refused, too_late
from understudy.domains.drafts import Want, call, change, say
from understudy.messages import Message
from understudy.tasks import Fact

_REFUND = "refund|refunded|refunding|pay back|give back|credit"
_AS_CREDIT = "as credit|to credit|in credit|delivery credit|account credit|credit balance"
_AGAIN = "again|redeliver|redelivered|redelivery|resend|re-send|replacement|new"
_WHERE_TO = ("as credit", "how do you want", "where should", "where do you want", "payment or")
_UNDELIVERED: Sequence[Status] = ("placed", "accepted", "preparing", "picked up", "cancelled")
_ACCOUNT = call("get_customer")


def missing(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Want money back for one dish or two that were not in the bag."""
    ref, lines = draft.ref(order, knows, itemized=True), _some(draft, order, 1 if easy else 2)
    to: Target = draft.random.choice(("payment", "credit"))
    vague = not easy and draft.likely(0.3)
    back = draft.pick(phrases.BACK[to], kind=kind(order.payment))
    text = draft.pick(phrases.MISSING, items=_listed(lines)) + ("" if vague else f" {back}")
    facts = (Fact(says=back, cues=_WHERE_TO, opened=not vague),)
    want = Want(text, ref, names=(*ref.names, *(line.name for line in lines), _REFUND), facts=facts)
    if not ok:
        return _not_claimed(draft, want, order, lines, "refund anything", easy)
    draft.few_refunds()
    draft.came(order)
    return _refund(replace(want, turns=(_ACCOUNT,)), order, lines, to, vague)


def late(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Want something back for a late delivery."""
    ref = draft.ref(order, knows)
    want = Want(draft.pick(phrases.LATE), ref, names=(*ref.names, "credit|credited|crediting"))
    if not ok and draft.likely(0.6):
        return _not_claimed(draft, want, order, (), "credit anything", easy)
    minutes = draft.random.randint(1, 14) if not ok else draft.random.randint(15, 95)
    draft.few_refunds()
    draft.came(order, late=minutes)
    if not ok:
        reason = f"Order {order.id} was {minutes} minutes late, so I cannot credit anything."
        return refused(draft, want, (), reason, (f"{minutes}",), easy)
    amount = f"{next(amount for least, amount in LATE_CREDITS if minutes >= least)}"
    do = call("credit_late_delivery", order_id=order.id, amount=float(amount))
    proposal = f"credit {amount} for {ref.named}, which was {minutes} minutes late"
    turns = (_ACCOUNT, *change(proposal, do, f"You get {amount} as credit."))
    return replace(want, turns=turns, outputs=(amount,))


def redeliver(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Want a missing dish brought again; some would else take its price as credit."""
    ref, lines = draft.ref(order, knows, itemized=True), _some(draft, order, 1)
    either = not easy and draft.likely(0.5)
    text = draft.pick(phrases.REDELIVER, items=_listed(lines)) + (f" {phrases.OR_CREDIT}" if either else "")
    want = Want(text, ref, names=(*ref.names, lines[0].name, _AGAIN))
    why = "" if ok else draft.random.choice(("claim", "paused", "sold out"))
    if why == "claim":
        return _not_claimed(draft, want, order, lines, "send anything again", easy)
    draft.few_refunds()
    draft.came(order, draft.past(0, 0))
    menu = {lines[0].name: {"sold_out": why == "sold out"}}
    draft.patch("restaurants", order.restaurant, paused=why == "paused", menu=menu)
    reads = (_ACCOUNT, call("get_restaurant", name=order.restaurant))
    if why and either:
        want = replace(want, names=(*ref.names, lines[0].name), turns=reads)
        return _refund(want, order, lines, "credit", vague=False)
    if why:
        what = "has paused" if why == "paused" else f"is sold out of {lines[0].name}"
        reason = f"{order.restaurant} {what}, so I cannot send that again."
        return refused(draft, want, reads, reason, (why if why == "paused" else "sold out|sold_out",), easy)
    do = call("redeliver_items", order_id=order.id, items=[lines[0].name])
    turns = change(f"send the {lines[0].name} of {ref.named} again", do, "It is on its way.")
    return replace(want, turns=reads + turns)


def over_limit(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Want money back, after so many refunds that a human has to decide."""
    ref, lines = draft.ref(order, knows), _some(draft, order, 1)
    back = draft.pick(phrases.BACK["credit"])
    missed = f"{draft.pick(phrases.MISSING, items=_listed(lines))} {back}"
    text = draft.random.choice((missed, draft.pick(phrases.LATE)))
    draft.refunded(REFUNDS)
    draft.came(order, late=draft.random.randint(20, 90))
    return Want(text, ref, (_ACCOUNT, *_transfer("refund limit reached")), names=(_HUMAN,))


def outside(draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask for what no tool can do."""
    summary, texts = draft.random.choice(list(phrases.OUTSIDE.items()))
    return Want(draft.pick(texts), turns=_transfer(summary), names=(_HUMAN,))


_HUMAN = "human|transfer|transferred"


def _transfer(summary: str) -> tuple[Message, ...]:
    return call("transfer_to_human", summary=summary), say("You are transferred to a human agent.")


def _not_claimed(draft: Draft, want: Want, order: Order, lines: Sequence[Line], action: str, easy: bool) -> Want:
    """A claim on an order that was not delivered, or too long ago, or for dishes that were refunded before."""
    why = draft.random.choice(("status", "old", "refunded") if lines else ("status", "old"))
    if why == "status":
        return too_late(draft, want, order, _UNDELIVERED, action, easy)
    if why == "old":
        day = draft.came(order, draft.past(3, 25), late=40)[:10]
        reason = f"Order {order.id} was delivered on {day}, more than 48 hours ago, so I cannot {action}."
        return refused(draft, want, (), reason, (any_day(day),), easy)
    draft.came(order)
    draft.patch("orders", order.id, refunded={line.name: "payment" for line in lines})
    reason = f"You were refunded for the {_listed(lines)} of order {order.id} before, so I cannot {action}."
    return refused(draft, want, (), reason, ("refunded",), easy)


def _refund(want: Want, order: Order, lines: Sequence[Line], to: Target, vague: bool) -> Want:
    """After what the want reads: ask where to, sum up, refund."""
    assert isinstance(want.about, Ref)
    refund, price = refund_of(order, lines), sum(line.price for line in lines)
    amount, summed = f"{refund:.2f}", lines if refund == price else order.items
    expression = " + ".join(f"{line.price}" for line in summed) + f" - {order.discount}" * (refund < price)
    asks = (say("Where should the refund go: to your payment or as credit?"),) if vague else ()
    sums = (call("calculate", expression=expression),) if expression != amount else ()
    where = "as credit" if to == "credit" else f"to your {kind(order.payment)} {order.payment}"
    do = call("refund_items", order_id=order.id, items=[line.name for line in lines], to=to)
    proposal = f"refund {amount} for the {_listed(lines)} of {want.about.named} {where}"
    names = (*want.names, _AS_CREDIT if to == "credit" else payment_names(order.payment), amount)
    turns = (*want.turns, *asks, *sums, *change(proposal, do, f"You get {amount} back."))
    return replace(want, turns=turns, names=names, outputs=(amount,))


def _some(draft: Draft, order: Order, most: int) -> list[Line]:
    """One line of an order, or more."""
    count = draft.random.randint(1, min(most, len(order.items)))
    return draft.random.sample(order.items, count)


def _listed(lines: Sequence[Line]) -> str:
    return " and the ".join(line.name for line in lines)
