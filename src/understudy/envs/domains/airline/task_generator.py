"""The generator of airline tasks."""

from understudy.envs.authoring.task_generator import TaskGenerator
from understudy.envs.domains.airline.dialogue import build_user_profile, generate_gold_turns
from understudy.envs.domains.airline.families import draw_goals
from understudy.envs.domains.airline.task_builder import AirlineTaskBuilder
from understudy.envs.domains.airline.world import build_world, customer_keys

GENERATOR = TaskGenerator(
    "airline",
    customer_keys,
    lambda rng, phrases, email: AirlineTaskBuilder(rng, phrases, build_world(), email),
    draw_goals,
    build_user_profile,
    generate_gold_turns,
)
generate, make_task, make_long_task = GENERATOR.generate, GENERATOR.make_task, GENERATOR.make_long_task
