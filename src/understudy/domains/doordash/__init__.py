"""Food delivery: customer support that places, changes, cancels and tracks orders, and settles claims."""

from understudy.domains.authoring.dialogue import CustomerDialogue
from understudy.domains.authoring.task_generator import TaskGenerator
from understudy.domains.doordash.families import FAMILIES, draw_goals
from understudy.domains.doordash.task_builder import DoordashTaskBuilder
from understudy.domains.doordash.tools import DoordashTools
from understudy.domains.doordash.world import build_world
from understudy.envs.domain import Domain

DIALOGUE = CustomerDialogue(
    "a customer of a food delivery service",
    "order number",
    DoordashTaskBuilder.identity,
    find_by_other="find_customer_by_phone",
    other=("phone",),
    no_email="email_forgotten",
    read_tools=("get_",),
)
GENERATOR = TaskGenerator(
    __name__,
    build_world,
    "customers",
    DoordashTaskBuilder,
    draw_goals,
    DIALOGUE.build_profile,
    DIALOGUE.generate_gold_turns,
)
DOMAIN = Domain(
    __name__,
    build_world,
    DoordashTools,
    GENERATOR.generate,
    tuple(FAMILIES),
    shared_tables=("restaurants", "promotions", "couriers"),
    make_task=GENERATOR.make_task,
    make_long_task=GENERATOR.make_long_task,
)
