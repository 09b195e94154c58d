"""The healthcare agent's tools. They act on the identified patient's data and reject what the policy forbids."""

import re
import zlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Literal

from understudy.core.errors import ToolError
from understudy.core.records import Record
from understudy.domains.healthcare.coverage import (
    compute_coverage,
    find_valid_referral,
    needs_referral,
    plan_initials,
)
from understudy.domains.healthcare.schedule import (
    first_free_times,
    free_times,
    overlaps,
    release_slots,
    reserve_slots,
)
from understudy.domains.healthcare.state import (
    LATE_CHANGE_BEFORE,
    LATE_FEE,
    MIN_INSTALLMENT,
    NOW,
    REFILL_TOO_EARLY_AFTER,
    TODAY,
    Appointment,
    Bill,
    Clinic,
    Doctor,
    HealthcareState,
    InstallmentCount,
    Lab,
    Patient,
    PlanName,
    Prescription,
    RecordKind,
    Referral,
    Specialty,
    VisitSetting,
)
from understudy.domains.healthcare.tool_results import (
    AppointmentView,
    AvailableSlots,
    DoctorOption,
    HealthcareActionResult,
    PatientLookup,
    PatientProfile,
    PharmacyOption,
    VisitCoverage,
)
from understudy.envs.calculator import evaluate_expression
from understudy.envs.state import State
from understudy.envs.tools import Toolkit

Date = Annotated[str, "like 2026-03-05"]
Time = Annotated[str, "like 10:30"]
Name = Annotated[str, "last name"]

MAX_SLOTS_SHOWN = 5
"""The number of free times that `get_slots` shows without a date."""


