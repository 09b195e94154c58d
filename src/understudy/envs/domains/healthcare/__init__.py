"""Healthcare: the front desk of a group of clinics. It handles visits, refills, referrals and bills."""

from understudy.envs.domains.base import Domain
from understudy.envs.domains.healthcare.families import FAMILIES
from understudy.envs.domains.healthcare.task_generator import generate, make_long_task, make_task
from understudy.envs.domains.healthcare.tools import HealthcareTools
from understudy.envs.domains.healthcare.world import build_world

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
