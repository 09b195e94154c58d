"""The world: 400 patients with their records, 40 doctors with three weeks of free half hours, plans and pharmacies.

A seed always gives the same world. Each patient, with their records, belongs to one split. All splits share the rest.
"""

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Literal, get_args

from understudy.domains.authoring.people import CITIES, LAST_NAMES, STREETS, draw_counts, draw_names
from understudy.domains.healthcare.clinic_calendar import SLOT_TIMES, WORKING_DAYS, half_hour_slots
from understudy.domains.healthcare.coverage import plan_initials
from understudy.domains.healthcare.state import (
    NOW,
    TODAY,
    Appointment,
    Bill,
    Clinic,
    Doctor,
    DoctorDay,
    HealthcareState,
    Lab,
    Patient,
    Pharmacy,
    Plan,
    PlanName,
    Prescription,
    Referral,
    Specialty,
)
from understudy.envs.dates import add_days

PATIENTS = 400
DOCTORS = 40
CALLERS = 60
SPECIALTIES: Sequence[Specialty] = get_args(Specialty)
CLINICS: Sequence[Clinic] = get_args(Clinic)
PLANS: Sequence[PlanName] = get_args(PlanName)
COSTS: Mapping[PlanName, Sequence[str]] = {
    "Cedar HMO": ("15.00", "35.00", "10.00"),
    "Harbor HMO": ("20.00", "45.00", "12.50"),
    "Summit EPO": ("25.00", "50.00", "15.00"),
    "Granite EPO": ("22.50", "55.00", "17.50"),
    "Pioneer PPO": ("30.00", "60.00", "20.00", "110.00"),
    "Union PPO": ("27.50", "65.00", "18.00", "125.00"),
}
"""Prices of primary care, specialist, telehealth and, if covered, out-of-network visits."""

DRUGS: Mapping[str, Sequence[tuple[str, str]]] = {
    "blood pressure": (("lisinopril", "10 mg"), ("amlodipine", "5 mg")),
    "diabetes": (("metformin", "500 mg"), ("glipizide", "5 mg")),
    "cholesterol": (("atorvastatin", "20 mg"), ("rosuvastatin", "10 mg")),
    "asthma": (("albuterol", "90 mcg"), ("montelukast", "10 mg")),
    "heartburn": (("omeprazole", "20 mg"), ("famotidine", "40 mg")),
    "thyroid": (("levothyroxine", "75 mcg"), ("liothyronine", "25 mcg")),
    "hay fever": (("cetirizine", "10 mg"), ("fluticasone", "50 mcg")),
    "sleep": (("zolpidem", "5 mg"), ("trazodone", "50 mg")),
    "anxiety": (("alprazolam", "0.5 mg"), ("buspirone", "10 mg")),
    "pain": (("tramadol", "50 mg"), ("naproxen", "250 mg")),
}
"""Medicines and their strengths, by purpose."""
CONTROLLED = ("zolpidem", "alprazolam", "tramadol")
ALLERGIES = ("penicillin", "latex", "ibuprofen", "codeine", "peanuts", "sulfa drugs", "iodine", "bee stings")
TESTS: Mapping[str, tuple[int, int, str]] = {
    "cholesterol": (140, 260, "mg/dL"),
    "blood sugar": (75, 140, "mg/dL"),
    "vitamin D": (15, 60, "ng/mL"),
    "ferritin": (20, 180, "ng/mL"),
    "sodium": (132, 148, "mmol/L"),
    "hemoglobin": (11, 17, "g/dL"),
}
"""Tests with the range and unit of their results."""


