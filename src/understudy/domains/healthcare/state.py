"""The clinics' database. Tools return its records, so fields with default values are left out.

Dates are texts like "2026-03-05", times like "10:30", both together like "2026-03-05 10:30". Their order as texts is
their order in time.
"""

from typing import Literal

from understudy.core.records import Record
from understudy.domains.authoring.money import Money
from understudy.envs.state import State, Table

Specialty = Literal[
    "family medicine",
    "cardiology",
    "dermatology",
    "endocrinology",
    "gastroenterology",
    "neurology",
    "ophthalmology",
    "orthopedics",
]
Clinic = Literal["Northside", "Riverside", "Lakeview", "Midtown"]
VisitSetting = Literal["in person", "telehealth"]
PlanName = Literal["Cedar HMO", "Harbor HMO", "Summit EPO", "Granite EPO", "Pioneer PPO", "Union PPO"]
InstallmentCount = Literal[3, 6, 12]
RecordKind = Literal["appointments", "prescriptions", "referrals", "bills", "labs"]
"""Kinds of a patient's records: the names of their tables."""

NOW = "2026-03-02 09:00"
"""The current time of all tasks, a Monday."""
TODAY = NOW[:10]
LATE_CHANGE_BEFORE = "2026-03-03 09:00"
"""24 hours from now. A change of a visit before this time has a fee."""
LATE_FEE = "40.00"
REFILL_TOO_EARLY_AFTER = "2026-03-09"
"""A week from now. A medicine that lasts longer is not refilled yet."""
MIN_INSTALLMENT = "25.00"
"""The minimum monthly payment of a payment plan."""


class Plan(Record):
    """An insurance plan: the prices of visits for its members."""

    primary: Money
    specialist: Money
    telehealth: Money
    out_of_network: Money | None = None
    """The price of any visit to an out-of-network doctor; None if it is not covered."""


class Doctor(Record):
    """A doctor, by last name."""

    specialty: Specialty
    clinic: Clinic
    plans: tuple[PlanName, ...]
    telehealth: bool = False


class DoctorDay(Record):
    """A working day of a doctor, by doctor and date: "Novak 2026-03-05"."""

    free: tuple[str, ...]
    """Start times of the half hours that can be booked."""


class Pharmacy(Record):
    """A pharmacy, by name."""

    address: str
    closes: str
    delivers: bool = False


class Appointment(Record):
    """A visit to a doctor."""

    id: str
    doctor: str
    time: str
    status: Literal["booked", "completed", "cancelled", "no-show"]
    setting: VisitSetting = "in person"
    minutes: int = 30
    fee: Money | None = None
    """The fee of a late change."""
    referral: str = ""
    """The id of the referral for the visit."""


class Prescription(Record):
    """A prescribed medicine, and the pharmacy that dispenses it."""

    id: str
    drug: str
    strength: str
    use: str
    """The purpose, in a patient's words."""
    doctor: str
    pharmacy: str
    refills: int
    expires: str
    lasts_until: str
    """The day on which the last supply runs out."""
    controlled: bool = False
    requested: Literal["", "refill", "renewal"] = ""

    @property
    def needs_doctor(self) -> str:
        """The reason why only the doctor can renew it, or "" if the pharmacy can refill it."""
        if self.controlled:
            return "is controlled"
        if self.expires < TODAY:
            return f"expired on {self.expires}"
        return "" if self.refills else "has no refills left"


class Referral(Record):
    """A referral to a specialty, for some visits until a date. It is valid once the doctor has signed it."""

    id: str
    specialty: Specialty
    status: Literal["requested", "signed"] = "signed"
    until: str = ""
    visits: int = 0
    """The number of remaining visits."""


class Bill(Record):
    """A patient's bill for a visit."""

    id: str
    doctor: str
    date: str
    amount: Money
    status: Literal["open", "paid", "payment plan", "in collections"]
    months: int = 0
    paid_with: str = ""


class Lab(Record):
    """A laboratory test."""

    id: str
    test: str
    date: str
    status: Literal["in progress", "under review", "released"]
    result: str = ""
    """The result. Tools show it once the doctor has released it."""


class Patient(Record):
    """A patient, with the ids of their records."""

    name: str
    born: str
    phone: str
    plan: PlanName
    member_id: str
    doctor: str
    """The primary doctor."""
    allergies: tuple[str, ...] = ()
    payments: tuple[str, ...]
    """Ids of the cards on file. An id names the kind: card_41, hsa_7."""
    proxies: tuple[str, ...] = ()
    """Names of the people who may call for the patient."""
    appointments: tuple[str, ...]
    prescriptions: tuple[str, ...]
    referrals: tuple[str, ...] = ()
    bills: tuple[str, ...]
    labs: tuple[str, ...]


class HealthcareState(State):
    """All tables of the clinics; the current patient, the caller if it is another person, and the target of a
    transfer.
    """

    patients: Table[Patient]
    appointments: Table[Appointment]
    prescriptions: Table[Prescription]
    referrals: Table[Referral]
    bills: Table[Bill]
    labs: Table[Lab]
    doctors: Table[Doctor]
    schedule: Table[DoctorDay]
    pharmacies: Table[Pharmacy]
    plans: Table[Plan]
    patient: str = ""
    caller: str = ""
    transferred: str = ""
