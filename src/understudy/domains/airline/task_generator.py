"""The generator of airline tasks."""

from pathlib import Path

from understudy.domains.airline.dialogue import build_user_profile, generate_gold_turns
from understudy.domains.airline.families import draw_goals
from understudy.domains.airline.task_builder import AirlineTaskBuilder
from understudy.domains.airline.world import build_world, customer_keys
from understudy.domains.authoring.phrases import load_phrases
from understudy.domains.authoring.task_generator import TaskGenerator

GENERATOR = TaskGenerator(
    "airline",
    load_phrases(Path(__file__).with_name("phrases.toml")),
    customer_keys,
    lambda rng, phrases, email: AirlineTaskBuilder(rng, phrases, build_world(), email),
    draw_goals,
    build_user_profile,
    generate_gold_turns,
)
generate, make_task, make_long_task = GENERATOR.generate, GENERATOR.make_task, GENERATOR.make_long_task
