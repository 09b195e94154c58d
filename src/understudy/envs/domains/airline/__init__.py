"""Airline: customer support of an airline: book, change and cancel trips, compensate, and answer questions."""

from understudy.envs.domains.airline.families import FAMILIES
from understudy.envs.domains.airline.task_generator import generate, make_long_task, make_task
from understudy.envs.domains.airline.tools import AirlineTools
from understudy.envs.domains.airline.world import build_world
from understudy.envs.domains.base import Domain

SHARED = ("flights", "days", "airports")

DOMAIN = Domain(
    __name__,
    build_world,
    AirlineTools,
    generate,
    tuple(FAMILIES),
    shared_tables=SHARED,
    make_task=make_task,
    make_long_task=make_long_task,
)