@functools.cache
def build_world(seed: int = 0) -> HealthcareState:
    """Return the state before any task. It is shared, so fork it before changing it."""
    rng = random.Random(f"healthcare/{seed}")
    doctors = dict(_doctors(rng))
    days = [f"{name} {day}" for name in doctors for day in WORKING_DAYS]
    schedule = {
        day: DoctorDay(free=tuple(time for time in SLOT_TIMES if rng.random() < 0.5))
        for day in days
        if rng.random() < 0.8
    }
    pharmacies = dict(_pharmacies(rng))
    ids = {kind: iter(rng.sample(range(1000, 10000), 3 * PATIENTS)) for kind in ("P", "A", "RX", "R", "B", "L")}
    names = draw_names(rng, PATIENTS + CALLERS)
    generator = _PatientGenerator(rng, doctors, schedule, list(pharmacies), names[PATIENTS:], ids)
    birthdays = [f"{date(1936, 1, 1) + timedelta(days=n)}" for n in rng.sample(range(70 * 365), PATIENTS)]
    counts = draw_counts(rng, PATIENTS // 2, PATIENTS // 4, PATIENTS // 4)
    people = zip(names[:PATIENTS], birthdays, counts, strict=True)
    patients = {f"P{next(ids['P'])}": generator.patient(*person) for person in people}
    return HealthcareState(
        patients=patients,
        doctors=doctors,
        schedule=schedule,
        pharmacies=pharmacies,
        plans={name: Plan.model_validate(dict(zip(Plan.model_fields, COSTS[name], strict=False))) for name in PLANS},
        **generator.rows,
    )


@functools.cache
def proxy_names() -> tuple[str, ...]:
    """Return the names of the people who call for patients. None of them is a patient."""
    return tuple(sorted({name for patient in build_world().patients.values() for name in patient.proxies}))


class _PatientGenerator:
    """Generator of patients and of their records."""

    def __init__(
        self,
        rng: random.Random,
        doctors: Mapping[str, Doctor],
        schedule: dict[str, DoctorDay],
        pharmacies: Sequence[str],
        callers: Sequence[str],
        ids: Mapping[str, Iterator[int]],
    ) -> None:
        self._rng, self._doctors, self._schedule = rng, doctors, schedule
        self._pharmacies, self._callers, self._ids = pharmacies, callers, ids
        kinds = ("appointments", "prescriptions", "referrals", "bills", "labs")
        self.rows: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}

    def patient(self, name: str, born: str, appointments: int) -> Patient:
        """Return a patient, and add their records to `rows`."""
        rng, plan = self._rng, self._rng.choice(PLANS)
        known = [n for n, doctor in self._doctors.items() if plan in doctor.plans]
        primary = rng.choice([n for n in known if self._doctors[n].specialty == "family medicine"])
        others = rng.sample([n for n in known if self._doctors[n].specialty != "family medicine"], 2)
        seen = [primary, *others][:appointments]
        pharmacy = rng.choice(self._pharmacies)
        kinds = rng.choice((("card",), ("card", "hsa")))
        return Patient(
            name=name,
            born=born,
            phone=draw_phone(rng),
            plan=plan,
            member_id=draw_member_id(rng, plan),
            doctor=primary,
            allergies=tuple(rng.sample(ALLERGIES, rng.choice((0, 1, 1, 2)))),
            payments=tuple(f"{kind}_{n}" for kind, n in zip(kinds, rng.sample(range(10, 100), 2), strict=False)),
            proxies=tuple(rng.sample(self._callers, rng.choice((0, 1, 1, 2)))),
            appointments=self._add("appointments", "A", [self._appointment(d) for d in seen]),
            prescriptions=self._add("prescriptions", "RX", list(self._prescriptions(primary, pharmacy))),
            referrals=self._add("referrals", "R", self._referrals(plan, others)),
            bills=self._add("bills", "B", list(self._bills(seen))),
            labs=self._add("labs", "L", list(self._labs())),
        )

    def _add(self, kind: str, letter: str, rows: Sequence[Any]) -> tuple[str, ...]:
        """Add records with new ids. Return the ids."""
        keys = [f"{letter}{next(self._ids[letter])}" for _ in rows]
        self.rows[kind] |= {key: row.replace(id=key) for key, row in zip(keys, rows, strict=True)}
        return tuple(sorted(keys))

    def _appointment(self, doctor: str) -> Appointment:
        status: Literal["booked", "completed", "cancelled", "no-show"]
        status = self._rng.choice(("booked", "booked", "completed", "completed", "cancelled", "no-show"))
        if status in ("completed", "no-show"):
            day = _workday(add_days(TODAY, -self._rng.randint(3, 300)))
            return Appointment(id="", doctor=doctor, time=f"{day} {self._rng.choice(SLOT_TIMES)}", status=status)
        minutes = 60 if status == "booked" else 30
        time = self._future(doctor, minutes)
        if status == "booked":
            key, taken = f"{doctor} {time[:10]}", half_hour_slots(time[11:], minutes)
            self._schedule[key] = DoctorDay(free=tuple(t for t in self._schedule[key].free if t not in taken))
        return Appointment(id="", doctor=doctor, time=time, status=status, minutes=minutes)

    def _future(self, doctor: str, minutes: int) -> str:
        """Return a time at which a visit to the doctor fits."""
        starts = [
            f"{key.split()[1]} {time}"
            for key, day in self._schedule.items()
            if key.startswith(f"{doctor} ")
            for time in day.free
            if set(half_hour_slots(time, minutes)) <= set(day.free) and f"{key.split()[1]} {time}" > NOW
        ]
        return self._rng.choice(starts)

    def _prescriptions(self, doctor: str, pharmacy: str) -> Iterator[Prescription]:
        """Yield two or three prescriptions for different purposes. The first is not controlled."""
        uses = self._rng.sample(list(DRUGS), self._rng.choice((2, 2, 3)))
        for number, use in enumerate(uses):
            offers = [offer for offer in DRUGS[use] if number or offer[0] not in CONTROLLED]
            drug, strength = self._rng.choice(offers)
            yield Prescription(
                id="",
                drug=drug,
                strength=strength,
                use=use,
                doctor=doctor,
                pharmacy=pharmacy,
                refills=self._rng.randint(0, 5),
                expires=add_days(TODAY, self._rng.randint(-60, 300)),
                lasts_until=add_days(TODAY, self._rng.randint(-5, 60)),
                controlled=drug in CONTROLLED,
            )

    def _referrals(self, plan: str, doctors: Sequence[str]) -> list[Referral]:
        """Return one or two referrals for a member of an HMO, none for others."""
        rng = self._rng
        count = rng.choice((1, 1, 2)) if plan.endswith("HMO") else 0
        return [
            Referral(
                id="",
                specialty=self._doctors[doctor].specialty,
                until=add_days(TODAY, rng.randint(-40, 120)),
                visits=rng.randint(0, 4),
            )
            for doctor in doctors[:count]
        ]

    def _bills(self, doctors: Sequence[str]) -> Iterator[Bill]:
        days = self._rng.sample(range(10, 150), 2)
        for ago in days[: self._rng.choice((1, 2, 2))]:
            yield Bill.model_validate(
                {
                    "id": "",
                    "doctor": self._rng.choice(doctors),
                    "date": _workday(add_days(TODAY, -ago)),
                    "amount": f"{self._rng.randint(30, 400)}.{self._rng.choice(('00', '50', '80'))}",
                    "status": self._rng.choice(("open", "open", "paid")),
                }
            )

    def _labs(self) -> Iterator[Lab]:
        for test in self._rng.sample(list(TESTS), self._rng.choice((1, 2, 2))):
            status: Literal["in progress", "under review", "released"]
            status = self._rng.choice(("in progress", "under review", "released", "released"))
            day = _workday(add_days(TODAY, -self._rng.randint(2, 40)))
            yield Lab(id="", test=test, date=day, status=status, result=draw_result(self._rng, test))


