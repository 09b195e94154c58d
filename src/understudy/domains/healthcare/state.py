"""The clinics' database. Records are also what tools show, so they are short: fields with default values are left out.

Dates are texts like "2026-03-05", times like "10:30", both together like "2026-03-05 10:30": they sort as they follow.
"""

from typing import Literal

from understudy.domains.money import Money
from understudy.records import Record
from understudy.state import State, Table

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
Setting = Literal["in person", "telehealth"]
PlanName = Literal["Cedar HMO", "Harbor HMO", "Summit EPO", "Granite EPO", "Pioneer PPO", "Union PPO"]
Months = Literal[3, 6, 12]
Kind = Literal["appointments", "prescriptions", "referrals", "bills", "labs"]
"""The records of a patient's, by the names of their tables."""

NOW = "2026-03-02 09:00"
"""The clock of the world: a Monday."""
TODAY = NOW[:10]
LATE = "2026-03-03 09:00"
"""24 hours from now: changing a visit that begins earlier has a fee."""
LATE_FEE = "40.00"
SOON = "2026-03-09"
"""A week from now: medicine that lasts longer is not refilled yet."""
LEAST_INSTALLMENT = "25.00"
"""The least that is paid each month of a payment plan."""


class Plan(Record):
    """An insurance plan: what a visit costs its members."""

    primary: Money
    specialist: Money
    telehealth: Money
    out_of_network: Money | None = None
    """Any visit to a doctor who does not take the plan; None where that is not covered."""


class Doctor(Record):
    """A doctor, by last name."""

    specialty: Specialty
    clinic: Clinic
    plans: tuple[PlanName, ...]
    telehealth: bool = False


class Day(Record):
    """A day on which a doctor works, by doctor and date: "Novak 2026-03-05"."""

    free: tuple[str, ...]
    """The half hours that can be booked, by the time at which they begin."""


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
    setting: Setting = "in person"
    minutes: int = 30
    fee: Money | None = None
    """What a late change has cost."""
    referral: str = ""
    """The referral that it uses."""


class Prescription(Record):
    """A medicine that a doctor has prescribed, and the pharmacy that hands it out."""

    id: str
    drug: str
    strength: str
    use: str
    """What it is for, in a patient's words."""
    doctor: str
    pharmacy: str
    refills: int
    expires: str
    lasts_until: str
    """The day on which what was last handed out is used up."""
    controlled: bool = False
    requested: Literal["", "refill", "renewal"] = ""

    @property
    def needs_doctor(self) -> str:
        """Why the pharmacy may not fill it again before its doctor has renewed it, if so."""
        if self.controlled:
            return "is controlled"
        if self.expires < TODAY:
            return f"expired on {self.expires}"
        return "" if self.refills else "has no refills left"


class Referral(Record):
    """Leave to see specialists of one kind, some times, until a day. It is valid once the doctor has signed it."""

    id: str
    specialty: Specialty
    status: Literal["requested", "signed"] = "signed"
    until: str = ""
    visits: int = 0
    """How many are left."""


class Bill(Record):
    """What a patient has to pay for a visit."""

    id: str
    doctor: str
    date: str
    amount: Money
    status: Literal["open", "paid", "payment plan", "in collections"]
    months: int = 0
    paid_with: str = ""


class Lab(Record):
    """A test of a laboratory."""

    id: str
    test: str
    date: str
    status: Literal["in progress", "under review", "released"]
    result: str = ""
    """Tools show it once the doctor has released it."""


class Patient(Record):
    """A patient. What belongs to them is named here, each by its id."""

    name: str
    born: str
    phone: str
    plan: PlanName
    member_id: str
    doctor: str
    """The primary doctor."""
    allergies: tuple[str, ...] = ()
    payments: tuple[str, ...]
    """Cards on file; an id says which kind it is: card_41, hsa_7."""
    proxies: tuple[str, ...] = ()
    """Who may call for the patient."""
    appointments: tuple[str, ...]
    prescriptions: tuple[str, ...]
    referrals: tuple[str, ...] = ()
    bills: tuple[str, ...]
    labs: tuple[str, ...]


class HealthcareState(State):
    """All tables; which patient the agent serves, who calls for them, and whom the caller was handed over to."""

    patients: Table[Patient]
    appointments: Table[Appointment]
    prescriptions: Table[Prescription]
    referrals: Table[Referral]
    bills: Table[Bill]
    labs: Table[Lab]
    doctors: Table[Doctor]
    schedule: Table[Day]
    pharmacies: Table[Pharmacy]
    plans: Table[Plan]
    patient: str = ""
    caller: str = ""
    transferred: str = ""
