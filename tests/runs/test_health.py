"""Test each health check on metrics as runs write them, and that healthy steps raise no alarm."""

import math
import re
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.health import (
    HealthCheck,
    HealthCheckResult,
    HealthConfig,
    check_initial_eval,
    check_step,
    health_metrics,
)
from understudy.runs.metrics import add_prefixes, prefixed_name

CONFIG = HealthConfig(window=2)
REMEDIES = TrainConfig().algorithm.health_remedies
STEP: dict[str, float] = {
    "rollout/reward": 0.4,
    "rollout/success_rate": 0.4,
    "rollout/episodes": 64.0,
    "rollout/groups": 8.0,
    "rollout/zero_variance_groups": 2.0,
    "rollout/response_tokens": 6400.0,
    "rollout/replies/tool_calls": 0.5,
    "rollout/replies/text": 0.4,
    "train/grad_norm": 0.1,
    "train/entropy": 0.07,
    "train/clip_fraction": 0.0,
    "train/approx_kl": 3e-10,
    "train/first_minibatch_ratio": 1.0,
    "train/first_minibatch_ratio_mse": 0.0,
    "train/relative_weight_change": 1e-5,
    "train/loss": 0.09,
    "train/computed_tokens": 9000.0,
    "train/distinct_tokens": 8200.0,
}
"""Metrics of one step of a real run, rounded."""


OFF_POLICY: dict[str, float | None] = {"train__later_minibatch_ratio_mse": 0.1}
"""A metric that only steps with several minibatches have."""


def step_metrics(**changes: float | None) -> dict[str, Any]:
    return STEP | {name.replace("__", "/"): value for name, value in changes.items()}


def failed_checks(
    line: Mapping[str, Any], *earlier: Mapping[str, Any], config: HealthConfig = CONFIG
) -> dict[str, str]:
    return {f.check: f.message for f in check_step(line, earlier, config, REMEDIES) if not f.ok}


def test_update_that_computes_shared_prefixes_again_is_an_issue() -> None:
    """Eight episodes of 3,110 tokens that share 3,000: one microbatch computes 3,880, eight compute 24,880."""
    shared = step_metrics(train__computed_tokens=3880.0, train__distinct_tokens=3880.0)
    assert "prefix_sharing" not in failed_checks(shared)
    alone = step_metrics(train__computed_tokens=24880.0, train__distinct_tokens=3880.0)
    assert "6.4" in failed_checks(alone)["prefix_sharing"]


def test_healthy_step_passes_every_applicable_check() -> None:
    findings = check_step(STEP, [STEP] * 5, CONFIG, REMEDIES)
    assert [f for f in findings if not f.ok] == []
    assert {f.check for f in findings} == set(get_args(HealthCheck)) - {
        "no_policy_change",
        "sft_loss",
        "clip_fraction",
        "approx_kl",
        "initial_success",
    }
    assert health_metrics(findings) == {f"health/{f.check}": 0.0 for f in findings}


def sft_metrics(loss: float, **token_losses: float) -> dict[str, Any]:
    return {"train/loss": loss} | {f"train/token_loss/<{token}>": value for token, value in token_losses.items()}


def test_sft_whose_loss_stays_names_the_tokens_that_have_most_of_it() -> None:
    high, stays = sft_metrics(0.9, call=9.0), sft_metrics(0.45, call=9.0, end=4.25)
    found = failed_checks(stays, high, high, stays, stays, stays)["sft_loss"]
    assert "'<call>' 9, '<end>' 4.25" in found
    assert "sft_loss" not in failed_checks(stays, stays, stays), "three steps are fewer than two windows"
    assert "sft_loss" not in failed_checks(stays, high, high, stays), "the loss fell by half"
    assert "sft_loss" not in failed_checks(sft_metrics(0.45), *[sft_metrics(0.45)] * 3), "no few tokens have most of it"


