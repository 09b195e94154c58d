"""The generator of healthcare tasks."""

from pathlib import Path

from understudy.domains.authoring.phrases import load_phrases
from understudy.domains.authoring.task_generator import TaskGenerator
from understudy.domains.healthcare.dialogue import generate_gold_turns
from understudy.domains.healthcare.families import draw_goals
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.domains.healthcare.world import build_world, patient_keys

GENERATOR = TaskGenerator(
    "healthcare",
    load_phrases(Path(__file__).with_name("phrases.toml")),
    patient_keys,
    lambda rng, phrases, key: HealthcareTaskBuilder(rng, phrases, build_world(), key),
    draw_goals,
    lambda _, who: who,
    generate_gold_turns,
)
generate, make_task, make_long_task = GENERATOR.generate, GENERATOR.make_task, GENERATOR.make_long_task