def draw_phone(rng: random.Random) -> str:
    """Return a phone number that is reserved for fiction, like 303-555-0142."""
    return f"{rng.choice((303, 512, 617, 312, 214, 713, 305, 503, 206, 813))}-555-01{rng.randint(0, 99):02}"


def draw_member_id(rng: random.Random, plan: str) -> str:
    """Return a member id like CH-204815."""
    return f"{plan_initials(plan)}-{rng.randint(100000, 999999)}"


def draw_result(rng: random.Random, test: str) -> str:
    """Return a test result like 182 mg/dL."""
    low, high, unit = TESTS[test]
    return f"{rng.randint(low, high)} {unit}"


def _doctors(rng: random.Random) -> Iterator[tuple[str, Doctor]]:
    """Yield the doctors of each clinic: three for family medicine, and one for each other specialty."""
    names = iter(rng.sample(sorted(set(LAST_NAMES)), DOCTORS))
    for clinic, specialty in itertools.product(CLINICS, [SPECIALTIES[0]] * 2 + list(SPECIALTIES)):
        plans = tuple(plan for plan in PLANS if rng.random() < 0.75) or PLANS[:1]
        yield next(names), Doctor(specialty=specialty, clinic=clinic, plans=plans, telehealth=rng.random() < 0.5)


def _pharmacies(rng: random.Random) -> Iterator[tuple[str, Pharmacy]]:
    for street in rng.sample(STREETS, 12):
        address = f"{rng.randint(2, 99)} {street} Street, {rng.choice(CITIES)} {rng.randint(10000, 99999)}"
        closes = rng.choice(("18:00", "20:00", "22:00"))
        yield f"{street} Pharmacy", Pharmacy(address=address, closes=closes, delivers=rng.random() < 0.4)


def _workday(day: str) -> str:
    """Return the day, or the Friday before it if it is on a weekend."""
    return add_days(day, -max(0, date.fromisoformat(day).weekday() - 4))
