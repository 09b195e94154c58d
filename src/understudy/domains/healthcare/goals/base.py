"""Shared parts of the requests of callers.

`grantable` says whether the policy allows the request. The first message does not reveal it.
"""

from typing import Protocol

from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.healthcare.clinic_calendar import add_days
from understudy.domains.healthcare.state import TODAY, Appointment
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder


class HealthcareGoalFactory(Protocol):
    """A function that draws one request."""

    def __call__(self, builder: HealthcareTaskBuilder, grantable: bool, easy: bool) -> GoalSpec:
        """Draw a request. With `easy`, the first message states everything about it."""


def set_visit_booked(builder: HealthcareTaskBuilder, row: Appointment, late: bool) -> Appointment:
    """Set a visit to booked: within the next 24 hours if `late`, else on a later day."""
    row = builder.update_row("appointments", row, status="cancelled")
    minutes = builder.visit_minutes(row.doctor)
    time = builder.draw_time(row.doctor, minutes, late)
    builder.set_slots_free(row.doctor, time, minutes, False)
    return builder.update_row("appointments", row, status="booked", time=time, minutes=minutes)


def set_visit_closed(builder: HealthcareTaskBuilder, row: Appointment, *statuses: str) -> Appointment:
    """Set a visit to cancelled, or to missed or completed some days ago."""
    row = builder.update_row("appointments", row, status="cancelled")
    status = builder.rng.choice(statuses or ("cancelled", "cancelled", "no-show", "completed"))
    past = f"{add_days(TODAY, -builder.rng.choice((4, 5, 6, 11, 12)))} {row.time[11:]}"
    time = builder.draw_time(row.doctor, row.minutes) if status == "cancelled" else past
    return builder.update_row("appointments", row, status=status, time=time)


def format_datetime(time: str) -> str:
    """Return a time as in "2026-03-05 at 10:30"."""
    return time.replace(" ", " at ")
