"""What tools show where it is not a row of the database itself. Fields with default values are left out."""

from typing import Literal

from understudy.domains.healthcare.state import Setting
from understudy.domains.money import Money
from understudy.records import Record


class Found(Record):
    """Who was found, or why the caller may not be told."""

    name: str = ""
    access: str = ""


class Profile(Record):
    """A patient as the desk sees them."""

    name: str
    phone: str
    plan: str
    member_id: str
    doctor: str
    allergies: tuple[str, ...] = ()
    payments: tuple[str, ...]


class Visit(Record):
    """An appointment, with the kind of doctor that it is with."""

    id: str
    doctor: str
    specialty: str
    time: str
    status: str
    setting: Setting = "in person"


class Choice(Record):
    """A doctor to choose from."""

    name: str
    clinic: str
    in_network: bool
    telehealth: bool = False


class Store(Record):
    """A pharmacy to choose from."""

    name: str
    closes: str
    delivers: bool = False


class Slots(Record):
    """When a visit of this patient fits, and the visit to the same doctor that they have already."""

    minutes: int
    free: tuple[str, ...]
    booked: str = ""


class Coverage(Record):
    """What a visit costs the patient, and what stands in its way."""

    network: Literal["in", "out"]
    copay: Money | None = None
    referral_until: str = ""
    """The last day of the referral that it would use."""
    problem: str = ""


class Done(Record):
    """What a change has led to."""

    status: str
    id: str = ""
    fee: Money | None = None
    paid: Money | None = None
    monthly: Money | None = None
