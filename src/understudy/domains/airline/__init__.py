"""Airline: customer support of an airline: book, change and cancel trips, compensate, and answer questions."""

from understudy.domains.airline.families import FAMILIES
from understudy.domains.airline.task_generator import generate, make_long_task, make_task
from understudy.domains.airline.tools import AirlineTools
from understudy.domains.airline.world import build_world
from understudy.envs.domain import Domain

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
