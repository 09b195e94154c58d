"""Airline: customer support of an airline: book, change and cancel trips, compensate, and answer questions."""

from understudy.domains.airline.families import FAMILIES, draw_goals
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.airline.tools import AirlineTools
from understudy.domains.airline.world import build_world
from understudy.domains.authoring.dialogue import CustomerDialogue
from understudy.domains.authoring.task_generator import TaskGenerator
from understudy.envs.domain import Domain

DIALOGUE = CustomerDialogue("a customer of an airline", "reservation code", AirlineTaskBuilder.identity)
GENERATOR = TaskGenerator(
    __name__,
    build_world,
    "customers",
    AirlineTaskBuilder,
    draw_goals,
    DIALOGUE.build_profile,
    DIALOGUE.generate_gold_turns,
)
DOMAIN = Domain(
    __name__,
    build_world,
    AirlineTools,
    GENERATOR.generate,
    tuple(FAMILIES),
    shared_tables=("flights", "days", "airports"),
    make_task=GENERATOR.make_task,
    make_long_task=GENERATOR.make_long_task,
)
