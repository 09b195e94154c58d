"""Requests about bills: pay one, pay one in installments, and ask what is owed."""

from dataclasses import replace
from decimal import Decimal
from typing import get_args

from understudy.domains.authoring.payments import payment_kind
from understudy.domains.authoring.request import VAGUE_SHARE, Detail, answer, grant, refuse, request
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.healthcare.goals.mentions import bill_mention
from understudy.domains.healthcare.state import MIN_INSTALLMENT, Bill, InstallmentCount
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.envs.gold import gold_call

_PAY = "pay|pays|paid|paying|payment|charge|charges|charged|charging"
_STATUS_TEXTS = {
    "paid": "is already paid",
    "payment plan": "is already on a payment plan",
    "in collections": "is in collections",
}
CARD = Detail(
    "pay",
    "pay_vague",
    "pay_with",
    "Which card would you like to pay with?",
    ("which card", "what card", "how do you want", "how would you", "pay with"),
)
MONTHS = Detail(
    "spread",
    "spread_vague",
    "months",
    "Over how many months would you like to pay: 3, 6 or 12?",
    ("how many months", "how long", "months"),
)


def pay_bill(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Pay the full amount of a bill with a card on file."""
    row, vague = _draw_bill(b, grantable), not easy and b.draw_bool(VAGUE_SHARE)
    mention, card = bill_mention(b, row, easy), b.rng.choice(b.patient.payments)
    kind = payment_kind(card)
    goal = request(b, CARD, mention, vague, _PAY, str(row.amount), f"{kind}|{card}", card=kind)
    if not grantable:
        return _refuse_settled(b, goal, row, easy)
    call = gold_call("pay_bill", bill_id=row.id, payment_id=card)
    proposal = f"pay {row.amount} for bill {row.id} of {row.date} with your {kind} {card}"
    return grant(goal, proposal, call, "The bill has been paid.", [gold_call("get_patient")])


def pay_in_installments(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Pay a bill in equal monthly installments, unless they are too small."""
    months, vague = b.rng.choice(get_args(InstallmentCount)), not easy and b.draw_bool(VAGUE_SHARE)
    too_small = not grantable and b.draw_bool(0.6)
    monthly = Decimal(b.rng.randint(20, 48) if too_small else b.rng.randint(50, 110)) / 2
    row = b.update_row("bills", _draw_bill(b, grantable or too_small), amount=f"{monthly * months:.2f}")
    mention = bill_mention(b, row, easy)
    goal = request(b, MONTHS, mention, vague, f"{months}", f"{monthly:.2f}", months=f"{months}")
    if not grantable and not too_small:
        return _refuse_settled(b, goal, row, easy)
    reads = [gold_call("calculate", expression=f"{row.amount} / {months}")]
    if too_small:
        reason = f"That would be {monthly:.2f} a month, and less than {MIN_INSTALLMENT} a month is not possible."
        return refuse(b, goal, reason, f"{monthly:.2f}", easy=easy, reads=reads)
    call = gold_call("set_payment_plan", bill_id=row.id, months=months)
    proposal = f"set up a payment plan for bill {row.id} of {row.date}: {months} months at {monthly:.2f} a month"
    return grant(goal, proposal, call, "The payment plan has been set up.", reads)


def ask_amount_owed(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask for the amount of a bill, or unless `easy` for the total of all open bills."""
    rows: list[Bill] = b.patient_rows("bills")
    if easy or len(rows) < 2:
        row = b.rng.choice(rows)
        mention = bill_mention(b, row, easy)
        goal = GoalSpec(b.phrase("amount"), mention, kind="number")
        return answer(goal, f"The amount is {row.amount}.", str(row.amount))
    rows = [b.update_row("bills", row, status="open") for row in rows]
    calculation = gold_call("calculate", expression=" + ".join(str(row.amount) for row in rows))
    total = str(sum(row.amount for row in rows))
    goal = GoalSpec(b.phrase("owed"), kind="number")
    return answer(
        goal, f"You owe {total} in total.", total, reads=[gold_call("get_records", kind="bills"), calculation]
    )


def _draw_bill(b: HealthcareTaskBuilder, is_open: bool) -> Bill:
    """Draw a bill, and set it to open or settled."""
    status = "open" if is_open else b.rng.choice(tuple(_STATUS_TEXTS))
    rows: list[Bill] = b.patient_rows("bills")
    return b.update_row("bills", b.rng.choice(rows), status=status)


def _refuse_settled(b: HealthcareTaskBuilder, goal: GoalSpec, row: Bill, easy: bool) -> GoalSpec:
    reason = f"Bill {row.id} {_STATUS_TEXTS[row.status]}, so I cannot take a payment for it."
    output = "in collections|collections" if row.status == "in collections" else row.status
    return refuse(b, replace(goal, gold_turns=()), reason, output, easy=easy)  # before any question for a detail
