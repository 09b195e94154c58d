"""Healthcare: the front desk of a group of clinics, where visits, refills, referrals and bills are dealt with."""

from understudy.domains.base import Domain
from understudy.domains.healthcare.families import FAMILIES
from understudy.domains.healthcare.tasks import generate, make
from understudy.domains.healthcare.tools import HealthcareTools
from understudy.domains.healthcare.world import world

SHARED = ("doctors", "schedule", "pharmacies", "plans")

DOMAIN = Domain(__name__, world, HealthcareTools, generate, tuple(FAMILIES), shared=SHARED, make=make)
