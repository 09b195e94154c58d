"""Retail: customer support of an online store: cancel, change, return and exchange orders, and answer questions."""

from understudy.envs.domains.base import Domain
from understudy.envs.domains.retail.families import FAMILIES
from understudy.envs.domains.retail.task_generator import generate, make_long_task, make_task
from understudy.envs.domains.retail.tools import RetailTools
from understudy.envs.domains.retail.world import build_world

DOMAIN = Domain(
    __name__,
    build_world,
    RetailTools,
    generate,
    tuple(FAMILIES),
    shared_tables=("products",),
    make_task=make_task,
    make_long_task=make_long_task,
)
