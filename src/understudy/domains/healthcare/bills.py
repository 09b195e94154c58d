"""Requests about bills: pay one, pay one in monthly installments, and ask what is owed."""

from dataclasses import replace
from decimal import Decimal
from typing import get_args

from understudy.domains.drafts import Want, call, change, say
from understudy.domains.healthcare import phrases, refs
from understudy.domains.healthcare.drafts import Draft
from understudy.domains.healthcare.state import LEAST_INSTALLMENT, Bill, Months
from understudy.tasks import Fact

_PAY = "pay|paid|paying|payment|charge"
_WHICH_CARD = ("which card", "what card", "how do you want", "how would you", "pay with")
_HOW_LONG = ("how many months", "how long", "months")
_SETTLED = {
    "paid": "is paid already",
    "payment plan": "is on a payment plan already",
    "in collections": "is in collections",
}


def pay(draft: Draft, ok: bool, easy: bool) -> Want:
    """Pay the whole of a bill with a card on file."""
    row, vague = _bill(draft, ok), not easy and draft.likely(0.3)
    ref, card = refs.bill(draft, row, easy), draft.random.choice(draft.patient.payments)
    kind = phrases.CARDS[card.partition("_")[0]]
    text = draft.pick(phrases.PAY_VAGUE if vague else phrases.PAY, card=kind)
    facts = (Fact(says=f"With my {kind}.", cues=_WHICH_CARD, opened=not vague),)
    want = Want(text, ref, refs.reads(ref, "bills"), names=(*ref.names, _PAY, f"{kind}|{card}"), facts=facts)
    if not ok:
        return _refused(draft, want, row, easy)
    asks = (say("Which card do you want to pay with?"),) if vague else ()
    do = call("pay_bill", bill_id=row.id, payment_id=card)
    turns = change(f"pay {row.amount} for {_named(row)} with your {kind} {card}", do, "The bill is paid.")
    return replace(want, turns=(*want.turns, *asks, call("get_patient"), *turns))


def spread(draft: Draft, ok: bool, easy: bool) -> Want:
    """Pay a bill in equal monthly installments, unless they would be too small."""
    months, vague = draft.random.choice(get_args(Months)), not easy and draft.likely(0.3)
    small = not ok and draft.likely(0.6)
    monthly = Decimal(draft.random.randint(20, 48) if small else draft.random.randint(50, 110)) / 2
    row = draft.change("bills", _bill(draft, ok or small), amount=f"{monthly * months:.2f}")
    ref = refs.bill(draft, row, easy)
    text = draft.pick(phrases.SPREAD_VAGUE if vague else phrases.SPREAD, months=f"{months}")
    facts = (Fact(says=f"Over {months} months.", cues=_HOW_LONG, opened=not vague),)
    names = (*ref.names, f"{months}", f"{monthly:.2f}")
    want = Want(text, ref, refs.reads(ref, "bills"), names=names, facts=facts)
    if not ok and not small:
        return _refused(draft, want, row, easy)
    asks = (say("Over how many months: 3, 6 or 12?"),) if vague else ()
    want = replace(want, turns=(*want.turns, *asks, call("calculate", expression=f"{row.amount} / {months}")))
    if small:
        text = f"That is {monthly:.2f} a month, and less than {LEAST_INSTALLMENT} a month is not possible."
        return draft.refused(want, text, f"{monthly:.2f}", easy=easy)
    do = call("set_payment_plan", bill_id=row.id, months=months)
    proposal = f"set up a payment plan for {_named(row)}: {months} months at {monthly:.2f} a month"
    return replace(want, turns=want.turns + change(proposal, do, "The payment plan is set up."))


def owed(draft: Draft, ok: bool, easy: bool) -> Want:
    """Ask what a bill comes to; or, not as easy, what is open on all of them."""
    rows: list[Bill] = draft.own("bills")
    if easy or len(rows) < 2:
        row = draft.random.choice(rows)
        ref = refs.bill(draft, row, easy)
        answer = say(f"It comes to {row.amount}.")
        turns = (*refs.reads(ref, "bills"), answer)
        return Want(draft.pick(phrases.AMOUNT), ref, turns, "number", outputs=(str(row.amount),))
    rows = [draft.change("bills", row, status="open") for row in rows]
    sums = call("calculate", expression=" + ".join(str(row.amount) for row in rows))
    total = str(sum(row.amount for row in rows))
    turns = (call("get_records", kind="bills"), sums, say(f"You owe {total} in all."))
    return Want(draft.pick(phrases.OWED), turns=turns, kind="number", outputs=(total,))


def _bill(draft: Draft, opened: bool) -> Bill:
    """Have a bill open or settled."""
    status = "open" if opened else draft.random.choice(tuple(_SETTLED))
    rows: list[Bill] = draft.own("bills")
    return draft.change("bills", draft.random.choice(rows), status=status)


def _named(row: Bill) -> str:
    return f"bill {row.id} of {row.date}"


def _refused(draft: Draft, want: Want, row: Bill, easy: bool) -> Want:
    text = f"Bill {row.id} {_SETTLED[row.status]}, so I cannot take a payment for it."
    return draft.refused(
        want, text, "in collections|collections" if row.status == "in collections" else row.status, easy=easy
    )
