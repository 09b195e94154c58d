"""Food delivery: customer support that places, changes, cancels and tracks orders, and settles claims."""

from understudy.envs.domains.base import Domain
from understudy.envs.domains.doordash.families import FAMILIES
from understudy.envs.domains.doordash.task_generator import generate, make_long_task, make_task
from understudy.envs.domains.doordash.tools import DoordashTools
from understudy.envs.domains.doordash.world import build_world

SHARED = ("restaurants", "promotions", "couriers")

DOMAIN = Domain(
    __name__,
    build_world,
    DoordashTools,
    generate,
    tuple(FAMILIES),
    shared_tables=SHARED,
    make_task=make_task,
    make_long_task=make_long_task,
)
