"""Healthcare: the front desk of a group of clinics. It handles visits, refills, referrals and bills."""

from understudy.domains.healthcare.families import FAMILIES
from understudy.domains.healthcare.task_generator import generate, make_long_task, make_task
from understudy.domains.healthcare.tools import HealthcareTools
from understudy.domains.healthcare.world import build_world
from understudy.envs.domain import Domain

SHARED = ("doctors", "schedule", "pharmacies", "plans")

DOMAIN = Domain(
    __name__,
    build_world,
    HealthcareTools,
    generate,
    tuple(FAMILIES),
    shared_tables=SHARED,
    make_task=make_task,
    make_long_task=make_long_task,
)
