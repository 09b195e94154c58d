"""Healthcare: the front desk of a group of clinics. It handles visits, refills, referrals and bills."""

from understudy.domains.authoring.task_generator import TaskGenerator
from understudy.domains.healthcare.dialogue import generate_gold_turns
from understudy.domains.healthcare.families import FAMILIES, draw_goals
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.domains.healthcare.tools import HealthcareTools
from understudy.domains.healthcare.world import build_world
from understudy.envs.domain import Domain

GENERATOR = TaskGenerator(
    __name__,
    build_world,
    "patients",
    HealthcareTaskBuilder,
    draw_goals,
    lambda _, profile: profile,
    generate_gold_turns,
)
DOMAIN = Domain(
    __name__,
    build_world,
    HealthcareTools,
    GENERATOR.generate,
    tuple(FAMILIES),
    shared_tables=("doctors", "schedule", "pharmacies", "plans"),
    make_task=GENERATOR.make_task,
    make_long_task=GENERATOR.make_long_task,
)
