"""Retail: customer support of an online store: cancel, change, return and exchange orders, and answer questions."""

from understudy.domains.retail.families import FAMILIES
from understudy.domains.retail.task_generator import generate, make_long_task, make_task
from understudy.domains.retail.tools import RetailTools
from understudy.domains.retail.world import build_world
from understudy.envs.domain import Domain

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
