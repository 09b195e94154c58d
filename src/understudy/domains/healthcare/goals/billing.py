"""Requests about bills: pay one, pay one in installments, and ask what is owed."""

from dataclasses import replace
from decimal import Decimal
from typing import get_args

from understudy.core.tasks import Fact
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change, gold_text
from understudy.domains.healthcare.goals import mentions
from understudy.domains.healthcare.state import MIN_INSTALLMENT, Bill, InstallmentCount
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder

_PAY = "pay|paid|paying|payment|charge"
_WHICH_CARD = ("which card", "what card", "how do you want", "how would you", "pay with")
_HOW_LONG = ("how many months", "how long", "months")
_CARDS = {"card": "credit card", "hsa": "HSA card"}
_SETTLED = {
    "paid": "is already paid",
    "payment plan": "is already on a payment plan",
    "in collections": "is in collections",
}


def pay_bill(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Pay the full amount of a bill with a card on file."""
    row, vague = _bill(builder, grantable), not easy and builder.draw_bool(0.3)
    mention, card = mentions.bill_mention(builder, row, easy), builder.rng.choice(builder.patient.payments)
    kind = _CARDS[card.partition("_")[0]]
    text = builder.phrase("pay_vague" if vague else "pay", card=kind)
    facts = (Fact(text=builder.phrase("pay_with", card=kind), keywords=_WHICH_CARD, in_opening=not vague),)
    goal = GoalSpec(
        text,
        mention,
        mentions.record_lookup(mention, "bills"),
        required_terms=(*mention.required_terms, _PAY, str(row.amount), f"{kind}|{card}"),
        facts=facts,
    )
    if not grantable:
        return _refused(builder, goal, row, easy)
    asks = (gold_text("Which card would you like to pay with?"),) if vague else ()
    do = gold_call("pay_bill", bill_id=row.id, payment_id=card)
    turns = gold_change(f"pay {row.amount} for {_named(row)} with your {kind} {card}", do, "The bill has been paid.")
    return replace(goal, gold_turns=(*goal.gold_turns, *asks, gold_call("get_patient"), *turns))


def pay_in_installments(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Pay a bill in equal monthly installments, unless they are too small."""
    months, vague = builder.rng.choice(get_args(InstallmentCount)), not easy and builder.draw_bool(0.3)
    small = not grantable and builder.draw_bool(0.6)
    monthly = Decimal(builder.rng.randint(20, 48) if small else builder.rng.randint(50, 110)) / 2
    row = builder.update_row("bills", _bill(builder, grantable or small), amount=f"{monthly * months:.2f}")
    mention = mentions.bill_mention(builder, row, easy)
    text = builder.phrase("spread_vague" if vague else "spread", months=f"{months}")
    facts = (Fact(text=builder.phrase("months", months=f"{months}"), keywords=_HOW_LONG, in_opening=not vague),)
    names = (*mention.required_terms, f"{months}", f"{monthly:.2f}")
    goal = GoalSpec(text, mention, mentions.record_lookup(mention, "bills"), required_terms=names, facts=facts)
    if not grantable and not small:
        return _refused(builder, goal, row, easy)
    asks = (gold_text("Over how many months would you like to pay: 3, 6 or 12?"),) if vague else ()
    goal = replace(
        goal, gold_turns=(*goal.gold_turns, *asks, gold_call("calculate", expression=f"{row.amount} / {months}"))
    )
    if small:
        text = f"That would be {monthly:.2f} a month, and less than {MIN_INSTALLMENT} a month is not possible."
        return builder.add_refusal(goal, text, f"{monthly:.2f}", easy=easy)
    do = gold_call("set_payment_plan", bill_id=row.id, months=months)
    proposal = f"set up a payment plan for {_named(row)}: {months} months at {monthly:.2f} a month"
    return replace(goal, gold_turns=goal.gold_turns + gold_change(proposal, do, "The payment plan has been set up."))


def ask_amount_owed(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for the amount of a bill, or unless `easy` for the total of all open bills."""
    rows: list[Bill] = builder.patient_rows("bills")
    if easy or len(rows) < 2:
        row = builder.rng.choice(rows)
        mention = mentions.bill_mention(builder, row, easy)
        answer = gold_text(f"The amount is {row.amount}.")
        turns = (*mentions.record_lookup(mention, "bills"), answer)
        return GoalSpec(builder.phrase("amount"), mention, turns, "number", outputs=(str(row.amount),))
    rows = [builder.update_row("bills", row, status="open") for row in rows]
    sums = gold_call("calculate", expression=" + ".join(str(row.amount) for row in rows))
    total = str(sum(row.amount for row in rows))
    turns = (gold_call("get_records", kind="bills"), sums, gold_text(f"You owe {total} in total."))
    return GoalSpec(builder.phrase("owed"), gold_turns=turns, kind="number", outputs=(total,))


def _bill(builder: HealthcareTaskBuilder, opened: bool) -> Bill:
    """Set a bill to open or settled."""
    status = "open" if opened else builder.rng.choice(tuple(_SETTLED))
    rows: list[Bill] = builder.patient_rows("bills")
    return builder.update_row("bills", builder.rng.choice(rows), status=status)


def _named(row: Bill) -> str:
    return f"bill {row.id} of {row.date}"


def _refused(builder: HealthcareTaskBuilder, goal: GoalSpec, row: Bill, easy: bool) -> GoalSpec:
    text = f"Bill {row.id} {_SETTLED[row.status]}, so I cannot take a payment for it."
    return builder.add_refusal(
        goal, text, "in collections|collections" if row.status == "in collections" else row.status, easy=easy
    )
