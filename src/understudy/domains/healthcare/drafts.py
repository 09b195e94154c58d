"""What is drawn for one task: the patient, and the world as the task's setup leaves it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from understudy.domains import drafts
from understudy.domains.drafts import Want, say
from understudy.domains.healthcare.coverage import letters
from understudy.domains.healthcare.dates import DAYS, TIMES, halves, plus_days
from understudy.domains.healthcare.state import (
    NOW,
    TODAY,
    Appointment,
    Bill,
    Doctor,
    HealthcareState,
    Kind,
    Lab,
    Patient,
    Plan,
    Prescription,
    Referral,
    Specialty,
)
from understudy.domains.healthcare.world import PLANS, SPECIALTIES
from understudy.records import Record

Identity = Literal["opened", "asked", "member", "proxy", "urgent"]
"""How the patient is identified: by name and birthday of the opening, by both when asked, by member id and birthday, by
somebody who calls for them, or not at all, because there is no time for it."""


_ROWS: Mapping[Kind, type[Record]] = {
    "appointments": Appointment,
    "prescriptions": Prescription,
    "referrals": Referral,
    "bills": Bill,
    "labs": Lab,
}
Row = TypeVar("Row", Appointment, Prescription, Referral, Bill, Lab)


@dataclass
class Draft(drafts.Draft):
    """One task's draws."""

    world: HealthcareState
    key: str
    identity: Identity = "opened"
    caller: str = ""
    """Who calls, if that is not the patient."""

    @property
    def patient(self) -> Patient:
        """The patient."""
        changes = self._set("patients", self.key)
        row = self.world.patients[self.key]
        return Patient.model_validate({**row.model_dump(), **changes}) if changes else row

    @property
    def plan(self) -> Plan:
        """What the patient's plan pays."""
        return self.world.plans[self.patient.plan]

    @property
    def owner(self) -> str:
        """Whose things the caller speaks of: my, or Amy's."""
        return f"{self.patient.name.split()[0]}'s" if self.caller else "my"

    # ---- days and times ----

    def free(self, doctor: str, day: str) -> list[str]:
        """The doctor's free half hours of a day."""
        key = f"{doctor} {day}"
        row = self.world.schedule.get(key)
        free: Sequence[str] = self._set("schedule", key).get("free", row.free if row else ())
        return list(free)

    def set_free(self, doctor: str, time: str, minutes: int, free: bool) -> None:
        """Make the half hours of a visit free or not."""
        day, start = time.split()
        wanted = set(halves(start, minutes))
        kept = set(self.free(doctor, day)) - wanted | (wanted if free else set())
        self.patch("schedule", f"{doctor} {day}", free=[t for t in TIMES if t in kept])

    def first_free(self, doctor: str, minutes: int, days: Sequence[str]) -> str:
        """The first of these days and the time at which a visit to the doctor fits."""
        times = ((day, time, set(self.free(doctor, day))) for day in days for time in self.free(doctor, day))
        fitting = (f"{day} {time}" for day, time, free in times if set(halves(time, minutes)) <= free)
        return next(time for time in fitting if time > NOW)

    def time(self, doctor: str, minutes: int, late: bool = False) -> str:
        """A time within 24 hours, or one on a later day on which the doctor works and the patient has no visit."""
        busy = {row.time[:10] for row in self.visits() if row.status == "booked"}
        days = [day for day in DAYS[2:] if f"{doctor} {day}" in self.world.schedule and day not in busy]
        starts = [f"{day} {time}" for day in (DAYS[:1] if late else days) for time in TIMES]
        return self.random.choice([s for s in starts if set(halves(s[11:], minutes)) <= set(TIMES) and s > NOW])

    # ---- the world as it is set up ----

    def own(self, kind: Kind) -> list[Any]:
        """The patient's rows of a kind."""
        model, rows = _ROWS[kind], getattr(self.world, kind)
        dumps = {key: rows[key].model_dump() if key in rows else {} for key in getattr(self.patient, kind)}
        return [model.model_validate({**dump, **self._set(kind, key)}) for key, dump in dumps.items()]

    def visits(self) -> list[Appointment]:
        """The patient's appointments."""
        return self.own("appointments")

    def change(self, kind: Kind, row: Row, **fields: Any) -> Row:
        """Set up a row of the patient's with these fields; the row as it is then."""
        self.patch(kind, row.id, **fields)
        changed: Row = next(other for other in self.own(kind) if other.id == row.id)
        return changed

    def minutes(self, doctor: str) -> int:
        """How long a visit of the patient to the doctor takes."""
        return 30 if any((a.doctor, a.status) == (doctor, "completed") for a in self.visits()) else 60

    def doctor(self, name: str) -> Doctor:
        """A doctor."""
        return Doctor.model_validate({**self.world.doctors[name].model_dump(), **self._set("doctors", name)})

    def in_network(self, name: str, accepted: bool) -> None:
        """Have a doctor take the patient's plan or not."""
        plans = self.doctor(name).plans
        if (self.patient.plan in plans) != accepted:
            changed = [*plans, self.patient.plan] if accepted else [p for p in plans if p != self.patient.plan]
            self.patch("doctors", name, plans=changed)

    def join_hmo(self) -> None:
        """Have the patient in an HMO, with one referral that has expired."""
        if self.patient.plan.endswith("HMO"):
            return
        plan, key = self.random.choice([name for name in PLANS if name.endswith("HMO")]), f"R1{self.key[1:]}"
        member_id = f"{letters(plan)}-{self.patient.member_id[3:]}"
        expired = plus_days(TODAY, -self.random.randint(3, 60))
        self.patch("patients", self.key, plan=plan, member_id=member_id, referrals=[key])
        self.patch("referrals", key, id=key, specialty=self.random.choice(SPECIALTIES[1:]), until=expired, visits=1)

    def refer(self, specialty: Specialty, **fields: Any) -> None:
        """Have an HMO's member's referrals to a specialty expired; with fields, one of them as they say instead."""
        own: list[Referral] = self.own("referrals")
        for row in own:
            if row.specialty == specialty:
                self.patch("referrals", row.id, until=plus_days(TODAY, -self.random.randint(3, 60)))
        if fields:
            chosen = next((row for row in own if row.specialty == specialty), own[0])
            self.patch("referrals", chosen.id, specialty=specialty, **fields)

    def refused(self, want: Want, text: str, *outputs: str, easy: bool) -> Want:
        """The request with its refusal, which some callers contest once."""
        contests = want.kind == "action" and not easy and self.likely(0.5)
        turns = (*want.turns, *(say(text),) * (1 + contests))
        return replace(want, turns=turns, outputs=outputs, contests=contests)

    def _set(self, table: str, key: str) -> dict[str, Any]:
        fields: dict[str, Any] = self.setup.get(table, {}).get(key, {})
        return fields
