"""Tests of `plan`: which phases a model needs for a success rate."""

import asyncio
import json

import pytest

from support.program import Call, call
from understudy.core.errors import ConfigError
from understudy.evaluation.statistics import MeanEstimate
from understudy.runs.config import parse_config
from understudy.train.planning.plan import TrainingPlan, decide_phases, plan_training

__all__ = ["call"]
CONFIG = parse_config(
    "", ["algorithm.groups_per_batch=10", "algorithm.group_size=8", "sft.num_demonstrations=64", "sft.batch_size=8"]
)
TINY = (
    "toy:DOMAIN",
    "model=tiny",
    "engine.device=cpu",
    "engine.dtype=float32",
    "limits.max_turns=10",
    "limits.max_episode_tokens=6000",
    "sft.num_demonstrations=8",
    "sampling.max_response_tokens=8",
    "algorithm.group_size=2",
    "eval.tasks=1",
)


def rate(mean: float) -> MeanEstimate:
    return MeanEstimate(mean=mean, low=0.0, high=1.0, tasks=8)


def test_phases_match_hand_computed_values() -> None:
    (sft, preferences, rl), episodes, notes = decide_phases(CONFIG, rate(0.5), trainable_share=0.6, target=0.7)
    assert (sft.steps, preferences.steps, notes) == (0, 0, ())
    # From 0.5 to 0.7 are ln(7 / 3) = 0.8473 units of log-odds: 805, 1,229 and 1,737 episodes, 80 in a step.
    assert episodes == (805, 1229, 1737)
    assert rl.steps == 16


def test_model_that_never_succeeds_needs_sft_before_rl() -> None:
    (sft, _, rl), _, notes = decide_phases(CONFIG, rate(0.0), trainable_share=0.1, target=0.7)
    assert sft.steps == 12, "1.5 passes over 64 demonstrations in batches of 8"
    assert rl.steps > 0
    assert notes
    rare = decide_phases(CONFIG, rate(0.05), trainable_share=0.2, target=0.7)[0]
    assert rare[0].steps == 0, "two groups a step are enough"


def test_model_at_its_target_needs_no_phase() -> None:
    phases, episodes, _ = decide_phases(CONFIG, rate(0.9), trainable_share=0.0, target=0.7)
    assert [phase.steps for phase in phases] == [0, 0, 0]
    assert episodes == (0, 0, 0)


def test_preferences_are_planned_if_the_config_names_a_file() -> None:
    config = parse_config("", ["preferences.dataset_file=pairs.jsonl", "preferences.steps=7"])
    phases = decide_phases(config, rate(0.3), trainable_share=0.9, target=0.7)[0]
    assert [phase.steps for phase in phases[:2]] == [0, 7]


def test_wrong_target_and_engine_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--target\b.*\b1\.5\b"):
        asyncio.run(plan_training(CONFIG, 1.5))
    with pytest.raises(ConfigError, match=r"engine\.kind.*tinker"):
        asyncio.run(plan_training(parse_config("", ["engine.kind=tinker"]), 0.5))


@pytest.mark.slow
def test_command_measures_the_model_and_prints_settings_of_the_plan(call: Call) -> None:
    code, out, _ = call("plan", *TINY, "--seconds", "0", "--target", "0.6", "--json")
    found = TrainingPlan.model_validate_json(out)
    assert code == 0
    assert (found.episodes, found.success.tasks, found.group_size) == (2, 1, 2), "one group, as the time is over"
    assert found.noop_reward == 0.0
    assert [phase.name for phase in found.phases] == ["sft", "preferences", "rl"]
    assert all(setting.partition("=")[2].isdigit() for setting in found.settings)
    assert f"settings: {' '.join(found.settings)}" in str(found)
    code, out, _ = call("train", *TINY, *found.settings, "--dry-run", "--json")
    assert (code, json.loads(out)["config"]["steps"]) == (0, found.phases[-1].steps)
