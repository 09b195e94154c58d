"""Telecom: customer support of a mobile operator. The user has tools too: a phone that the agent cannot see."""

from understudy.domains.authoring.task_generator import TaskGenerator
from understudy.domains.telecom.dialogue import build_user_profile, generate_gold_turns
from understudy.domains.telecom.families import FAMILIES, draw_goals
from understudy.domains.telecom.task_builder import TelecomTaskBuilder
from understudy.domains.telecom.tools import TelecomTools
from understudy.domains.telecom.user_tools import PhoneTools
from understudy.domains.telecom.world import build_world
from understudy.envs.domain import Domain

GENERATOR = TaskGenerator(
    __name__, build_world, "customers", TelecomTaskBuilder, draw_goals, build_user_profile, generate_gold_turns
)
DOMAIN = Domain(
    __name__,
    build_world,
    TelecomTools,
    GENERATOR.generate,
    tuple(FAMILIES),
    user_tools=PhoneTools,
    shared_tables=("plans", "areas", "conversation"),
    make_task=GENERATOR.make_task,
    make_long_task=GENERATOR.make_long_task,
)
