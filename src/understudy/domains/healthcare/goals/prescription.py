"""Requests about medicines: refill one, or move it to another pharmacy."""

from dataclasses import replace

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change, gold_proposal, gold_text
from understudy.domains.healthcare.clinic_calendar import add_days
from understudy.domains.healthcare.goals import mentions
from understudy.domains.healthcare.state import REFILL_TOO_EARLY_AFTER, TODAY, Prescription
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.envs.dates import date_variants

_REFILL = "refill|refilled|renew|renewal|renewed|fill|filled"
_WHICH_PHARMACY = ("which pharmacy", "what pharmacy", "new pharmacy", "where")


def request_refill(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Refill a medicine, or request a renewal from the doctor if the pharmacy may not refill it."""
    row = _set_refillable(builder)
    if not grantable and builder.draw_bool(0.6):
        row = builder.update_row(
            "prescriptions", row, lasts_until=add_days(REFILL_TOO_EARLY_AFTER, builder.rng.randint(1, 40))
        )
    elif not grantable:
        row = _requested(builder, row)
    elif builder.draw_bool(0.4):
        row = _set_needs_doctor(builder, row)
    mention = mentions.prescription_mention(builder, row, easy)
    fact = Fact(text=builder.phrase("renew"), keywords=("renew", "doctor"))
    turns = mentions.record_lookup(mention, "prescriptions")
    goal = GoalSpec(
        builder.phrase("refill"),
        mention,
        turns,
        required_terms=(*mention.required_terms, _REFILL),
        facts=(fact,),
    )
    if row.requested:
        return _busy(builder, goal, row, easy)
    if not grantable:
        owner = builder.possessive if builder.caller else "Your"
        text = f"{owner} {row.drug} lasts until {row.lasts_until}, so I cannot refill it yet."
        return builder.add_refusal(goal, text, date_variants(row.lasts_until), easy=easy)
    return replace(goal, gold_turns=goal.gold_turns + _filled(row))


def change_pharmacy(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Move a medicine to a named pharmacy, or to the one of two that closes later."""
    row = _set_refillable(builder)
    if not grantable:
        row = (_controlled(builder) if builder.draw_bool(0.5) else None) or _requested(builder, row)
    mention = mentions.prescription_mention(builder, row, easy)
    compared, vague = not easy and builder.draw_bool(0.4), not easy and builder.draw_bool(0.3)
    target, other = _pharmacies(builder, row)
    one, two = builder.rng.sample((target, other), 2)
    to = builder.phrase("later", one=one, two=two) if compared else target
    fact = Fact(text=builder.phrase("to_pharmacy", to=to), keywords=_WHICH_PHARMACY, in_opening=not vague)
    text = builder.phrase("pharmacy_vague" if vague else "pharmacy", pharmacy=to)
    names = (*mention.required_terms, target)
    goal = GoalSpec(
        text, mention, mentions.record_lookup(mention, "prescriptions"), required_terms=names, facts=(fact,)
    )
    if row.controlled:
        text = f"{row.drug.capitalize()} is controlled, so I cannot move it to another pharmacy."
        return builder.add_refusal(goal, text, "controlled", easy=easy)
    if row.requested:
        return _busy(builder, goal, row, easy)
    asks = (gold_text("Which pharmacy do you want to move it to?"),) if vague else ()
    looks = (gold_call("find_pharmacies"),) if compared else ()
    return replace(goal, gold_turns=(*goal.gold_turns, *asks, *looks, *_moved(row, target)))


def correct_pharmacy(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask to move a medicine to one pharmacy, then to another one when asked to confirm."""
    row = _set_refillable(builder)
    mention, (target, first) = mentions.prescription_mention(builder, row, easy), _pharmacies(builder, row)
    text = builder.phrase("pharmacy", pharmacy=first)
    meant = f"{builder.phrase('change_of_mind')} {builder.phrase('pharmacy', pharmacy=target)}"
    turns = (
        *mentions.record_lookup(mention, "prescriptions"),
        gold_proposal(f"move {_named(row)} to {first}"),
        *_moved(row, target),
    )
    return GoalSpec(text, mention, turns, required_terms=(*mention.required_terms, target), final_text=meant)


def _set_refillable(builder: HealthcareTaskBuilder) -> Prescription:
    """Set up a prescription that can be refilled."""
    rows: list[Prescription] = [row for row in builder.patient_rows("prescriptions") if not row.controlled]
    fields = {
        "refills": builder.rng.randint(1, 5),
        "expires": add_days(TODAY, builder.rng.randint(20, 300)),
        "lasts_until": add_days(TODAY, builder.rng.randint(-3, 7)),
    }
    return builder.update_row("prescriptions", builder.rng.choice(rows), **fields)


def _set_needs_doctor(builder: HealthcareTaskBuilder, row: Prescription) -> Prescription:
    """Make the prescription expired or without refills, or choose a controlled one."""
    choice = builder.rng.choice(("expired", "used up", "controlled"))
    if choice == "controlled":
        controlled = _controlled(builder)
        same = {"lasts_until": row.lasts_until}
        return (
            builder.update_row("prescriptions", controlled, **same) if controlled else _set_needs_doctor(builder, row)
        )
    expired = {"expires": add_days(TODAY, -builder.rng.randint(1, 60))}
    return builder.update_row("prescriptions", row, **(expired if choice == "expired" else {"refills": 0}))


def _controlled(builder: HealthcareTaskBuilder) -> Prescription | None:
    rows: list[Prescription] = [row for row in builder.patient_rows("prescriptions") if row.controlled]
    return builder.rng.choice(rows) if rows else None


def _requested(builder: HealthcareTaskBuilder, row: Prescription) -> Prescription:
    """Set an open refill or renewal request for the prescription."""
    return builder.update_row("prescriptions", row, requested=builder.rng.choice(("refill", "renewal")))


def _pharmacies(builder: HealthcareTaskBuilder, row: Prescription) -> tuple[str, str]:
    """Draw two other pharmacies, the one that closes later first."""
    known = {name: p.closes for name, p in builder.world.pharmacies.items() if name != row.pharmacy}
    first = builder.rng.choice([name for name, closes in known.items() if closes > min(known.values())])
    return first, builder.rng.choice([name for name, closes in known.items() if closes < known[first]])


def _filled(row: Prescription) -> tuple[Message, ...]:
    if not row.needs_doctor:
        do = gold_call("request_refill", prescription_id=row.id)
        return gold_change(f"request a refill of {_named(row)}", do, "The refill has been requested.")
    do = gold_call("request_renewal", prescription_id=row.id)
    why = f"because it {row.needs_doctor}"
    return gold_change(f"ask Dr. {row.doctor} to renew {_named(row)}, {why}", do, "The renewal has been requested.")


def _moved(row: Prescription, target: str) -> tuple[Message, ...]:
    do = gold_call("change_pharmacy", prescription_id=row.id, pharmacy=target)
    return gold_change(f"move {_named(row)} to {target}", do, "The prescription has been moved.")


def _named(row: Prescription) -> str:
    return f"{row.drug} {row.strength} (prescription {row.id})"


def _busy(builder: HealthcareTaskBuilder, goal: GoalSpec, row: Prescription, easy: bool) -> GoalSpec:
    text = f"A {row.requested} of {row.drug} has already been requested, so I cannot do that now."
    return builder.add_refusal(goal, text, "requested|in progress", easy=easy)
