"""Tests of the policy losses: hand-computed values, finite differences, and sums over any split of the tokens."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from understudy.algorithms.config import LossConfig
from understudy.algorithms.losses import cispo_loss, compute_loss, gspo_loss, nll_loss, ppo_loss
from understudy.core.errors import ConfigError

CLIP = (0.2, 0.3)
hypothesis_settings = settings(deadline=None, derandomize=True)
number = st.floats(-30.0, 30.0)


def logprobs_with_ratios(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).log().requires_grad_()


def random_inputs(seed: int = 0, rows: int = 3, length: int = 7) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return trained log-probabilities, the sampler's, advantages and mask. Some ratios exceed both clips."""
    generator = torch.Generator().manual_seed(seed)
    old, noise, advantages = torch.randn(3, rows, length, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, length, generator=generator) < 0.7
    return (old + 0.5 * noise).requires_grad_(), old, advantages, mask


def test_ppo_loss_and_metrics_match_hand_computed_values() -> None:
    # Ratios 0.5 and 2 are outside of [0.8, 1.3]. Of min(r A, clip(r) A): 0.5, 0.8 * -1, 1.3, 2 * -1, 1.1 * 3.
    logprobs = logprobs_with_ratios(0.5, 0.5, 2.0, 2.0, 1.1, 7.0)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 3.0, 5.0], dtype=torch.float64)
    mask = torch.tensor([True] * 5 + [False])
    loss, metrics = ppo_loss(logprobs, torch.zeros(6), advantages, mask, *CLIP)
    assert loss.item() == pytest.approx(-(0.5 - 0.8 + 1.3 - 2.0 + 3.3))
    assert metrics["clip_fraction"].item() == 2
    assert metrics["logprob_abs_diff"].item() == pytest.approx(4 * math.log(2) + math.log(1.1))
    k3 = [r - 1 - math.log(r) for r in (0.5, 0.5, 2.0, 2.0, 1.1)]
    assert metrics["approx_kl"].item() == pytest.approx(sum(k3))
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert grad.tolist() == pytest.approx([-0.5, 0.0, 0.0, 2.0, -3.3, 0.0])


def test_dual_clip_bounds_the_loss_of_negative_advantages_by_hand_computed_values() -> None:
    # Bound 3: of the ratios 2, 5 and 7 with negative advantages only 5 and 7 are above it. 5 with a positive advantage
    # is clipped to 1.3 as ever.
    logprobs = logprobs_with_ratios(2.0, 5.0, 5.0, 7.0)
    advantages = torch.tensor([-1.0, -1.0, 1.0, -2.0], dtype=torch.float64)
    loss, metrics = ppo_loss(logprobs, torch.zeros(4), advantages, torch.ones(4, dtype=torch.bool), *CLIP, 3.0)
    assert loss.item() == pytest.approx(2.0 + 3.0 - 1.3 + 6.0)
    assert metrics["clip_fraction"].item() == 3
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert grad.tolist() == pytest.approx([2.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"dual_clip": 0.5}, "dual_clip = 0.5"),
        ({"dual_clip": 3.0, "kind": "cispo"}, "dual_clip = 3.0 .*'cispo'"),
        ({"target_kl": 0.1, "kind": "nll"}, "target_kl = 0.1 .*'nll'"),
        ({"target_kl": 0.1, "kind": "my_module:loss"}, "target_kl = 0.1 .*'my_module:loss'"),
    ],
)
def test_settings_of_other_losses_are_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        LossConfig(**settings)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (0.79, -1.0, False),
        (0.81, -1.0, True),
        (0.79, 1.0, True),
        (1.29, 1.0, True),
        (1.31, 1.0, False),
        (1.31, -1.0, True),
    ],
)
def test_ppo_clips_by_ratio_and_sign_of_the_advantage(ratio: float, advantage: float, moves: bool) -> None:
    logprobs = logprobs_with_ratios(ratio)
    loss, metrics = ppo_loss(logprobs, torch.zeros(1), torch.tensor([advantage]), torch.tensor([True]), *CLIP)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert grad.item() == pytest.approx(-ratio * advantage if moves else 0.0)
    assert metrics["clip_fraction"].item() == (not moves)


