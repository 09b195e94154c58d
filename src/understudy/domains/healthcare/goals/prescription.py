"""Requests about medicines: refill one, or move it to another pharmacy."""

from dataclasses import replace

from understudy.core.tasks import Fact
from understudy.domains.authoring.request import (
    VAGUE_SHARE,
    add_detail,
    change_mind,
    grant,
    plain_request,
    refuse,
)
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.healthcare.goals.mentions import prescription_mention
from understudy.domains.healthcare.state import REFILL_TOO_EARLY_AFTER, TODAY, Prescription
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.envs.dates import add_days, date_variants
from understudy.envs.gold import gold_call

_REFILL = "refill|refills|refilled|refilling|renew|renews|renewed|renewing|renewal|fill|fills|filled|filling"
_WHICH_PHARMACY = ("which pharmacy", "what pharmacy", "new pharmacy", "where")


def request_refill(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Refill a medicine, or request a renewal from the doctor if the pharmacy may not refill it."""
    row = _set_refillable(b)
    if not grantable and b.draw_bool(0.6):
        later = add_days(REFILL_TOO_EARLY_AFTER, b.rng.randint(1, 40))
        row = b.update_row("prescriptions", row, lasts_until=later)
    elif not grantable:
        row = _set_requested(b, row)
    elif b.draw_bool(0.4):
        row = _set_needs_doctor(b, row)
    mention = prescription_mention(b, row, easy)
    fact = Fact(text=b.phrase("renew"), keywords=("renew", "doctor"))
    goal = replace(plain_request(b.phrase("refill"), mention, _REFILL), facts=(fact,))
    if row.requested:
        return _refuse_requested(b, goal, row, easy)
    if not grantable:
        owner = b.possessive if b.caller else "Your"
        reason = f"{owner} {row.drug} lasts until {row.lasts_until}, so I cannot refill it yet."
        return refuse(b, goal, reason, date_variants(row.lasts_until), easy=easy)
    if row.needs_doctor:
        call = gold_call("request_renewal", prescription_id=row.id)
        proposal = f"ask Dr. {row.doctor} to renew {_describe(row)}, because it {row.needs_doctor}"
        return grant(goal, proposal, call, "The renewal has been requested.")
    call = gold_call("request_refill", prescription_id=row.id)
    return grant(goal, f"request a refill of {_describe(row)}", call, "The refill has been requested.")


def change_pharmacy(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Move a medicine to a named pharmacy, or to the one of two that closes later."""
    row = _set_refillable(b)
    if not grantable:
        row = (_draw_controlled(b) if b.draw_bool(0.5) else None) or _set_requested(b, row)
    mention = prescription_mention(b, row, easy)
    compared, vague = not easy and b.draw_bool(0.4), not easy and b.draw_bool(VAGUE_SHARE)
    target, earlier = _draw_pharmacies(b, row)
    one, two = b.rng.sample((target, earlier), 2)
    to = b.phrase("later", one=one, two=two) if compared else target
    answer = b.phrase("to_pharmacy", to=to)
    goal = plain_request(b.phrase("pharmacy_vague" if vague else "pharmacy", pharmacy=to), mention, target)
    goal = add_detail(goal, answer, "Which pharmacy do you want to move it to?", _WHICH_PHARMACY, vague=vague)
    if row.controlled:
        reason = f"{row.drug.capitalize()} is controlled, so I cannot move it to another pharmacy."
        return refuse(b, replace(goal, gold_turns=()), reason, "controlled", easy=easy)
    if row.requested:
        return _refuse_requested(b, goal, row, easy)
    if compared:
        goal = replace(goal, gold_turns=(*goal.gold_turns, gold_call("find_pharmacies")))
    return _grant_move(goal, row, target)


def correct_pharmacy(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask to move a medicine to one pharmacy, then to another one when asked to confirm."""
    row = _set_refillable(b)
    mention, (target, first) = prescription_mention(b, row, easy), _draw_pharmacies(b, row)
    goal = plain_request(b.phrase("pharmacy", pharmacy=first), mention, target)
    wish = f"{b.phrase('change_of_mind')} {b.phrase('pharmacy', pharmacy=target)}"
    return _grant_move(change_mind(goal, f"move {_describe(row)} to {first}", wish), row, target)


def _set_refillable(b: HealthcareTaskBuilder) -> Prescription:
    """Set up a prescription that can be refilled."""
    rows: list[Prescription] = [row for row in b.patient_rows("prescriptions") if not row.controlled]
    fields = {
        "refills": b.rng.randint(1, 5),
        "expires": add_days(TODAY, b.rng.randint(20, 300)),
        "lasts_until": add_days(TODAY, b.rng.randint(-3, 7)),
    }
    return b.update_row("prescriptions", b.rng.choice(rows), **fields)


def _set_needs_doctor(b: HealthcareTaskBuilder, row: Prescription) -> Prescription:
    """Make the prescription expired or without refills, or choose a controlled one."""
    cause = b.rng.choice(("expired", "used up", "controlled"))
    if cause == "controlled":
        controlled = _draw_controlled(b)
        if controlled is None:
            return _set_needs_doctor(b, row)
        return b.update_row("prescriptions", controlled, lasts_until=row.lasts_until)
    expired = {"expires": add_days(TODAY, -b.rng.randint(1, 60))}
    return b.update_row("prescriptions", row, **(expired if cause == "expired" else {"refills": 0}))


def _draw_controlled(b: HealthcareTaskBuilder) -> Prescription | None:
    rows: list[Prescription] = [row for row in b.patient_rows("prescriptions") if row.controlled]
    return b.rng.choice(rows) if rows else None


def _set_requested(b: HealthcareTaskBuilder, row: Prescription) -> Prescription:
    """Set an open refill or renewal request for the prescription."""
    return b.update_row("prescriptions", row, requested=b.rng.choice(("refill", "renewal")))


def _draw_pharmacies(b: HealthcareTaskBuilder, row: Prescription) -> tuple[str, str]:
    """Draw two other pharmacies, the one that closes later first."""
    closing = {name: pharmacy.closes for name, pharmacy in b.world.pharmacies.items() if name != row.pharmacy}
    first = b.rng.choice([name for name, closes in closing.items() if closes > min(closing.values())])
    return first, b.rng.choice([name for name, closes in closing.items() if closes < closing[first]])


def _grant_move(goal: GoalSpec, row: Prescription, target: str) -> GoalSpec:
    call = gold_call("change_pharmacy", prescription_id=row.id, pharmacy=target)
    return grant(goal, f"move {_describe(row)} to {target}", call, "The prescription has been moved.")


def _describe(row: Prescription) -> str:
    return f"{row.drug} {row.strength} (prescription {row.id})"


def _refuse_requested(b: HealthcareTaskBuilder, goal: GoalSpec, row: Prescription, easy: bool) -> GoalSpec:
    reason = f"A {row.requested} of {row.drug} has already been requested, so I cannot do that now."
    return refuse(b, replace(goal, gold_turns=()), reason, "requested|in progress", easy=easy)
