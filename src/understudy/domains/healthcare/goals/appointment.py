"""Requests about booked visits: cancel or move one, and changes of mind about that."""

from collections.abc import Sequence
from dataclasses import replace

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.request import CANCEL_TERMS, change_mind, grant, plain_request, refuse
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.healthcare.clinic_calendar import format_datetime
from understudy.domains.healthcare.goals.mentions import PatientRecordMention, appointment_mention
from understudy.domains.healthcare.goals.time_preference import TimePreference, draw_time_preference
from understudy.domains.healthcare.state import LATE_FEE, Appointment
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.envs.gold import gold_call

_STATUS_TERMS = {
    "cancelled": "cancelled|canceled",
    "no-show": "no-show|no show|missed",
    "completed": "completed|took place|taken place",
}
_STATUS_TEXTS = {"cancelled": "is already cancelled", "no-show": "was a no-show", "completed": "is completed"}


def cancel_appointment(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Cancel a visit. Less than 24 hours ahead there is a fee."""
    late = b.draw_bool(0.3)
    row = _draw_visit(b, grantable, late)
    mention = appointment_mention(b, row, easy)
    goal = plain_request(b.phrase("cancel"), mention, CANCEL_TERMS)
    goal = replace(goal, facts=(_fee_fact(b),))
    if not grantable:
        return _refuse_over(b, goal, row, "cancel it", easy or row.status == "cancelled")
    call = gold_call("cancel_appointment", appointment_id=row.id)
    proposal, terms = _add_fee(f"cancel {describe_appointment(row)}", late)
    return grant(goal, proposal, call, "The appointment has been cancelled.", terms=terms)


def reschedule_appointment(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Move a visit to another time. Less than 24 hours ahead there is a fee."""
    late = b.draw_bool(0.2)
    row = _draw_visit(b, grantable, late)
    mention = appointment_mention(b, row, easy)
    to = draw_time_preference(b, row.doctor, b.visit_minutes(row.doctor), easy)
    text = b.phrase("move_vague" if to.vague else "move", when=to.opening_phrase)
    goal = plain_request(text, mention, *to.required_terms)
    goal = replace(goal, facts=(*to.facts, _fee_fact(b)))
    if not grantable:
        return _refuse_over(b, goal, row, "move it", easy)
    return _grant_move(replace(goal, final_text=text + to.fallback if to.fallback else ""), row, to, late)


def correct_time(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask to move a visit to one time, then to another one when asked to confirm."""
    row = _draw_visit(b, True, False)
    mention = appointment_mention(b, row, easy)
    first = draw_time_preference(b, row.doctor, b.visit_minutes(row.doctor), True)
    text = b.phrase("move", when=first.opening_phrase)
    proposal = f"move {describe_appointment(row)} to {format_datetime(first.time)}"
    return _move_instead(b, text, mention, proposal, first.gold_turns)


def switch_cancel_to_reschedule(b: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask to cancel a visit, then to move it instead when asked to confirm."""
    row = _draw_visit(b, True, False)
    mention = appointment_mention(b, row, easy)
    return _move_instead(b, b.phrase("cancel"), mention, f"cancel {describe_appointment(row)}")


def _move_instead(
    b: HealthcareTaskBuilder,
    text: str,
    mention: PatientRecordMention[Appointment],
    proposal: str,
    reads: Sequence[Message] = (),
) -> GoalSpec:
    """Return a request whose caller wants a visit moved to another time when the agent makes `proposal`."""
    row = mention.row
    to = draw_time_preference(b, row.doctor, b.visit_minutes(row.doctor), True)
    wish = f"{b.phrase('change_of_mind')} {b.phrase('move', when=to.opening_phrase)}"
    goal = replace(plain_request(text, mention, *to.required_terms), gold_turns=tuple(reads))
    return _grant_move(change_mind(goal, proposal, wish), row, to, late=False)


def describe_appointment(row: Appointment) -> str:
    """Return a visit as in "the appointment with Dr. Lee on 2026-03-05 at 10:30"."""
    return f"the appointment with Dr. {row.doctor} on {format_datetime(row.time)}"


def _draw_visit(b: HealthcareTaskBuilder, booked: bool, late: bool) -> Appointment:
    row = b.rng.choice(b.appointments())
    return b.set_visit_booked(row, late) if booked else b.set_visit_closed(row)


def _grant_move(goal: GoalSpec, row: Appointment, to: TimePreference, late: bool) -> GoalSpec:
    day, time = to.time.split()
    call = gold_call("reschedule_appointment", appointment_id=row.id, date=day, time=time)
    proposal, terms = _add_fee(f"move {describe_appointment(row)} to {format_datetime(to.time)}", late)
    return grant(goal, proposal, call, "The appointment has been moved.", to.gold_turns, terms=terms)


def _fee_fact(b: HealthcareTaskBuilder) -> Fact:
    return Fact(text=b.phrase("late_fee"), keywords=("fee",))


def _add_fee(proposal: str, late: bool) -> tuple[str, Sequence[str]]:
    """Return a proposal with the late fee, if any, and the term for it."""
    return (f"{proposal}, with a late fee of {LATE_FEE}", (LATE_FEE,)) if late else (proposal, ())


def _refuse_over(b: HealthcareTaskBuilder, goal: GoalSpec, row: Appointment, action: str, easy: bool) -> GoalSpec:
    """Refuse a request about a visit that is over."""
    reason = f"T{describe_appointment(row)[1:]} {_STATUS_TEXTS[row.status]}, so I cannot {action}."
    return refuse(b, goal, reason, _STATUS_TERMS[row.status], easy=easy)