def test_ppo_is_the_policy_gradient_on_policy() -> None:
    logprobs, _, advantages, mask = random_inputs()
    loss, metrics = ppo_loss(logprobs, logprobs.detach(), advantages, mask, *CLIP)
    (grad,) = torch.autograd.grad(loss, logprobs)
    torch.testing.assert_close(grad, -advantages * mask)
    found = {key: value.item() for key, value in metrics.items()}
    assert found.pop("ratio") == mask.sum()
    assert found == dict.fromkeys(found, 0.0)


@pytest.mark.parametrize(
    "loss",
    [
        LossConfig(clip_high=0.3),
        LossConfig(clip_high=0.3, dual_clip=1.5),
        LossConfig(kind="gspo", clip_high=0.3),
        LossConfig(kind="nll"),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_loss_gradients_match_finite_differences(loss: LossConfig, seed: int) -> None:
    logprobs, old, advantages, mask = random_inputs(seed)

    def loss_at(x: Tensor) -> Tensor:
        return compute_loss(loss, x, old, advantages, mask)[0]

    assert torch.autograd.gradcheck(loss_at, (logprobs,), eps=1e-7)
    (grad,) = torch.autograd.grad(loss_at(logprobs), logprobs)
    assert not grad[~mask].any()
    assert grad[mask].any()


@pytest.mark.parametrize(
    "loss", [LossConfig(), LossConfig(dual_clip=1.5), LossConfig(kind="cispo"), LossConfig(kind="nll")]
)
@hypothesis_settings
@given(values=st.lists(st.tuples(number, number, number, st.booleans()), min_size=2, max_size=9), cut=st.data())
def test_token_losses_add_up_over_any_split_of_tokens(
    loss: LossConfig, values: list[tuple[float, float, float, bool]], cut: st.DataObject
) -> None:
    logprobs, old, advantages = torch.tensor([v[:3] for v in values], dtype=torch.float64).T
    mask = torch.tensor([v[3] for v in values])
    logprobs = logprobs.clone().requires_grad_()

    def loss_of(index: list[int]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        value, metrics = compute_loss(loss, logprobs[index], old[index], advantages[index], mask[index])
        return value, torch.autograd.grad(value, logprobs)[0], metrics

    order = cut.draw(st.permutations(range(len(values))))
    at = cut.draw(st.integers(0, len(values)))
    whole, first, second = loss_of(list(range(len(values)))), loss_of(order[:at]), loss_of(order[at:])
    torch.testing.assert_close(first[0] + second[0], whole[0])
    torch.testing.assert_close(first[1] + second[1], whole[1])
    for key, total in whole[2].items():
        torch.testing.assert_close((first[2][key] + second[2][key]).double(), total.double())
    nobody = [i for i in range(len(values)) if not mask[i]]
    assert loss_of(nobody)[0].item() == 0.0


@hypothesis_settings
@given(number, number, number)
def test_losses_ignore_masked_tokens(logprob: float, old: float, advantage: float) -> None:
    wild = torch.tensor([math.nan, math.inf, -math.inf, logprob], dtype=torch.float64).requires_grad_()
    mask = torch.tensor([False, False, False, True])
    others = torch.tensor([old] * 4), torch.tensor([advantage] * 4)
    rows = torch.tensor([0, 0, 0, 0])
    for loss in (LossConfig(), LossConfig(kind="gspo"), LossConfig(kind="cispo"), LossConfig(kind="nll")):
        value, metrics = compute_loss(loss, wild, *others, mask, rows)
        (grad,) = torch.autograd.grad(value, wild)
        assert value.isfinite()
        assert grad[:3].tolist() == [0.0, 0.0, 0.0]
        assert all(metric.isfinite() for metric in metrics.values())


def test_nll_loss_matches_hand_computed_values() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -4.0], requires_grad=True)
    value, metrics = nll_loss(logprobs, torch.tensor([0.5, 0.25, 9.0]), torch.tensor([True, True, False]))
    assert value.item() == 1.0
    assert metrics["nll_loss"].item() == 3.0
    assert torch.autograd.grad(value, logprobs)[0].tolist() == [-0.5, -0.25, 0.0]


def test_gspo_loss_matches_hand_computed_values() -> None:
    # Row 0: ratios 2 and 1/2, whose mean is 1; row 1: 4 and 1, mean 2, clipped to 1.3; the last is masked.
    logprobs = logprobs_with_ratios(2.0, 0.5, 4.0, 1.0, 9.0)
    rows, mask = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([True] * 4 + [False])
    advantages = torch.tensor([0.5, 0.5, 3.0, 3.0, 7.0], dtype=torch.float64)
    loss, metrics = gspo_loss(logprobs, torch.zeros(5), advantages, mask, rows, *CLIP)
    assert loss.item() == pytest.approx(-(0.5 + 0.5 + 1.3 * 6.0))
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert grad.tolist() == pytest.approx([-0.5, -0.5, 0.0, 0.0, 0.0])
    assert metrics["clip_fraction"].item() == 2
    assert metrics["ratio"].item() == pytest.approx(1 + 1 + 2 + 2)


def test_gspo_and_cispo_are_the_policy_gradient_on_policy() -> None:
    logprobs, _, advantages, mask = random_inputs()
    advantages = advantages[:, :1].expand_as(advantages)  # one for all tokens of a sequence
    for kind in ("gspo", "cispo"):
        loss, metrics = compute_loss(LossConfig(kind=kind), logprobs, logprobs.detach(), advantages, mask)
        (grad,) = torch.autograd.grad(loss, logprobs)
        torch.testing.assert_close(grad, -advantages * mask)
        assert metrics["ratio_mse"].item() == 0.0


@hypothesis_settings
@given(seed=st.integers(0, 99), order=st.permutations(range(5)), at=st.integers(0, 5))
def test_gspo_losses_add_up_over_any_split_of_sequences(seed: int, order: list[int], at: int) -> None:
    logprobs, old, advantages, mask = random_inputs(seed, rows=5)

    def loss_of(index: list[int]) -> tuple[Tensor, Tensor]:
        flat = mask[index]
        rows = torch.tensor(index)[:, None].expand_as(flat)[flat]
        chosen = logprobs[index][flat], old[index][flat], advantages[index][flat], torch.ones_like(rows).bool()
        value, _ = compute_loss(LossConfig(kind="gspo"), *chosen, rows)
        return value, torch.autograd.grad(value, logprobs)[0]

    whole, _ = compute_loss(LossConfig(kind="gspo"), logprobs, old, advantages, mask)
    (first, one), (second, other) = loss_of(order[:at]), loss_of(order[at:])
    torch.testing.assert_close(first + second, whole)
    torch.testing.assert_close(one + other, torch.autograd.grad(whole, logprobs)[0])


def test_clip_low_of_1_sets_no_lower_bound() -> None:
    logprobs, one = logprobs_with_ratios(0.01), torch.ones(1)
    for kind, grad in (("cispo", 0.01), ("ppo", -0.01)):
        advantage = one if kind == "cispo" else -one
        loss, metrics = compute_loss(LossConfig(kind=kind, clip_low=1.0), logprobs, 0 * one, advantage, one.bool())
        assert torch.autograd.grad(loss, logprobs)[0].item() == pytest.approx(-grad)
        assert metrics["clip_fraction"].item() == 0


def test_cispo_loss_matches_hand_computed_values() -> None:
    """Beyond the clip the weight is constant and the gradient remains, unlike PPO's."""
    logprobs = logprobs_with_ratios(0.5, 2.0, 1.1)
    advantages = torch.tensor([-1.0, 1.0, 2.0], dtype=torch.float64)
    loss, metrics = cispo_loss(logprobs, torch.zeros(3), advantages, torch.ones(3).bool(), *CLIP)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert grad.tolist() == pytest.approx([0.8, -1.3, -2.2])
    assert metrics["clip_fraction"].item() == 2
    assert metrics["ratio_mse"].item() == pytest.approx(0.25 + 1.0 + 0.01)
