"""The generator of retail tasks."""

from pathlib import Path

from understudy.domains.authoring.phrases import load_phrases
from understudy.domains.authoring.task_generator import TaskGenerator
from understudy.domains.retail.dialogue import build_user_profile, generate_gold_turns
from understudy.domains.retail.families import draw_goals
from understudy.domains.retail.task_builder import RetailTaskBuilder
from understudy.domains.retail.world import build_world, customer_keys

GENERATOR = TaskGenerator(
    "retail",
    load_phrases(Path(__file__).with_name("phrases.toml")),
    customer_keys,
    lambda rng, phrases, email: RetailTaskBuilder(rng, phrases, build_world(), email),
    draw_goals,
    build_user_profile,
    generate_gold_turns,
)
generate, make_task, make_long_task = GENERATOR.generate, GENERATOR.make_task, GENERATOR.make_long_task
