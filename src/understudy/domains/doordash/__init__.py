"""Food delivery: customer support that places, changes, cancels and tracks orders, and settles claims."""

from understudy.domains.doordash.families import FAMILIES
from understudy.domains.doordash.task_generator import generate, make_long_task, make_task
from understudy.domains.doordash.tools import DoordashTools
from understudy.domains.doordash.world import build_world
from understudy.envs.domain import Domain

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
