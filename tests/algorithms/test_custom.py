"""Test a user's own advantage estimators and losses, named as `module:attribute`."""

import sys
from pathlib import Path

import pytest
import torch

from understudy.algorithms.batch import Batch
from understudy.algorithms.config import LossConfig
from understudy.algorithms.custom import custom_advantages, validate_custom_functions
from understudy.algorithms.losses import compute_loss, ppo_loss
from understudy.core.errors import ConfigError, RolloutError
from understudy.runs.config import parse_config

FUNCTIONS = """
import torch
from understudy.algorithms.losses import ppo_loss

def per_episode(batch):
    return batch.rewards - 0.5

def per_token(batch):
    return torch.where(batch.anchor_states >= 0, 2.0, 7.0)

def ppo(logprobs, old_logprobs, advantages, mask, sequence_ids, config):
    assert sequence_ids.shape == logprobs.shape
    return ppo_loss(logprobs, old_logprobs, advantages, mask, config.clip_low, config.clip_high)

def wrong_shape(batch):
    return batch.rewards[:1]

def not_finite(batch):
    return batch.rewards / 0.0

def raises(*arguments):
    return {}["gamma"]

def no_metrics(logprobs, *rest):
    return logprobs.sum()

def mean(logprobs, old_logprobs, advantages, *rest):
    return -(logprobs * advantages).mean(), {}

def detached(logprobs, old_logprobs, advantages, *rest):
    return -(logprobs.detach() * advantages).sum(), {}

def metric_of_each_token(logprobs, *rest):
    return logprobs.sum(), {"clipped": logprobs}

def two_dimensions(logprobs, *rest):
    return logprobs.sum(1).sum(), {}

def number_as_metric(logprobs, *rest):
    return logprobs.sum(), {"tokens": len(logprobs)}

number = 3
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module with functions of a user."""
    name = f"functions_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def small_batch() -> Batch:
    return Batch.from_rows(
        [[1, 2, 3]] * 2, [[False, True, False], [False, True, True]], rewards=[0.0, 1.0], anchor_states=[[-1, 0, 1]] * 2
    )


def test_advantages_of_episodes_and_of_tokens(functions: str) -> None:
    batch = small_batch()
    assert custom_advantages(f"{functions}:per_episode", batch).tolist() == [[0, -0.5, 0], [0, 0.5, 0.5]]
    assert custom_advantages(f"{functions}:per_token", batch).tolist() == [[0, 2, 0], [0, 2, 2]]


def test_loss_gets_what_the_built_in_losses_get(functions: str) -> None:
    batch = small_batch()
    now = torch.full(batch.mask.shape, -0.7)
    arguments = now, batch.logprobs, torch.ones_like(now), batch.mask
    found, metrics = compute_loss(LossConfig(kind=f"{functions}:ppo", clip_high=0.3), *arguments)
    expected, expected_metrics = ppo_loss(*arguments, 0.2, 0.3)
    assert (found, metrics) == (expected, expected_metrics)


@pytest.mark.parametrize(
    ("estimator", "kind", "text"),
    [
        ("wrong_shape", "ppo", r"algorithm\.advantage_estimator.*\[1\].*\[4\].*\[4, 5\]"),
        ("not_finite", "ppo", "finite"),
        ("number", "ppo", "not a function"),
        ("missing", "ppo", "missing"),
        ("per_episode", "no_metrics", r"algorithm\.loss\.kind.*scalar"),
        ("per_episode", "mean", r"algorithm\.loss\.kind.*sum over tokens"),
        ("per_episode", "detached", r"algorithm\.loss\.kind.*without gradient"),
        ("per_episode", "metric_of_each_token", r"algorithm\.loss\.kind.*'clipped'"),
    ],
)
def test_function_that_returns_something_else_is_refused(functions: str, estimator: str, kind: str, text: str) -> None:
    loss = LossConfig(kind=kind if kind == "ppo" else f"{functions}:{kind}")
    with pytest.raises(ConfigError, match=text):
        validate_custom_functions(f"{functions}:{estimator}", loss)


@pytest.mark.parametrize("is_loss", [True, False])
def test_exception_of_a_function_names_its_place(functions: str, is_loss: bool) -> None:
    raising = f"{functions}:raises"
    with pytest.raises(RolloutError, match=rf"{functions}\.py:\d+") as caught:
        validate_custom_functions(*(("grpo", LossConfig(kind=raising)) if is_loss else (raising, LossConfig())))
    assert "KeyError: 'gamma'" in str(caught.value)
    assert caught.value.report is not None


def test_loss_gets_the_sampled_tokens_only(functions: str) -> None:
    batch = small_batch()
    now = torch.full(batch.mask.shape, -0.7)
    loss = LossConfig(kind=f"{functions}:number_as_metric")
    _, metrics = compute_loss(loss, now, batch.logprobs, torch.ones_like(now), batch.mask)
    assert metrics == {"tokens": torch.tensor(3.0)}
    with pytest.raises(RolloutError, match="two_dimensions raised IndexError"):
        validate_custom_functions("grpo", LossConfig(kind=f"{functions}:two_dimensions"))


def test_built_in_names_are_not_imported() -> None:
    validate_custom_functions("group_mean", LossConfig())


def test_config_takes_references_and_refuses_unknown_names() -> None:
    algorithm = parse_config(
        "", ["algorithm.advantage_estimator=my:best", "algorithm.loss.kind=my.losses:mine", "algorithm.group_size=1"]
    ).algorithm
    assert (algorithm.advantage_estimator, algorithm.loss.kind) == ("my:best", "my.losses:mine")
    with pytest.raises(ConfigError, match=r"^algorithm\.advantage_estimator: unknown value 'grp'.*'grpo'"):
        parse_config("", ["algorithm.advantage_estimator=grp"])
