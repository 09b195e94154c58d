"""Tests of generalized advantage estimation, the value loss, explained variance and the overlong fraction."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from understudy.algorithms.critic import (
    action_starts,
    explained_variance,
    gae_advantages,
    masked_whiten,
    terminal_rewards,
)
from understudy.algorithms.losses import value_loss
from understudy.algorithms.rewards import overlong_fraction

hypothesis_settings = settings(deadline=None, derandomize=True)
MASK = torch.tensor([[0, 1, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0, 0]]).bool()
VALUES = torch.tensor([[9.0, 0.5, 0.25, 9.0, 9.0, 0.75, 9.0], [9.0, 9.0, 9.0, 0.5, 9.0, 9.0, 9.0]])
REWARDS = torch.tensor([1.0, 0.0])
LAST = torch.tensor([[0.0, 0, 0, 0, 0, 1, 0], [0.0, 0, 0, 0, 0, 0, 0]])
PENALIZED = LAST - 0.125 * MASK


def test_terminal_reward_is_placed_at_the_last_sampled_token() -> None:
    assert torch.equal(terminal_rewards(REWARDS, MASK), LAST)
    assert terminal_rewards(torch.tensor([2.0]), torch.tensor([[False, True, False, False]])).tolist() == [[0, 2, 0, 0]]
    assert not terminal_rewards(torch.tensor([2.0]), torch.tensor([[False, False]])).any(), "nothing was sampled"


def test_action_starts_are_sampled_tokens_or_reply_starts() -> None:
    assert torch.equal(action_starts(MASK, turn_level=False), MASK)
    assert action_starts(MASK, turn_level=True).int().tolist() == [[0, 1, 0, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0, 0]]


def test_gae_matches_hand_computed_values() -> None:
    """gamma and lambda are 1/2. Tokens of tool results are skipped."""
    last = 1 - 0.75
    middle = 0.5 * 0.75 - 0.25 + 0.25 * last
    first = 0.5 * 0.25 - 0.5 + 0.25 * middle
    found = gae_advantages(LAST, VALUES, MASK, gamma=0.5, gae_lambda=0.5)
    assert found.tolist() == [[0, first, middle, 0, 0, last, 0], [0, 0, 0, -0.5, 0, 0, 0]]


def test_gae_with_token_rewards_matches_hand_computed_values() -> None:
    """Each token has a penalty of 1/8, like a KL penalty."""
    last = 1 - 0.125 - 0.75
    middle = -0.125 + 0.5 * 0.75 - 0.25 + 0.25 * last
    first = -0.125 + 0.5 * 0.25 - 0.5 + 0.25 * middle
    found = gae_advantages(PENALIZED, VALUES, MASK, gamma=0.5, gae_lambda=0.5)
    assert found.tolist() == [[0, first, middle, 0, 0, last, 0], [0, 0, 0, -0.625, 0, 0, 0]]


@pytest.mark.parametrize(("rewards", "each"), [(LAST, 0.0), (PENALIZED, 0.125)])
def test_turn_level_gae_matches_hand_computed_values(rewards: Tensor, each: float) -> None:
    """Replies are tokens 1 and 2, and token 5. A reply has the value of its first token and the sum of its rewards."""
    last = 1 - each - 0.75
    first = -2 * each + 0.5 * 0.75 - 0.5 + 0.25 * last
    found = gae_advantages(rewards, VALUES, MASK, gamma=0.5, gae_lambda=0.5, turn_level=True)
    assert found.tolist() == [[0, first, first, 0, 0, last, 0], [0, 0, 0, -0.5 - each, 0, 0, 0]]


@pytest.mark.parametrize("turns", [False, True])
def test_gae_at_lambda_1_is_reward_minus_value(turns: bool) -> None:
    found = gae_advantages(LAST, VALUES, MASK, gamma=1.0, gae_lambda=1.0, turn_level=turns)
    values = VALUES.clone()
    if turns:
        values[0, 2] = values[0, 1]
    torch.testing.assert_close(found, (REWARDS[:, None] - values) * MASK)


def test_gae_at_lambda_0_is_the_td_error() -> None:
    found = gae_advantages(LAST, VALUES, MASK, gamma=1.0, gae_lambda=0.0)
    assert found[0].tolist() == [0, 0.25 - 0.5, 0.75 - 0.25, 0, 0, 1 - 0.75, 0]


def test_gae_is_zero_for_a_perfect_critic() -> None:
    values = REWARDS[:, None].expand(2, 7)
    assert not gae_advantages(LAST, values, MASK, gamma=1.0, gae_lambda=0.95).any()


@hypothesis_settings
@given(st.integers(0, 99), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.booleans(), st.integers(1, 4))
def test_gae_ignores_padding_other_rows_and_unsampled_tokens(
    seed: int, gamma: float, lam: float, turns: bool, padding: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 3, 9, generator=generator)
    mask = torch.rand(3, 9, generator=generator) < 0.5
    mask[:, 0] = False
    found = gae_advantages(rewards, values, mask, gamma, lam, turns)
    assert not found[~mask].any()

    def padded(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, padding), value=1.0 if x.dtype != torch.bool else False)

    rewards, wild = (
        x.masked_fill(~m, float("nan")) for x, m in ((rewards, mask), (values, action_starts(mask, turns)))
    )
    assert torch.equal(gae_advantages(padded(rewards), padded(wild), padded(mask), gamma, lam, turns)[:, :9], found)
    assert torch.equal(gae_advantages(rewards[1:2], wild[1:2], mask[1:2], gamma, lam, turns)[0], found[1])


def test_whitened_advantages_have_mean_0_and_deviation_1() -> None:
    found = masked_whiten(VALUES, MASK)
    assert found[MASK].mean().item() == pytest.approx(0.0, abs=1e-6)
    assert found[MASK].std().item() == pytest.approx(1.0, abs=1e-5)
    assert not found[~MASK].any()
    alone = torch.tensor([[False, True]])
    assert torch.equal(masked_whiten(VALUES[:1, :2], alone), VALUES[:1, :2]), "one token has no deviation"


def test_explained_variance_matches_hand_computed_values() -> None:
    """The returns 1, 2, 3 have variance 2/3; the errors 0, 0, 1 have 2/9."""
    mask = torch.tensor([True, True, True, False])
    returns, values = torch.tensor([1.0, 2.0, 3.0, 50.0]), torch.tensor([1.0, 2.0, 2.0, -9.0])
    assert explained_variance(values, returns, mask) == pytest.approx(2 / 3)
    assert explained_variance(returns + 7.0, returns, mask) == pytest.approx(1.0), "a constant is no variance"
    assert explained_variance(0.0 * returns, returns, mask) == 0.0
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0)
    assert explained_variance(values, 0.0 * returns, mask) == 0.0


def test_value_loss_matches_hand_computed_values() -> None:
    """The errors are 1 and 2. Clipped to 1.5, the second value has an error of 0.5; the larger error counts."""
    values = torch.tensor([2.0, 4.0, float("nan")], requires_grad=True)
    args = torch.tensor([2.2, 1.0, 0.0]), torch.tensor([1.0, 2.0, 0.0]), torch.tensor([0.5, 0.5, 1.0])
    loss, metrics = value_loss(values, *args, torch.tensor([True, True, False]), clip=0.5)
    assert loss.item() == pytest.approx(0.5 * (0.5 * 1.0 + 0.5 * 4.0))
    assert torch.autograd.grad(loss, values)[0].tolist() == pytest.approx([0.5, 1.0, 0.0])
    found = {key: value.item() for key, value in metrics.items()}
    assert found == {"value_loss": 1.25, "value_mse": 5.0, "value_clip_fraction": 0.0, "valued_tokens": 2.0}


def test_value_loss_has_no_gradient_beyond_the_clip() -> None:
    """The value moved from 3 to its return 1; the clip of 0.5 counts it as 2.5."""
    values, old, one = torch.tensor([1.0], requires_grad=True), torch.tensor([3.0]), torch.ones(1)
    loss, metrics = value_loss(values, old, one, one, one.bool(), clip=0.5)
    assert loss.item() == pytest.approx(0.5 * 1.5**2)
    assert metrics["value_clip_fraction"].item() == 1
    assert torch.autograd.grad(loss, values)[0].item() == 0.0
    loss, metrics = value_loss(values, old, 0 * one, one, one.bool(), clip=0.0)
    assert torch.autograd.grad(loss, values)[0].item() == 1.0
    assert metrics["value_clip_fraction"].item() == 0


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_value_loss_gradient_matches_finite_differences(clip: float) -> None:
    generator = torch.Generator().manual_seed(1)
    values, old, returns, weights = torch.randn(4, 3, 7, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 7, generator=generator) < 0.7

    def loss_at(x: Tensor) -> Tensor:
        return value_loss(x, old, returns, weights.abs(), mask, clip)[0]

    values.requires_grad_()
    assert torch.autograd.gradcheck(loss_at, (values,), eps=1e-7)
    (grad,) = torch.autograd.grad(loss_at(values), values)
    assert not grad[~mask].any()


def test_overlong_fraction_matches_hand_computed_values() -> None:
    lengths = torch.tensor([10, 80, 90, 100, 120])
    assert overlong_fraction(lengths, max_tokens=100, buffer_fraction=0.2).tolist() == pytest.approx([0, 0, 0.5, 1, 1])
    assert overlong_fraction(lengths, max_tokens=100, buffer_fraction=1.0).tolist() == pytest.approx(
        [0.1, 0.8, 0.9, 1, 1]
    )
    assert not overlong_fraction(lengths, max_tokens=100, buffer_fraction=0.0).any()
