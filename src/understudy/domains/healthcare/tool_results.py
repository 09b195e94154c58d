"""Results of tools other than rows of the database. Fields with default values are left out."""

from typing import Literal

from understudy.core.records import Record
from understudy.domains.authoring.money import Money
from understudy.domains.healthcare.state import VisitSetting


class PatientLookup(Record):
    """The patient who was found, or why access is denied."""

    name: str = ""
    access: str = ""


class PatientProfile(Record):
    """A patient as the agent sees them."""

    name: str
    phone: str
    plan: str
    member_id: str
    doctor: str
    allergies: tuple[str, ...] = ()
    payments: tuple[str, ...]


class AppointmentView(Record):
    """An appointment with the doctor's specialty."""

    id: str
    doctor: str
    specialty: str
    time: str
    status: str
    setting: VisitSetting = "in person"


class DoctorOption(Record):
    """A doctor to choose from."""

    name: str
    clinic: str
    in_network: bool
    telehealth: bool = False


class PharmacyOption(Record):
    """A pharmacy to choose from."""

    name: str
    closes: str
    delivers: bool = False


class AvailableSlots(Record):
    """Free times for a visit of this patient, and an existing visit to the same doctor."""

    minutes: int
    free: tuple[str, ...]
    booked: str = ""


class VisitCoverage(Record):
    """The cost of a visit for the patient, and problems with it."""

    network: Literal["in", "out"]
    copay: Money | None = None
    referral_until: str = ""
    """The last day of the referral that it uses."""
    problem: str = ""


class HealthcareActionResult(Record):
    """The result of a change."""

    status: str
    id: str = ""
    fee: Money | None = None
    paid: Money | None = None
    monthly: Money | None = None