@pytest.mark.parametrize(
    ("settings", "check", "named"),
    [
        ([], "clip_fraction", {"algorithm.learning_rate"}),
        (["algorithm.num_minibatches=2"], "clip_fraction", {"algorithm.learning_rate", "algorithm.num_minibatches"}),
        (["algorithm.update_epochs=2"], "clip_fraction", {"algorithm.learning_rate", "algorithm.update_epochs"}),
        ([], "entropy", {"algorithm.learning_rate", "algorithm.loss.clip_high", "algorithm.kl_coef"}),
        (["algorithm.preset=gspo"], "entropy", {"algorithm.learning_rate", "algorithm.kl_coef"}),
        (["algorithm.preset=dapo"], "entropy", {"algorithm.learning_rate", "algorithm.kl_coef"}),
        ([], "zero_variance_groups", {"algorithm.max_resampled_groups"}),
        (["algorithm.preset=ppo"], "zero_variance_groups", set()),
    ],
)
def test_remedies_are_settings_that_have_an_effect_with_the_algorithm(
    settings: list[str], check: str, named: set[str]
) -> None:
    line = step_metrics(train__clip_fraction=0.9, train__entropy=0.001, train__later_minibatch_ratio_mse=1.0)
    advice = parse_config("", settings).algorithm.health_remedies
    remedies = {each.check: each.remedy for each in check_step(line, [STEP] * 20, CONFIG, advice)}
    assert set(re.findall(r"algorithm\.[\w.]+\w", remedies[check])) == named


def test_ratio_check_accepts_1_and_rejects_deviations() -> None:
    """The first minibatch is on policy, so its ratio is exactly 1 in every step."""
    assert failed_checks(STEP, *[STEP] * 99) == {}
    assert set(failed_checks(step_metrics(train__first_minibatch_ratio=1.2))) == {"ratio"}
    assert re.search(
        r"\b1\.000\b.*\b0\.600\b", failed_checks(step_metrics(train__first_minibatch_ratio_mse=0.36))["ratio"]
    )
    assert failed_checks(step_metrics(train__first_minibatch_ratio_mse=0.0036)) == {}, "rounding to bfloat16"


def test_constant_ratio_in_later_minibatches_is_reported() -> None:
    still, moving = (
        step_metrics(train__later_minibatch_ratio_mse=1e-13),
        step_metrics(train__later_minibatch_ratio_mse=1e-8),
    )
    assert failed_checks(still, still, still) == {}, "three steps are too few to tell"
    found = failed_checks(still, *[still] * 3)
    assert found.keys() == {"no_policy_change"}
    assert re.search(r"\b4 steps\b", found["no_policy_change"])
    assert failed_checks(moving, *[still] * 9) == {}
    assert failed_checks(still, moving, still, still) == {}


@pytest.mark.parametrize(
    ("check", "changes", "text"),
    [
        ("finite", {"train__loss": math.nan}, "train/loss"),
        ("finite", {"train__grad_norm": None}, "train/grad_norm"),
        ("finite", {"rollout__reward": math.inf}, "rollout/reward"),
        ("no_weight_change", {"train__relative_weight_change": 0.0}, r"\b0\.1\b"),
        ("grad_norm", {"train__grad_norm": 2.1}, r"\b2\.1\b.*\b0\.1\b"),
        ("grad_norm", {"train__grad_norm": 0.0}, "gradient"),
        ("clip_fraction", OFF_POLICY | {"train__clip_fraction": 0.31}, r"\b31\.0%.*\b0\.3\b"),
        ("approx_kl", OFF_POLICY | {"train__approx_kl": 0.2}, r"\b0\.200\b.*\b0\.1\b"),
        ("empty_replies", {"rollout__replies__empty": 0.2}, r"\b20\.0%.*\b0\.1\b"),
        ("malformed_replies", {"rollout__replies__malformed": 0.599}, r"\b59\.9%.*\b0\.25\b"),
        (
            "faults",
            {"rollout__fault__user": 0.03, "rollout__fault__engine": 0.01},
            r"\b4\.0%.*user 3\.0%, engine 1\.0%",
        ),
    ],
)
def test_checks_on_a_single_step(check: HealthCheck, changes: dict[str, float | None], text: str) -> None:
    found = failed_checks(step_metrics(**changes), *[STEP] * 5)
    assert found.keys() == {check}
    assert re.search(text, found[check])


