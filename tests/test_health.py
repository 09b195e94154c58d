"""Health: each check by hand, on lines as runs write them; what is healthy raises no alarm."""

import math
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.health import Check, Finding, HealthConfig, as_metrics, of_start, of_step
from understudy.metrics import full_name, named

CONFIG = HealthConfig(window=2)
STEP: dict[str, float] = {
    "reward/average_reward": 0.4,
    "reward/success_rate": 0.4,
    "generation/episodes": 64.0,
    "generation/groups": 8.0,
    "generation/equal_groups": 2.0,
    "generation/sampled_tokens": 6400.0,
    "generation/replies/calls": 0.5,
    "generation/replies/text": 0.4,
    "train/grad_norm": 0.1,
    "train/entropy": 0.07,
    "train/clip_fraction": 0.0,
    "train/approx_kl": 3e-10,
    "train/first_ratio": 1.0,
    "train/first_ratio_error": 0.0,
    "train/weight_change": 1e-5,
    "loss/total": 0.09,
}
"""A step of a real run, rounded."""


LATER: dict[str, float | None] = {"train__later_ratio_error": 0.1}
"""Of a step with several minibatches."""


def step(**changes: float | None) -> dict[str, Any]:
    return STEP | {name.replace("__", "/"): value for name, value in changes.items()}


def bad(line: Mapping[str, Any], *earlier: Mapping[str, Any], config: HealthConfig = CONFIG) -> dict[str, str]:
    return {f.check: f.text for f in of_step(line, earlier, config) if not f.ok}


def test_a_healthy_step_is_told_to_be_so_by_every_check_that_can_tell() -> None:
    findings = of_step(STEP, [STEP] * 5, CONFIG)
    assert [f for f in findings if not f.ok] == []
    assert {f.check for f in findings} == set(get_args(Check)) - {"stuck", "clipping", "kl", "start"}
    assert as_metrics(findings) == {f"health/{f.check}": 0.0 for f in findings}


def test_a_ratio_of_exactly_1_is_healthy_and_one_that_is_elsewhere_is_not() -> None:
    """The first minibatch is on policy: 1 without any spread is what it has to be, however often."""
    assert bad(STEP, *[STEP] * 99) == {}
    assert set(bad(step(train__first_ratio=1.2))) == {"ratio"}
    assert bad(step(train__first_ratio_error=0.36))["ratio"].endswith(
        "is 1.000 on average and 0.600 from 1, where it has to be 1"
    )
    assert bad(step(train__first_ratio_error=0.0036)) == {}, "rounding to bfloat16"


def test_later_minibatches_have_to_move_the_ratio() -> None:
    still, moving = step(train__later_ratio_error=1e-13), step(train__later_ratio_error=1e-8)
    assert bad(still, still, still) == {}, "three steps are too few to tell"
    assert bad(still, *[still] * 3) == {"stuck": "in 4 steps no update has moved a probability ratio"}
    assert bad(moving, *[still] * 9) == {}
    assert bad(still, moving, still, still) == {}


@pytest.mark.parametrize(
    ("check", "changes", "text"),
    [
        ("finite", {"loss__total": math.nan}, "loss/total is not a finite number"),
        ("finite", {"train__grad_norm": None}, "train/grad_norm is not a finite number"),
        ("finite", {"reward__average_reward": math.inf}, "reward/average_reward is not a finite number"),
        ("weights", {"train__weight_change": 0.0}, "the update changed no weight, though its gradient is 0.1"),
        ("gradient", {"train__grad_norm": 2.1}, "the gradient's norm is 2.1; it was 0.1"),
        ("gradient", {"train__grad_norm": 0.0}, "the gradient is zero, though there are episodes to learn from"),
        ("clipping", LATER | {"train__clip_fraction": 0.31}, "31.0% of the tokens are clipped, more than 0.3"),
        ("kl", LATER | {"train__approx_kl": 0.2}, "one step moved the policy by 0.200 nats a token, more than 0.1"),
        ("empty", {"generation__replies__empty": 0.2}, "20.0% of the replies say and call nothing, more than 0.1"),
        ("malformed", {"generation__replies__malformed": 0.599}, "59.9% of the replies cannot be read, more than 0.25"),
        (
            "faults",
            {"fault__user": 0.03, "fault__engine": 0.01},
            "4.0% of the episodes failed, by whose fault: user 3.0%, engine 1.0%",
        ),
    ],
)
def test_what_one_step_shows(check: Check, changes: dict[str, float | None], text: str) -> None:
    assert bad(step(**changes), *[STEP] * 5) == {check: text}


@pytest.mark.parametrize(
    ("check", "changes", "text"),
    [
        ("entropy", {"train__entropy": 0.006}, "entropy fell from 0.07 to 0.006: replies are all but the same"),
        (
            "groups",
            {"generation__equal_groups": 8.0},
            "100% of the groups of the last 2 steps teach nothing by their rewards: "
            "each task succeeds always or never (40% of the episodes do)",
        ),
        ("calls", {"generation__replies__calls": 0.2}, "20.0% of the replies call a tool; at first 50.0% did"),
        (
            "length",
            {"generation__sampled_tokens": 16000.0},
            "the model says 250 tokens an episode; at first it said 100, and it succeeds no more often",
        ),
    ],
)
def test_what_only_several_steps_show(check: Check, changes: dict[str, float], text: str) -> None:
    line = step(**changes)
    assert bad(line, STEP, STEP, STEP) == {}, "one such step is none"
    assert bad(line, STEP, STEP, line) == {check: text}


