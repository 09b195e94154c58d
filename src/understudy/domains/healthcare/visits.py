"""Requests about visits that are booked already: cancel one, move one, and other minds about that.

`ok` says whether a request can be granted. If not, the opening looks the same; only reading tells.
"""

from dataclasses import replace
from typing import Protocol

from understudy.domains.drafts import Want, call, change, propose
from understudy.domains.healthcare import phrases, refs
from understudy.domains.healthcare.dates import plus_days
from understudy.domains.healthcare.drafts import Draft
from understudy.domains.healthcare.refs import Ref
from understudy.domains.healthcare.state import LATE_FEE, TODAY, Appointment
from understudy.domains.healthcare.times import Wanted, wanted
from understudy.domains.talks import MIND
from understudy.messages import Message
from understudy.tasks import Fact

_CANCEL = "cancel|cancelled|canceled|cancelling|canceling|cancellation"
_PAYS = Fact(says=phrases.LATE_FEE, cues=("fee",))
_SAID = {
    "cancelled": "cancelled|canceled",
    "no-show": "no-show|no show|missed",
    "completed": "completed|took place|taken place",
}
_OVER = {"cancelled": "is cancelled already", "no-show": "was a no-show", "completed": "is completed"}


class MakeWant(Protocol):
    """Draws one request."""

    def __call__(self, draft: Draft, ok: bool, easy: bool) -> Want:
        """`easy` leaves nothing about the request itself unsaid."""


def cancel(draft: Draft, ok: bool, easy: bool) -> Want:
    """Cancel a visit; within 24 hours for a fee."""
    late = draft.likely(0.3)
    row = booked(draft, _any(draft), late) if ok else over(draft, _any(draft))
    ref = refs.visit(draft, row, easy)
    turns = refs.reads(ref, "appointments")
    want = Want(draft.pick(phrases.CANCEL), ref, turns, names=(*ref.names, _CANCEL), facts=(_PAYS,))
    if not ok:
        return _refused(draft, want, row, "cancel it", easy)
    return replace(want, turns=want.turns + _cancelled(row, late), names=want.names + _fee_names(late))


def move(draft: Draft, ok: bool, easy: bool) -> Want:
    """Move a visit to another time; within 24 hours for a fee."""
    late = draft.likely(0.2)
    row = booked(draft, _any(draft), late) if ok else over(draft, _any(draft))
    ref, to = refs.visit(draft, row, easy), wanted(draft, row.doctor, draft.minutes(row.doctor), easy)
    text = draft.pick(phrases.MOVE_VAGUE if to.vague else phrases.MOVE, when=to.said)
    want = Want(text, ref, refs.reads(ref, "appointments"), names=(*ref.names, *to.names), facts=(*to.facts, _PAYS))
    if not ok:
        return _refused(draft, want, row, "move it", easy)
    turns = (*want.turns, *to.turns, *_moved(row, to, late))
    meant = text + to.fallback if to.fallback else ""
    return replace(want, turns=turns, names=want.names + _fee_names(late), meant=meant)


def other_time(draft: Draft, ok: bool, easy: bool) -> Want:
    """Want a visit moved to one time, and to another one when asked to confirm that."""
    row = booked(draft, _any(draft), False)
    ref, first = refs.visit(draft, row, easy), wanted(draft, row.doctor, draft.minutes(row.doctor), True)
    text, offer = draft.pick(phrases.MOVE, when=first.said), propose(f"move {dated(row)} to {at(first.time)}")
    return _rather_move(draft, Want(text, ref, (*refs.reads(ref, "appointments"), *first.turns, offer)), ref, easy)


def rather_move(draft: Draft, ok: bool, easy: bool) -> Want:
    """Want a visit cancelled, and moved instead when asked to confirm that."""
    row = booked(draft, _any(draft), False)
    ref = refs.visit(draft, row, easy)
    turns = (*refs.reads(ref, "appointments"), propose(f"cancel {dated(row)}"))
    return _rather_move(draft, Want(draft.pick(phrases.CANCEL), ref, turns), ref, easy)


def _rather_move(draft: Draft, first: Want, ref: Ref[Appointment], easy: bool) -> Want:
    """After a first proposal, move the visit to a time that was not named before."""
    to = wanted(draft, ref.row.doctor, draft.minutes(ref.row.doctor), True)
    meant = f"{draft.pick(MIND)} {draft.pick(phrases.MOVE, when=to.said)}"
    turns = (*first.turns, *to.turns, *_moved(ref.row, to, False))
    return replace(first, turns=turns, names=(*ref.names, *to.names), meant=meant)


def booked(draft: Draft, row: Appointment, late: bool) -> Appointment:
    """Have a visit booked, within 24 hours or later."""
    row = draft.change("appointments", row, status="cancelled")
    minutes = draft.minutes(row.doctor)
    time = draft.time(row.doctor, minutes, late)
    draft.set_free(row.doctor, time, minutes, False)
    return draft.change("appointments", row, status="booked", time=time, minutes=minutes)


def over(draft: Draft, row: Appointment, *statuses: str) -> Appointment:
    """Have a visit cancelled, or missed or completed some days ago."""
    row = draft.change("appointments", row, status="cancelled")
    status = draft.random.choice(statuses or ("cancelled", "cancelled", "no-show", "completed"))
    past = f"{plus_days(TODAY, -draft.random.choice((4, 5, 6, 11, 12)))} {row.time[11:]}"
    time = draft.time(row.doctor, row.minutes) if status == "cancelled" else past
    return draft.change("appointments", row, status=status, time=time)


def dated(row: Appointment) -> str:
    """As in "the appointment with Dr. Lee on 2026-03-05 at 10:30"."""
    return f"the appointment with Dr. {row.doctor} on {at(row.time)}"


def at(time: str) -> str:
    """As in "2026-03-05 at 10:30"."""
    return time.replace(" ", " at ")


def _any(draft: Draft) -> Appointment:
    return draft.random.choice(draft.visits())


def _cancelled(row: Appointment, late: bool) -> tuple[Message, ...]:
    do = call("cancel_appointment", appointment_id=row.id)
    return change(f"cancel {dated(row)}{_fee(late)}", do, "The appointment is cancelled.")


def _moved(row: Appointment, to: Wanted, late: bool) -> tuple[Message, ...]:
    day, time = to.time.split()
    do = call("reschedule_appointment", appointment_id=row.id, date=day, time=time)
    return change(f"move {dated(row)} to {at(to.time)}{_fee(late)}", do, "The appointment is moved.")


def _fee(late: bool) -> str:
    return f", for a late fee of {LATE_FEE}" if late else ""


def _fee_names(late: bool) -> tuple[str, ...]:
    return (LATE_FEE,) if late else ()


def _refused(draft: Draft, want: Want, row: Appointment, action: str, easy: bool) -> Want:
    """The request on a visit that is over. Some callers contest the refusal."""
    text = f"T{dated(row)[1:]} {_OVER[row.status]}, so I cannot {action}."
    settled = action == "cancel it" and row.status == "cancelled"
    return draft.refused(want, text, _SAID[row.status], easy=easy or settled)
