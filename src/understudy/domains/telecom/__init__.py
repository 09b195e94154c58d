"""Telecom: customer support of a mobile operator. The user has tools too: a phone that the agent cannot see."""

from understudy.domains.telecom.families import FAMILIES
from understudy.domains.telecom.task_generator import generate, make_long_task, make_task
from understudy.domains.telecom.tools import TelecomTools
from understudy.domains.telecom.user_tools import PhoneTools
from understudy.domains.telecom.world import build_world
from understudy.envs.domain import Domain

DOMAIN = Domain(
    __name__,
    build_world,
    TelecomTools,
    generate,
    tuple(FAMILIES),
    user_tools=PhoneTools,
    shared_tables=("plans", "areas", "conversation"),
    make_task=make_task,
    make_long_task=make_long_task,
)