def test_success_excuses_what_comes_with_it() -> None:
    sure = step(reward__success_rate=0.95, train__entropy=0.001, generation__replies__calls=0.2)
    assert bad(sure, STEP, STEP, sure) == {}
    shorter = step(reward__success_rate=0.55, generation__sampled_tokens=1600.0, generation__replies__calls=0.2)
    assert bad(shorter, STEP, STEP, shorter) == {}
    solved = step(reward__success_rate=1.0, generation__equal_groups=8.0)
    assert bad(solved, solved)["groups"].endswith("nearly every episode succeeds")
    failing = step(reward__success_rate=0.0, generation__equal_groups=8.0)
    assert bad(failing, failing)["groups"].endswith("nearly every episode fails alike")
    assert bad(solved | {"loss/value_loss": 0.1}, solved) == {}, "a critic learns from any group"


def test_a_reward_that_doing_nothing_earns_too() -> None:
    """It rose from 0.41 to 0.94 once, by learning to do nothing."""
    free = step(reward__average_reward=0.94, reward__floor=0.94)
    assert bad(free, free) == {"floor": "the reward of the last 2 steps is 0.940, and doing nothing earns 0.940"}
    assert bad(step(reward__average_reward=0.98, reward__floor=0.94), free) == {}
    nothing = step(reward__average_reward=0.0)
    assert set(bad(nothing, nothing)) == {"floor"}


def test_imitation_is_to_lower_entropy_and_has_no_episodes() -> None:
    lines = [{"train/entropy": 1.2 / 2**n, "train/grad_norm": 5.0 / 2**n, "loss/total": 1.0} for n in range(9)]
    assert {f.check for f in of_step(lines[-1], lines[:-1], CONFIG)} == {"finite", "gradient"}
    assert bad(lines[-1], *lines[:-1]) == {}
    assert bad(step(train__grad_norm=0.01), *lines) == {}, "and is no measure for what follows it"


def test_preferences_are_no_imitation() -> None:
    """Whose gradients are sums over whole conversations."""
    imitated = {"train/entropy": 0.1, "train/grad_norm": 0.1, "loss/total": 1.0}
    first = imitated | {"train/grad_norm": 30.0, "train/wanted_margin": 0.0}
    compared = first | {"train/grad_norm": 0.1}
    assert bad(first, *[imitated] * 9) == {}
    assert bad(imitated | {"train/grad_norm": 30.0}, *[imitated] * 9).keys() == {"gradient"}
    assert bad(first, *[imitated] * 9, *[compared] * 9).keys() == {"gradient"}


def test_a_sampler_that_is_made_up_for_is_judged_as_it_was() -> None:
    made_up_for = step(train__sampler_ratio=1.0, train__sampler_ratio_error=0.0036)
    assert bad(made_up_for) == {}
    told = "the sampler is not the trainer: its probability ratio is 1.000 on average and 0.600 from 1, "
    assert bad(made_up_for | {"train/sampler_ratio_error": 0.36})["ratio"].startswith(told)


def test_what_no_update_has_moved_is_no_step_of_the_policy() -> None:
    """With one minibatch these are how far sampler and trainer are apart, which `ratio` looks at."""
    assert bad(step(train__approx_kl=0.3, train__clip_fraction=0.5)) == {}
    told = {name: value for name, value in STEP.items() if not name.startswith("train/first_ratio")}
    assert bad(told | {"train/approx_kl": 0.3}).keys() == {"kl"}, "where nobody tells a ratio"


def test_a_model_that_never_succeeds_cannot_learn_yet() -> None:
    (cold,) = of_start({"eval/retail/success_rate": 0.0}, CONFIG)
    assert cold.text.startswith("before reinforcement learning the model succeeds on 0.0% of the held-out tasks")
    assert "sft.steps=48" in cold.remedy
    (warm,) = of_start({"eval/retail/success_rate": 0.0, "eval/airline/success_rate": 0.1}, CONFIG)
    assert warm.ok
    (unseen,) = of_start({"eval/retail/success_rate": 0.0, "test/airline/success_rate": 0.9}, CONFIG)
    assert not unseen.ok, "what is not trained on does not count"
    assert of_start({"test/retail/success_rate": 0.5}, CONFIG)[0].ok
    assert of_start({}, CONFIG) == []
    assert as_metrics([cold]) == {"health/start": 1.0}


@given(st.lists(st.dictionaries(st.sampled_from(sorted(STEP)), st.none() | st.floats()), max_size=9))
def test_whatever_a_line_holds_it_is_examined(lines: list[dict[str, float | None]]) -> None:
    for finding in of_step(step(), lines, CONFIG) + of_step(lines[0] if lines else {}, lines, CONFIG):
        assert isinstance(finding, Finding)
        assert "nan" not in finding.text


def test_names_by_the_table_and_by_the_rule() -> None:
    assert named({"step": 3, "reward": 0.5, "success": 0.25, "nll": 1.0}) == {
        "step": 3,
        "reward/average_reward": 0.5,
        "reward/success_rate": 0.25,
        "loss/nll": 1.0,
    }
    by_rule = {
        "replies/malformed/json": "generation/replies/malformed/json",
        "stop/done": "generation/stop/done",
        "sampling_seconds": "timing/sampling_seconds",
        "tokens_per_second": "timing/tokens_per_second",
        "value_loss": "loss/value_loss",
        "reward_std": "reward/reward_std",
        "grad_norm": "train/grad_norm",
        "critic/explained": "train/critic/explained",
        "certify/seconds": "certify/seconds",
        "eval/retail/success_rate": "eval/retail/success_rate",
    }
    assert {name: full_name(name) for name in by_rule} == by_rule
    assert all(full_name(name) == name for name in STEP), "a full name stays"