@pytest.mark.parametrize(
    ("check", "changes", "text"),
    [
        ("entropy", {"train__entropy": 0.006}, r"\b0\.07\b.*\b0\.006\b"),
        (
            "zero_variance_groups",
            {"rollout__zero_variance_groups": 8.0},
            r"\b100%.*\b2 steps\b.*\b40%",
        ),
        ("tool_calls", {"rollout__replies__tool_calls": 0.2}, r"\b20\.0%.*\b50\.0%"),
        (
            "episode_length",
            {"rollout__response_tokens": 16000.0},
            r"\b250 tokens\b.*\b100\b",
        ),
    ],
)
def test_checks_that_need_several_steps(check: HealthCheck, changes: dict[str, float], text: str) -> None:
    line = step_metrics(**changes)
    assert failed_checks(line, STEP, STEP, STEP) == {}, "one such step is no alarm"
    found = failed_checks(line, STEP, STEP, line)
    assert found.keys() == {check}
    assert re.search(text, found[check])


def test_high_success_suppresses_related_checks() -> None:
    sure = step_metrics(rollout__success_rate=0.95, train__entropy=0.001, rollout__replies__tool_calls=0.2)
    assert failed_checks(sure, STEP, STEP, sure) == {}
    shorter = step_metrics(
        rollout__success_rate=0.55, rollout__response_tokens=1600.0, rollout__replies__tool_calls=0.2
    )
    assert failed_checks(shorter, STEP, STEP, shorter) == {}
    solved = step_metrics(rollout__success_rate=1.0, rollout__zero_variance_groups=8.0)
    assert failed_checks(solved, solved).keys() == {"zero_variance_groups"}
    failing = step_metrics(rollout__success_rate=0.0, rollout__zero_variance_groups=8.0)
    assert (
        failed_checks(failing, failing)["zero_variance_groups"] != failed_checks(solved, solved)["zero_variance_groups"]
    )
    assert failed_checks(solved | {"train/value_loss": 0.1}, solved) == {}, "a critic learns from any group"


def test_reward_near_the_noop_reward_is_reported() -> None:
    """In one run the reward rose from 0.41 to 0.94 because the policy learned to do nothing."""
    free = step_metrics(rollout__reward=0.94, rollout__noop_reward=0.94)
    found = failed_checks(free, free)
    assert found.keys() == {"noop_baseline"}
    assert re.search(r"\b2 steps\b.*\b0\.940\b.*\b0\.940\b", found["noop_baseline"])
    assert failed_checks(step_metrics(rollout__reward=0.98, rollout__noop_reward=0.94), free) == {}
    nothing = step_metrics(rollout__reward=0.0)
    assert set(failed_checks(nothing, nothing)) == {"noop_baseline"}


def test_sft_steps_may_lower_entropy_and_are_no_reference_for_rl() -> None:
    lines = [{"train/entropy": 1.2 / 2**n, "train/grad_norm": 5.0 / 2**n, "train/loss": 1.0} for n in range(9)]
    found = check_step(lines[-1], lines[:-1], CONFIG, REMEDIES)
    assert {f.check for f in found} == {"finite", "grad_norm"}
    assert failed_checks(lines[-1], *lines[:-1]) == {}
    assert failed_checks(step_metrics(train__grad_norm=0.01), *lines) == {}, "SFT steps are no reference for RL steps"


