"""The random draws of one healthcare task: the patient, and the task's setup of the world."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from understudy.core.errors import TaskError
from understudy.core.records import Record
from understudy.domains.authoring import task_builder
from understudy.domains.healthcare.clinic_calendar import SLOT_TIMES, WORKING_DAYS, half_hour_slots
from understudy.domains.healthcare.coverage import plan_initials
from understudy.domains.healthcare.state import (
    NOW,
    TODAY,
    Appointment,
    Bill,
    Doctor,
    HealthcareState,
    Lab,
    Patient,
    Plan,
    Prescription,
    RecordKind,
    Referral,
    Specialty,
)
from understudy.domains.healthcare.world import PLANS, SPECIALTIES
from understudy.envs.dates import add_days

PatientIdentification = Literal["opened", "asked", "member", "proxy", "urgent"]
"""How the patient is identified: by name and birthday in the opening (opened), by both when asked (asked), by member
id and birthday (member), by a person who calls for them (proxy), or not at all in an emergency (urgent).
"""


_ROWS: Mapping[RecordKind, type[Record]] = {
    "appointments": Appointment,
    "prescriptions": Prescription,
    "referrals": Referral,
    "bills": Bill,
    "labs": Lab,
}
Row = TypeVar("Row", Appointment, Prescription, Referral, Bill, Lab)


@dataclass
class HealthcareTaskBuilder(task_builder.TaskBuilder):
    """The random draws of one task."""

    world: HealthcareState
    key: str
    identification: PatientIdentification = "opened"
    caller: str = ""
    """The name of the caller, if it is not the patient."""

    @property
    def patient(self) -> Patient:
        """The patient, including changes by the setup."""
        changes = self._setup_fields("patients", self.key)
        row = self.world.patients[self.key]
        return Patient.model_validate({**row.model_dump(), **changes}) if changes else row

    @property
    def plan(self) -> Plan:
        """The patient's insurance plan."""
        return self.world.plans[self.patient.plan]

    @property
    def possessive(self) -> str:
        """The caller's possessive for the patient's records: "my", or "Amy's" for a proxy."""
        return f"{self.patient.name.split()[0]}'s" if self.caller else "my"

    # ---- days and times ----

    def free_slots(self, doctor: str, day: str) -> list[str]:
        """Return the doctor's free half hours of a day."""
        key = f"{doctor} {day}"
        row = self.world.schedule.get(key)
        return list(self._setup_fields("schedule", key).get("free", row.free if row else ()))

    def set_slots_free(self, doctor: str, time: str, minutes: int, free: bool) -> None:
        """Set whether the half hours of a visit are free."""
        day, start = time.split()
        wanted = set(half_hour_slots(start, minutes))
        free_times = set(self.free_slots(doctor, day)) - wanted | (wanted if free else set())
        self.patch("schedule", f"{doctor} {day}", free=[t for t in SLOT_TIMES if t in free_times])

    def first_free_time(self, doctor: str, minutes: int, days: Sequence[str]) -> str:
        """Return the first time in these days at which a visit to the doctor fits."""
        for day in days:
            free = self.free_slots(doctor, day)
            for time in free:
                if set(half_hour_slots(time, minutes)) <= set(free) and f"{day} {time}" > NOW:
                    return f"{day} {time}"
        raise TaskError(f"Dr. {doctor} has no free {minutes} minutes on any of {', '.join(days)}")

    def draw_time(self, doctor: str, minutes: int, late: bool = False) -> str:
        """Draw a time for a visit on a later working day of the doctor on which the patient has no visit.

        With `late`, the time is later today.
        """
        busy = {row.time[:10] for row in self.appointments() if row.status == "booked"}
        days = [day for day in WORKING_DAYS[2:] if f"{doctor} {day}" in self.world.schedule and day not in busy]
        starts = [f"{day} {time}" for day in (WORKING_DAYS[:1] if late else days) for time in SLOT_TIMES]
        return self.rng.choice(
            [s for s in starts if set(half_hour_slots(s[11:], minutes)) <= set(SLOT_TIMES) and s > NOW]
        )

    # ---- the world, including changes by the setup ----

    def patient_rows(self, kind: RecordKind) -> list[Any]:
        """Return the patient's records of a kind, including changes by the setup."""
        model, rows = _ROWS[kind], getattr(self.world, kind)
        dumps = {key: rows[key].model_dump() if key in rows else {} for key in getattr(self.patient, kind)}
        return [model.model_validate({**dump, **self._setup_fields(kind, key)}) for key, dump in dumps.items()]

    def appointments(self) -> list[Appointment]:
        """Return the patient's appointments."""
        return self.patient_rows("appointments")

    def update_row(self, kind: RecordKind, row: Row, **fields: Any) -> Row:
        """Set fields of a record of the patient. Return the changed record."""
        self.patch(kind, row.id, **fields)
        changed: Row = next(other for other in self.patient_rows(kind) if other.id == row.id)
        return changed

    def visit_minutes(self, doctor: str) -> int:
        """Return the minutes of the patient's next visit to the doctor: 30, or 60 for a first visit."""
        return 30 if any((a.doctor, a.status) == (doctor, "completed") for a in self.appointments()) else 60

    def find_doctor(self, name: str) -> Doctor:
        """Return a doctor, including changes by the setup."""
        return Doctor.model_validate({**self.world.doctors[name].model_dump(), **self._setup_fields("doctors", name)})

    def set_in_network(self, name: str, in_network: bool) -> None:
        """Set whether a doctor takes the patient's plan."""
        plans = self.find_doctor(name).plans
        if (self.patient.plan in plans) != in_network:
            changed = [*plans, self.patient.plan] if in_network else [p for p in plans if p != self.patient.plan]
            self.patch("doctors", name, plans=changed)

    def set_hmo_plan(self) -> None:
        """Make the patient a member of an HMO with one expired referral, unless they are in an HMO already."""
        if self.patient.plan.endswith("HMO"):
            return
        plan, key = self.rng.choice([name for name in PLANS if name.endswith("HMO")]), f"R1{self.key[1:]}"
        member_id = f"{plan_initials(plan)}-{self.patient.member_id[3:]}"
        expired = add_days(TODAY, -self.rng.randint(3, 60))
        self.patch("patients", self.key, plan=plan, member_id=member_id, referrals=[key])
        self.patch("referrals", key, id=key, specialty=self.rng.choice(SPECIALTIES[1:]), until=expired, visits=1)

    def set_referrals(self, specialty: Specialty, **fields: Any) -> None:
        """Make the patient's referrals to a specialty expired. With `fields`, set these on one of them instead."""
        referrals: list[Referral] = self.patient_rows("referrals")
        for row in referrals:
            if row.specialty == specialty:
                self.patch("referrals", row.id, until=add_days(TODAY, -self.rng.randint(3, 60)))
        if fields:
            chosen = next((row for row in referrals if row.specialty == specialty), referrals[0])
            self.patch("referrals", chosen.id, specialty=specialty, **fields)

    def set_visit_booked(self, row: Appointment, late: bool) -> Appointment:
        """Set a visit to booked: within the next 24 hours if `late`, else on a later day."""
        row = self.update_row("appointments", row, status="cancelled")  # not in the way of its own new time
        minutes = self.visit_minutes(row.doctor)
        time = self.draw_time(row.doctor, minutes, late)
        self.set_slots_free(row.doctor, time, minutes, False)
        return self.update_row("appointments", row, status="booked", time=time, minutes=minutes)

    def set_visit_closed(self, row: Appointment, *statuses: str) -> Appointment:
        """Set a visit to cancelled, or to missed or completed some days ago."""
        row = self.update_row("appointments", row, status="cancelled")
        status = self.rng.choice(statuses or ("cancelled", "cancelled", "no-show", "completed"))
        past = f"{add_days(TODAY, -self.rng.choice((4, 5, 6, 11, 12)))} {row.time[11:]}"
        time = self.draw_time(row.doctor, row.minutes) if status == "cancelled" else past
        return self.update_row("appointments", row, status=status, time=time)

    def _setup_fields(self, table: str, key: str) -> dict[str, Any]:
        fields: dict[str, Any] = self.setup.get(table, {}).get(key, {})
        return fields