class HealthcareTools(Toolkit):
    """The tools of the front desk."""

    _state: HealthcareState

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._read: set[str] = set()

    def find_patient(
        self,
        born: Date,
        name: Annotated[str, "full name"] = "",
        member_id: str = "",
        caller: Annotated[str, "full name of the caller, if not the patient"] = "",
    ) -> PatientLookup:
        """Find the patient by date of birth, and full name or member id. Do this first."""
        key, patient = self._matching(born.strip(), _plain(name), member_id.strip().upper())
        if self._state.patient not in ("", key):
            raise ToolError("this conversation is about another patient; you can only access their data", "forbidden")
        caller = self._state.caller if _plain(caller) in ("", _plain(patient.name)) else _plain(caller)
        if caller and caller not in map(_plain, patient.proxies):
            self._state.patient, self._state.caller = "", caller
            self._read.clear()
            return PatientLookup(access=f"denied: {caller.title()} is not on the patient's list")
        self._state.patient, self._state.caller = key, caller
        return PatientLookup(name=patient.name)

    def get_patient(self) -> PatientProfile:
        """Get the patient's phone, plan, primary doctor, allergies and cards on file."""
        patient = self._patient()
        return PatientProfile(**{name: getattr(patient, name) for name in PatientProfile.model_fields})

    def get_records(self, kind: RecordKind) -> list[Record]:
        """Get the patient's appointments, prescriptions, referrals, bills or lab results."""
        keys = self._keys(kind)
        self._read.add(kind)
        return [self._view(getattr(self._state, kind)[key]) for key in keys]

    def find_doctors(self, specialty: Specialty, clinic: Clinic | None = None) -> list[DoctorOption]:
        """List the doctors of a specialty, in all clinics or in one."""
        plan = self._patient().plan
        return [
            DoctorOption(name=name, clinic=doctor.clinic, in_network=plan in doctor.plans, telehealth=doctor.telehealth)
            for name, doctor in self._state.doctors.items()
            if doctor.specialty == specialty and clinic in (None, doctor.clinic)
        ]

    def get_slots(self, doctor: Name, date: Date = "") -> AvailableSlots:
        """Get a doctor's free times for this patient, on a date or the next ones."""
        name, _ = self._doctor(doctor)
        minutes, booked = self._minutes(name), self._booked_with(name)
        free = (
            free_times(self._state, name, date, minutes)
            if date
            else first_free_times(self._state, name, minutes, MAX_SLOTS_SHOWN)
        )
        return AvailableSlots(minutes=minutes, free=tuple(free), booked=booked.time if booked else "")

    def check_coverage(self, doctor: Name, setting: VisitSetting = "in person") -> VisitCoverage:
        """Check what a visit to a doctor costs the patient, and whether it is possible. Do this before you book."""
        name, row = self._doctor(doctor)
        self._read.add(f"{name} {setting}")
        return self._coverage(name, row, setting)

    def book_appointment(
        self, doctor: Name, date: Date, time: Time, setting: VisitSetting = "in person"
    ) -> HealthcareActionResult:
        """Book a visit."""
        name, row = self._doctor(doctor)
        self._validate_read(f"{name} {setting}", f"check the coverage of a visit to Dr. {name} ({setting}) first")
        self._validate_booking(name, self._coverage(name, row, setting), date)
        minutes = self._minutes(name)
        self._take(name, date, time, minutes)
        key = self._new_id("A", "appointments", f"{name} {date} {time}")
        self._state.appointments[key] = Appointment(
            id=key,
            doctor=name,
            time=f"{date} {time}",
            status="booked",
            setting=setting,
            minutes=minutes,
            referral=self._use_referral(row.specialty),
        )
        patient = self._patient()
        self._save(patient.replace(appointments=tuple(sorted((*patient.appointments, key)))))
        return HealthcareActionResult(status="booked", id=key)

    def reschedule_appointment(self, appointment_id: str, date: Date, time: Time) -> HealthcareActionResult:
        """Move a booked visit to another time."""
        visit = self._booked(appointment_id)
        used = self._state.referrals[visit.referral] if visit.referral else None
        if used and date > used.until:
            raise ToolError(f"referral {used.id} is only valid until {used.until}")
        release_slots(self._state, visit)
        self._take(visit.doctor, date, time, visit.minutes, besides=visit.id)
        fee = _late_fee(visit)
        self._state.appointments[visit.id] = visit.replace(time=f"{date} {time}", fee=fee or visit.fee)
        return HealthcareActionResult(status="rescheduled", fee=fee)

    def cancel_appointment(self, appointment_id: str) -> HealthcareActionResult:
        """Cancel a booked visit."""
        visit = self._booked(appointment_id)
        release_slots(self._state, visit)
        if visit.referral:
            used = self._state.referrals[visit.referral]
            self._state.referrals[used.id] = used.replace(visits=used.visits + 1)
        fee = _late_fee(visit)
        self._state.appointments[visit.id] = visit.replace(status="cancelled", fee=fee or visit.fee)
        return HealthcareActionResult(status="cancelled", fee=fee)

    def request_refill(self, prescription_id: str) -> HealthcareActionResult:
        """Request a refill of a prescription from the pharmacy."""
        medicine = self._unrequested(prescription_id)
        if medicine.needs_doctor:
            raise ToolError(f"{medicine.drug} {medicine.needs_doctor}; request a renewal from Dr. {medicine.doctor}")
        if medicine.lasts_until > REFILL_TOO_EARLY_AFTER:
            raise ToolError(f"{medicine.drug} lasts until {medicine.lasts_until}, more than 7 days from {TODAY}")
        self._prescribe(medicine.replace(refills=medicine.refills - 1, requested="refill"))
        return HealthcareActionResult(status="refill requested")

    def request_renewal(self, prescription_id: str) -> HealthcareActionResult:
        """Ask the doctor to renew a prescription that is controlled, expired or without refills."""
        medicine = self._unrequested(prescription_id)
        if not medicine.needs_doctor:
            raise ToolError(f"{medicine.drug} has {medicine.refills} refills left; request a refill")
        self._prescribe(medicine.replace(requested="renewal"))
        return HealthcareActionResult(status="renewal requested")

    def change_pharmacy(
        self, prescription_id: str, pharmacy: Annotated[str, "like Oak Pharmacy"]
    ) -> HealthcareActionResult:
        """Move a prescription to another pharmacy."""
        medicine = self._unrequested(prescription_id)
        if medicine.controlled:
            raise ToolError(f"{medicine.drug} is controlled and must stay with {medicine.pharmacy}")
        if pharmacy not in self._state.pharmacies or pharmacy == medicine.pharmacy:
            others = ", ".join(name for name in self._state.pharmacies if name != medicine.pharmacy)
            raise ToolError(f"{medicine.drug} cannot move to {pharmacy!r}; allowed: {others}")
        self._prescribe(medicine.replace(pharmacy=pharmacy))
        return HealthcareActionResult(status="pharmacy changed")

    def find_pharmacies(self) -> list[PharmacyOption]:
        """List the pharmacies with their closing times and whether they deliver."""
        self._patient()
        return [PharmacyOption(name=n, closes=p.closes, delivers=p.delivers) for n, p in self._state.pharmacies.items()]

    def request_referral(self, specialty: Specialty) -> HealthcareActionResult:
        """Request a referral from the primary doctor. It is valid once the doctor has signed it."""
        patient = self._patient()
        self._validate_read("referrals", "read the patient's referrals first")
        if not needs_referral(patient.plan, specialty):
            raise ToolError(f"{patient.plan} does not require a referral to {specialty}")
        for known in self._referrals():
            if known.specialty == specialty and known.status == "requested":
                raise ToolError(f"referral {known.id} to {specialty} has already been requested")
        if valid := find_valid_referral(self._referrals(), specialty):
            raise ToolError(f"referral {valid.id} to {specialty} is valid until {valid.until}")
        key = self._new_id("R", "referrals", specialty)
        self._state.referrals[key] = Referral(id=key, specialty=specialty, status="requested")
        self._save(patient.replace(referrals=tuple(sorted((*patient.referrals, key)))))
        return HealthcareActionResult(status="requested", id=key)

    def pay_bill(self, bill_id: str, payment_id: str) -> HealthcareActionResult:
        """Pay an open bill in full with a card on file."""
        bill, payments = self._open_bill(bill_id), self._patient().payments
        if payment_id not in payments:
            raise ToolError(f"the patient has no card {payment_id!r}; they have {', '.join(payments)}")
        self._state.bills[bill.id] = bill.replace(status="paid", paid_with=payment_id)
        return HealthcareActionResult(status="paid", paid=bill.amount)

    def set_payment_plan(self, bill_id: str, months: InstallmentCount) -> HealthcareActionResult:
        """Set up a payment plan of equal monthly installments for an open bill."""
        bill = self._open_bill(bill_id)
        if bill.amount < Decimal(MIN_INSTALLMENT) * months:
            raise ToolError(f"{bill.amount} over {months} months is less than {MIN_INSTALLMENT} a month")
        self._state.bills[bill.id] = bill.replace(status="payment plan", months=months)
        return HealthcareActionResult(status="payment plan", monthly=bill.amount / months)

    def update_phone(self, phone: Annotated[str, "like 303-555-0142"]) -> HealthcareActionResult:
        """Change the patient's phone number."""
        patient, phone = self._patient(), phone.strip()
        if not re.fullmatch(r"\d{3}-\d{3}-\d{4}", phone):
            raise ToolError(f"{phone!r} is not a phone number like 303-555-0142")
        self._save(patient.replace(phone=phone))
        return HealthcareActionResult(status="phone changed")

    def update_insurance(self, plan: PlanName, member_id: str) -> HealthcareActionResult:
        """Change the patient's insurance plan and member id."""
        patient, member_id = self._patient(), member_id.strip().upper()
        if not re.fullmatch(rf"{plan_initials(plan)}-\d{{6}}", member_id):
            raise ToolError(f"{member_id!r} is not a member id of {plan}, such as {plan_initials(plan)}-204815")
        self._save(patient.replace(plan=plan, member_id=member_id))
        return HealthcareActionResult(status="insurance changed")

    def calculate(self, expression: Annotated[str, "like (12.50 + 30) * 2"]) -> str:
        """Calculate with numbers, + - * / and parentheses."""
        return evaluate_expression(expression)

    def transfer(self, to: Literal["nurse", "staff"], summary: str) -> HealthcareActionResult:
        """Transfer urgent symptoms and medical questions to a nurse, what no tool can do to staff. Your last call."""
        if to == "staff":
            self._patient()
        self._validate_not_transferred()
        self._state.transferred = to
        return HealthcareActionResult(status=f"transferred to {to}")

    def _validate_not_transferred(self) -> None:
        if self._state.transferred:
            raise ToolError("the caller has been transferred; no further actions are possible")

    def _matching(self, born: str, name: str, member_id: str) -> tuple[str, Patient]:
        self._validate_not_transferred()
        if not (name or member_id):
            raise ToolError("two identifiers are required: the date of birth, and the full name or the member id")
        for key, patient in self._state.patients.items():
            if patient.born == born and name in ("", _plain(patient.name)) and member_id in ("", patient.member_id):
                return key, patient
        raise ToolError(f"no patient has the date of birth {born!r} and {name or member_id!r}; ask for both again")

    def _patient(self) -> Patient:
        self._validate_not_transferred()
        if not self._state.patient:
            raise ToolError("find the patient first, by date of birth, and full name or member id")
        return self._state.patients[self._state.patient]

    def _save(self, patient: Patient) -> None:
        self._state.patients[self._state.patient] = patient

    def _validate_read(self, read: str, text: str) -> None:
        if read not in self._read:
            raise ToolError(text)

    def _keys(self, kind: RecordKind) -> Sequence[str]:
        keys: Sequence[str] = getattr(self._patient(), kind)
        return keys

    def _own(self, key: str, kind: RecordKind) -> str:
        """Return the id of a row that belongs to the patient and was read."""
        if key not in self._keys(kind):
            others = key in getattr(self._state, kind)
            raise ToolError(f"the patient has no {key!r} among their {kind}", "forbidden" if others else "refused")
        self._validate_read(kind, f"read the patient's {kind} first")
        return key

    def _new_id(self, letter: str, kind: RecordKind, about: str) -> str:
        """Return an id that depends only on its purpose, not on earlier actions."""
        number = zlib.crc32(f"{self._state.patient} {about}".encode()) % 90000 + 10000
        while f"{letter}{number}" in getattr(self._state, kind):
            number += 1
        return f"{letter}{number}"

    def _view(self, row: Record) -> Record:
        """Return a row without hidden and redundant fields."""
        if isinstance(row, Appointment):
            fields = {name: getattr(row, name) for name in AppointmentView.model_fields if name != "specialty"}
            return AppointmentView(specialty=self._state.doctors[row.doctor].specialty, **fields)
        return row.replace(result="") if isinstance(row, Lab) and row.status != "released" else row

    def _doctor(self, name: str) -> tuple[str, Doctor]:
        self._patient()
        name = re.sub(r"^(?:dr\.?|doctor) ", "", name.strip(), flags=re.IGNORECASE).title()
        if name not in self._state.doctors:
            raise ToolError(f"there is no doctor {name!r}; find_doctors lists them by specialty")
        return name, self._state.doctors[name]

    def _coverage(self, name: str, doctor: Doctor, setting: VisitSetting) -> VisitCoverage:
        plan, known = self._patient().plan, self._minutes(name) == 30
        return compute_coverage(plan, self._state.plans[plan], name, doctor, setting, known, self._referrals())

    def _referrals(self) -> list[Referral]:
        return [self._state.referrals[key] for key in self._keys("referrals")]

    def _use_referral(self, specialty: Specialty) -> str:
        """Use one visit of a referral, if needed."""
        if not needs_referral(self._patient().plan, specialty):
            return ""
        used = find_valid_referral(self._referrals(), specialty)
        assert used is not None, "coverage was checked"
        self._state.referrals[used.id] = used.replace(visits=used.visits - 1)
        return used.id

    def _appointments(self) -> list[Appointment]:
        return [self._state.appointments[key] for key in self._keys("appointments")]

    def _booked_with(self, doctor: str) -> Appointment | None:
        return next((a for a in self._appointments() if (a.doctor, a.status) == (doctor, "booked")), None)

    def _minutes(self, doctor: str) -> int:
        """Return the length of a visit. The first visit to a doctor is longer."""
        known = any((a.doctor, a.status) == (doctor, "completed") for a in self._appointments())
        return 30 if known else 60

    def _validate_booking(self, doctor: str, coverage: VisitCoverage, date: str) -> None:
        if coverage.problem:
            raise ToolError(coverage.problem)
        if coverage.referral_until and date > coverage.referral_until:
            raise ToolError(f"the referral is only valid until {coverage.referral_until}")
        if booked := self._booked_with(doctor):
            raise ToolError(f"the patient already has {booked.id} with Dr. {doctor} at {booked.time}")

    def _take(self, doctor: str, day: str, time: str, minutes: int, besides: str = "") -> None:
        """Reserve a free time, unless the patient has another visit then."""
        if time not in free_times(self._state, doctor, day, minutes):
            raise ToolError(f"Dr. {doctor} is not free at {day} {time} for {minutes} minutes; use get_slots")
        for other in self._appointments():
            if other.status == "booked" and other.id != besides and overlaps(other, day, time, minutes):
                raise ToolError(f"the patient already has {other.id} with Dr. {other.doctor} at {other.time}")
        reserve_slots(self._state, doctor, day, time, minutes)

    def _booked(self, key: str) -> Appointment:
        visit = self._state.appointments[self._own(key, "appointments")]
        if visit.status != "booked" or visit.time <= NOW:
            raise ToolError(f"appointment {key} at {visit.time} is {visit.status}; only booked ones can be changed")
        return visit

    def _unrequested(self, key: str) -> Prescription:
        medicine = self._state.prescriptions[self._own(key, "prescriptions")]
        if medicine.requested:
            raise ToolError(f"a {medicine.requested} of {medicine.drug} has already been requested")
        return medicine

    def _prescribe(self, medicine: Prescription) -> None:
        self._state.prescriptions[medicine.id] = medicine

    def _open_bill(self, key: str) -> Bill:
        bill = self._state.bills[self._own(key, "bills")]
        if bill.status != "open":
            raise ToolError(f"bill {key} is {bill.status}; only open ones can be paid here")
        return bill


def _plain(name: str) -> str:
    """Return a name in lower case with single spaces."""
    return " ".join(name.split()).casefold()


def _late_fee(visit: Appointment) -> Decimal | None:
    return Decimal(LATE_FEE) if visit.time < LATE_CHANGE_BEFORE else None
