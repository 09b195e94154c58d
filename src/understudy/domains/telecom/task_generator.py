"""The generator of telecom tasks."""

from pathlib import Path

from understudy.domains.authoring.phrases import load_phrases
from understudy.domains.authoring.task_generator import TaskGenerator
from understudy.domains.telecom.dialogue import build_user_profile, generate_gold_turns
from understudy.domains.telecom.families import draw_goals
from understudy.domains.telecom.task_builder import TelecomTaskBuilder
from understudy.domains.telecom.world import build_world, customer_keys

GENERATOR = TaskGenerator(
    "telecom",
    load_phrases(Path(__file__).with_name("phrases.toml")),
    customer_keys,
    lambda rng, phrases, key: TelecomTaskBuilder(rng, phrases, build_world(), key),
    draw_goals,
    build_user_profile,
    generate_gold_turns,
)
generate, make_task, make_long_task = GENERATOR.generate, GENERATOR.make_task, GENERATOR.make_long_task