def test_preference_steps_are_compared_only_with_each_other() -> None:
    """Their gradients are sums over whole conversations."""
    imitated = {"train/entropy": 0.1, "train/grad_norm": 0.1, "train/loss": 1.0}
    first = imitated | {"train/grad_norm": 30.0, "train/chosen_log_ratio": 0.0}
    compared = first | {"train/grad_norm": 0.1}
    assert failed_checks(first, *[imitated] * 9) == {}
    assert failed_checks(imitated | {"train/grad_norm": 30.0}, *[imitated] * 9).keys() == {"grad_norm"}
    assert failed_checks(first, *[imitated] * 9, *[compared] * 9).keys() == {"grad_norm"}


def test_ratio_check_uses_the_uncorrected_sampler_ratio() -> None:
    corrected = step_metrics(train__tis_ratio=1.0, train__tis_ratio_mse=0.0036)
    assert failed_checks(corrected) == {}
    assert re.search(r"\b1\.000\b.*\b0\.600\b", failed_checks(corrected | {"train/tis_ratio_mse": 0.36})["ratio"])


def test_kl_and_clip_checks_skip_single_minibatch_steps() -> None:
    """With one minibatch they measure the sampler-trainer mismatch, which `ratio` checks."""
    assert failed_checks(step_metrics(train__approx_kl=0.3, train__clip_fraction=0.5)) == {}
    found = {name: value for name, value in STEP.items() if not name.startswith("train/first_minibatch_ratio")}
    assert failed_checks(found | {"train/approx_kl": 0.3}).keys() == {"approx_kl"}, "if the ratio is unknown"


def test_initial_eval_without_success_is_reported() -> None:
    (cold,) = check_initial_eval({"eval/retail/success_rate": 0.0}, CONFIG)
    assert re.search(r"\b0\.0%", cold.message)
    assert "sft.steps=48" in cold.remedy
    (warm,) = check_initial_eval({"eval/retail/success_rate": 0.0, "eval/airline/success_rate": 0.1}, CONFIG)
    assert warm.ok
    (unseen,) = check_initial_eval({"eval/retail/success_rate": 0.0, "eval/ood/airline/success_rate": 0.9}, CONFIG)
    assert not unseen.ok, "what is not trained on does not count"
    assert check_initial_eval({"test/retail/success_rate": 0.5}, CONFIG)[0].ok
    assert check_initial_eval({}, CONFIG) == []
    assert health_metrics([cold]) == {"health/initial_success": 1.0}


@given(st.lists(st.dictionaries(st.sampled_from(sorted(STEP)), st.none() | st.floats()), max_size=9))
def test_check_step_handles_arbitrary_metrics(lines: list[dict[str, float | None]]) -> None:
    found = check_step(step_metrics(), lines, CONFIG, REMEDIES)
    for finding in found + check_step(lines[0] if lines else {}, lines, CONFIG, REMEDIES):
        assert isinstance(finding, HealthCheckResult)
        assert "nan" not in finding.message


def test_metric_names_get_their_prefix() -> None:
    assert add_prefixes({"step": 3, "reward": 0.5, "success_rate": 0.25, "nll_loss": 1.0}) == {
        "step": 3,
        "rollout/reward": 0.5,
        "rollout/success_rate": 0.25,
        "train/nll_loss": 1.0,
    }
    by_rule = {
        "replies/malformed/json": "rollout/replies/malformed/json",
        "stop/done": "rollout/stop/done",
        "rollout_seconds": "time/rollout_seconds",
        "tokens_per_second": "time/tokens_per_second",
        "value_loss": "train/value_loss",
        "reward_std": "rollout/reward_std",
        "grad_norm": "train/grad_norm",
        "critic/explained": "train/critic/explained",
        "time/certify_seconds": "time/certify_seconds",
        "eval/retail/success_rate": "eval/retail/success_rate",
    }
    assert {name: prefixed_name(name) for name in by_rule} == by_rule
    assert all(prefixed_name(name) == name for name in STEP), "a full name stays"
