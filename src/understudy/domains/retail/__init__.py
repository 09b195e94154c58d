"""Retail: customer support of an online store: cancel, change, return and exchange orders, and answer questions."""

from understudy.domains.authoring.dialogue import CustomerDialogue
from understudy.domains.authoring.task_generator import TaskGenerator
from understudy.domains.retail.families import FAMILIES, draw_goals
from understudy.domains.retail.task_builder import RetailTaskBuilder
from understudy.domains.retail.tools import RetailTools
from understudy.domains.retail.world import build_world
from understudy.envs.domain import Domain

DIALOGUE = CustomerDialogue(
    "a customer of an online store", "order number", RetailTaskBuilder.identity, "find_user", "find_user_by_name"
)
GENERATOR = TaskGenerator(
    __name__, build_world, "users", RetailTaskBuilder, draw_goals, DIALOGUE.build_profile, DIALOGUE.generate_gold_turns
)
DOMAIN = Domain(
    __name__,
    build_world,
    RetailTools,
    GENERATOR.generate,
    tuple(FAMILIES),
    shared_tables=("products",),
    make_task=GENERATOR.make_task,
    make_long_task=GENERATOR.make_long_task,
)
