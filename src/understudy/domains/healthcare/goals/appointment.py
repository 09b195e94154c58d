"""Requests about booked visits: cancel or move one, and changes of mind about that. `base` defines `grantable`."""

from dataclasses import replace

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change, gold_proposal
from understudy.domains.healthcare.goals import mentions
from understudy.domains.healthcare.goals.base import format_datetime, set_visit_booked, set_visit_closed
from understudy.domains.healthcare.goals.mentions import PatientRecordMention
from understudy.domains.healthcare.goals.time_preference import TimePreference, draw_time_preference
from understudy.domains.healthcare.state import LATE_FEE, Appointment
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder

_CANCEL = "cancel|cancelled|canceled|cancelling|canceling|cancellation"
_SAID = {
    "cancelled": "cancelled|canceled",
    "no-show": "no-show|no show|missed",
    "completed": "completed|took place|taken place",
}
_OVER = {"cancelled": "is already cancelled", "no-show": "was a no-show", "completed": "is completed"}


def cancel_appointment(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Cancel a visit. Less than 24 hours ahead there is a fee."""
    late = builder.draw_bool(0.3)
    row = set_visit_booked(builder, _any(builder), late) if grantable else set_visit_closed(builder, _any(builder))
    mention = mentions.appointment_mention(builder, row, easy)
    turns = mentions.record_lookup(mention, "appointments")
    goal = GoalSpec(
        builder.phrase("cancel"),
        mention,
        turns,
        required_terms=(*mention.required_terms, _CANCEL),
        facts=(_fee_fact(builder),),
    )
    if not grantable:
        return _refused(builder, goal, row, "cancel it", easy)
    return replace(
        goal, gold_turns=goal.gold_turns + _cancelled(row, late), required_terms=goal.required_terms + _fee_names(late)
    )


def reschedule_appointment(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Move a visit to another time. Less than 24 hours ahead there is a fee."""
    late = builder.draw_bool(0.2)
    row = set_visit_booked(builder, _any(builder), late) if grantable else set_visit_closed(builder, _any(builder))
    mention, to = (
        mentions.appointment_mention(builder, row, easy),
        draw_time_preference(builder, row.doctor, builder.visit_minutes(row.doctor), easy),
    )
    text = builder.phrase("move_vague" if to.vague else "move", when=to.opening_phrase)
    goal = GoalSpec(
        text,
        mention,
        mentions.record_lookup(mention, "appointments"),
        required_terms=(*mention.required_terms, *to.required_terms),
        facts=(*to.facts, _fee_fact(builder)),
    )
    if not grantable:
        return _refused(builder, goal, row, "move it", easy)
    turns = (*goal.gold_turns, *to.gold_turns, *_moved(row, to, late))
    meant = text + to.fallback if to.fallback else ""
    return replace(goal, gold_turns=turns, required_terms=goal.required_terms + _fee_names(late), final_text=meant)


def correct_time(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask to move a visit to one time, then to another one when asked to confirm."""
    row = set_visit_booked(builder, _any(builder), False)
    mention, first = (
        mentions.appointment_mention(builder, row, easy),
        draw_time_preference(builder, row.doctor, builder.visit_minutes(row.doctor), True),
    )
    text, offer = (
        builder.phrase("move", when=first.opening_phrase),
        gold_proposal(f"move {describe_appointment(row)} to {format_datetime(first.time)}"),
    )
    return _rather_move(
        builder,
        GoalSpec(text, mention, (*mentions.record_lookup(mention, "appointments"), *first.gold_turns, offer)),
        mention,
        easy,
    )


def switch_cancel_to_reschedule(builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
    """Ask to cancel a visit, then to move it instead when asked to confirm."""
    row = set_visit_booked(builder, _any(builder), False)
    mention = mentions.appointment_mention(builder, row, easy)
    turns = (*mentions.record_lookup(mention, "appointments"), gold_proposal(f"cancel {describe_appointment(row)}"))
    return _rather_move(builder, GoalSpec(builder.phrase("cancel"), mention, turns), mention, easy)


def _rather_move(
    builder: HealthcareTaskBuilder, first: GoalSpec, mention: PatientRecordMention[Appointment], easy: bool
) -> GoalSpec:
    """After the first proposal, move the visit to a new time."""
    to = draw_time_preference(builder, mention.row.doctor, builder.visit_minutes(mention.row.doctor), True)
    meant = f"{builder.phrase('change_of_mind')} {builder.phrase('move', when=to.opening_phrase)}"
    turns = (*first.gold_turns, *to.gold_turns, *_moved(mention.row, to, False))
    return replace(
        first, gold_turns=turns, required_terms=(*mention.required_terms, *to.required_terms), final_text=meant
    )


def describe_appointment(row: Appointment) -> str:
    """Return a visit as in "the appointment with Dr. Lee on 2026-03-05 at 10:30"."""
    return f"the appointment with Dr. {row.doctor} on {format_datetime(row.time)}"


def _any(builder: HealthcareTaskBuilder) -> Appointment:
    return builder.rng.choice(builder.appointments())


def _cancelled(row: Appointment, late: bool) -> tuple[Message, ...]:
    do = gold_call("cancel_appointment", appointment_id=row.id)
    return gold_change(f"cancel {describe_appointment(row)}{_fee(late)}", do, "The appointment has been cancelled.")


def _moved(row: Appointment, to: TimePreference, late: bool) -> tuple[Message, ...]:
    day, time = to.time.split()
    do = gold_call("reschedule_appointment", appointment_id=row.id, date=day, time=time)
    return gold_change(
        f"move {describe_appointment(row)} to {format_datetime(to.time)}{_fee(late)}",
        do,
        "The appointment has been moved.",
    )


def _fee_fact(builder: HealthcareTaskBuilder) -> Fact:
    return Fact(text=builder.phrase("late_fee"), keywords=("fee",))


def _fee(late: bool) -> str:
    return f", with a late fee of {LATE_FEE}" if late else ""


def _fee_names(late: bool) -> tuple[str, ...]:
    return (LATE_FEE,) if late else ()


def _refused(builder: HealthcareTaskBuilder, goal: GoalSpec, row: Appointment, action: str, easy: bool) -> GoalSpec:
    """Refuse a request about a visit that is over. Some callers contest the refusal."""
    text = f"T{describe_appointment(row)[1:]} {_OVER[row.status]}, so I cannot {action}."
    settled = action == "cancel it" and row.status == "cancelled"
    return builder.add_refusal(goal, text, _SAID[row.status], easy=easy or settled)
