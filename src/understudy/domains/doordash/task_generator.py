"""The generator of delivery tasks."""

from pathlib import Path

from understudy.domains.authoring.phrases import load_phrases
from understudy.domains.authoring.task_generator import TaskGenerator
from understudy.domains.doordash.dialogue import build_user_profile, generate_gold_turns
from understudy.domains.doordash.families import draw_goals
from understudy.domains.doordash.task_builder import DoordashTaskBuilder
from understudy.domains.doordash.world import build_world, customer_keys

GENERATOR = TaskGenerator(
    "doordash",
    load_phrases(Path(__file__).with_name("phrases.toml")),
    customer_keys,
    lambda rng, phrases, email: DoordashTaskBuilder(rng, phrases, build_world(), email),
    draw_goals,
    build_user_profile,
    generate_gold_turns,
)
generate, make_task, make_long_task = GENERATOR.generate, GENERATOR.make_task, GENERATOR.make_long_task
