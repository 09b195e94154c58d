"""Tests of the advantage estimators, the token weights, the KL penalty and truncated importance sampling."""

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from understudy.algorithms.advantages import (
    add_entropy_bonus,
    apply_kl_penalty,
    episode_advantages,
    group_advantages,
    reinforce_pp_advantages,
    rloo_advantages,
    tis_weights,
    token_weights,
)
from understudy.algorithms.losses import ppo_loss

Rewards = list[tuple[int, float]]
KINDS = ("group_mean", "grpo", "rloo", "reinforce_pp")
AGGREGATIONS = ("token_mean", "sequence_mean", "seq_mean_token_sum_norm")
# Groups 7 and 3 are interleaved; group 5 has one episode.
REWARDS = torch.tensor([1.0, 0.0, 0.0, 2.0, 4.0, 0.0])
GROUP = torch.tensor([7, 3, 7, 7, 5, 3])
MASK = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 0], [0, 1, 1, 1]]).bool()

hypothesis_settings = settings(deadline=None, derandomize=True)
rewards = st.lists(st.tuples(st.integers(0, 3), st.floats(-1e3, 1e3, width=32)), min_size=1, max_size=12)


def test_group_advantages_match_hand_computed_values() -> None:
    # Group 7: rewards 1, 0, 2, mean 1, sample variance (0 + 1 + 1) / 2 = 1.
    assert group_advantages(REWARDS, GROUP, scale_by_std=False).tolist() == [0.0, 0.0, -1.0, 1.0, 0.0, 0.0]
    twice = group_advantages(2 * REWARDS, GROUP, scale_by_std=True)
    assert twice.tolist() == pytest.approx([0.0, 0.0, -1.0, 1.0, 0.0, 0.0], abs=1e-5)
    assert group_advantages(
        torch.tensor([0.0, 1.0, 1.0, 1.0]), torch.zeros(4), scale_by_std=True
    ).tolist() == pytest.approx(
        [-1.5, 0.5, 0.5, 0.5],
        abs=1e-5,  # mean 3/4, variance (9 + 1 + 1 + 1) / 16 / 3 = 1/4
    )


def test_rloo_advantages_match_hand_computed_values() -> None:
    # Group 7: 1 - (0 + 2) / 2, 0 - (1 + 2) / 2, 2 - (1 + 0) / 2; an episode alone in its group gets 0.
    assert rloo_advantages(REWARDS, GROUP).tolist() == [0.0, 0.0, -1.5, 1.5, 0.0, 0.0]


@pytest.mark.parametrize("kind", KINDS)
def test_advantages_are_zero_for_equal_rewards_and_groups_of_one(kind: str) -> None:
    found = episode_advantages(kind, torch.tensor([0.3, 0.3, 0.3, 5.0]), torch.tensor([1, 1, 1, 2]))
    assert found.tolist() == [0.0] * 4, "whatever the mean of 0.3 is rounded to"
    assert episode_advantages(kind, torch.tensor([1.0, 1.0, 5.0]), torch.tensor([1, 1, 2])).tolist() == [0.0] * 3


@hypothesis_settings
@given(rewards, st.randoms(use_true_random=False))
@pytest.mark.parametrize("kind", KINDS)
def test_advantages_sum_to_zero_per_group_in_any_order(kind: str, drawn: Rewards, random: Random) -> None:
    group = torch.tensor([g for g, _ in drawn])
    reward = torch.tensor([r for _, r in drawn], dtype=torch.float64)
    found = episode_advantages(kind, reward, group)
    assert found.isfinite().all()
    for number in group.unique():
        scale = 1 + float(reward.abs().max()) * (1e6 if kind in ("grpo", "reinforce_pp") else 1)
        assert abs(float(found[group == number].sum())) < 1e-9 * scale
    order = torch.tensor(random.sample(range(len(drawn)), len(drawn)))
    torch.testing.assert_close(episode_advantages(kind, reward[order], 9 - group[order]), found[order])


@hypothesis_settings
@given(rewards)
def test_advantages_rank_episodes_of_a_group_by_reward(drawn: Rewards) -> None:
    group = torch.tensor([g for g, _ in drawn])
    reward = torch.tensor([r for _, r in drawn], dtype=torch.float64)
    for kind in KINDS:
        found = episode_advantages(kind, reward, group)
        better = (reward[:, None] > reward[None, :]) & (group[:, None] == group[None, :])
        assert (found[:, None] >= found[None, :])[better].all()


def test_token_weights_match_hand_computed_values() -> None:
    assert token_weights(MASK, "token_mean")[MASK].tolist() == pytest.approx([1 / 6] * 6)
    assert token_weights(MASK, "sequence_mean")[MASK].tolist() == pytest.approx(
        [1 / 6, 1 / 6, 1 / 3, 1 / 9, 1 / 9, 1 / 9]
    )
    assert token_weights(MASK, "seq_mean_token_sum_norm", 10.0)[MASK].tolist() == pytest.approx([1 / 30] * 6)
    for aggregation in AGGREGATIONS:
        assert token_weights(MASK, aggregation)[~MASK].tolist() == [0.0] * 6


def test_token_weights_are_zero_for_an_empty_mask() -> None:
    empty = torch.zeros(2, 3, dtype=torch.bool)
    for aggregation in AGGREGATIONS:
        assert token_weights(empty, aggregation).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_token_weights_ignore_padding(aggregation: str) -> None:
    padded = torch.nn.functional.pad(MASK, (0, 5))
    assert torch.equal(token_weights(padded, aggregation)[:, :4], token_weights(MASK, aggregation))


def action_logprobs(logits: Tensor, actions: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, actions[..., None])[..., 0]


def test_kl_penalty_matches_hand_computed_values() -> None:
    mask = torch.tensor([[False, True, True]])
    found = apply_kl_penalty(
        torch.ones(1, 3), torch.tensor([[9.0, -1.0, -2.0]]), torch.tensor([[0.0, -3.0, -1.5]]), mask, 0.5
    )
    assert found.tolist() == [[1.0, 0.0, 1.25]]


def test_kl_penalty_has_the_gradient_of_the_expected_kl() -> None:
    """Sums over all actions by their probability, the expectation that sampled tokens estimate."""
    torch.manual_seed(0)
    logits = torch.randn(1, 5, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(1, 5, dtype=torch.float64).log_softmax(-1)
    coefficient, actions, mask = 0.3, torch.arange(5)[None], torch.ones(1, 5, dtype=torch.bool)
    logprobs = action_logprobs(logits.expand(5, -1)[None], actions)
    old = logprobs.detach()
    shaped = apply_kl_penalty(torch.zeros(1, 5, dtype=torch.float64), old, reference, mask, coefficient)
    loss, _ = ppo_loss(logprobs, old, shaped * old.exp(), mask, 0.2, 0.2)
    (found,) = torch.autograd.grad(loss, logits)
    kl = (logits.softmax(-1) * (logits.log_softmax(-1) - reference)).sum()
    (expected,) = torch.autograd.grad(coefficient * kl, logits)
    torch.testing.assert_close(found, expected)


def test_entropy_bonus_matches_hand_computed_values_and_the_gradient_of_the_entropy() -> None:
    mask = torch.tensor([[False, True, True]])
    found = add_entropy_bonus(torch.ones(1, 3), torch.tensor([[9.0, -1.0, -2.0]]), mask, 0.5)
    assert found.tolist() == [[1.0, 1.5, 2.0]]
    logits = torch.tensor([[0.3, -1.0, 2.0, 0.1]], dtype=torch.float64, requires_grad=True)
    logprobs = action_logprobs(logits.expand(4, -1)[None], torch.arange(4)[None])
    old, every = logprobs.detach(), torch.ones(1, 4, dtype=torch.bool)
    bonus = add_entropy_bonus(torch.zeros(1, 4, dtype=torch.float64), old, every, 0.3)
    loss, _ = ppo_loss(logprobs, old, bonus * old.exp(), every, 0.2, 0.2)  # each action by its probability
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum()
    torch.testing.assert_close(torch.autograd.grad(loss, logits), torch.autograd.grad(-0.3 * entropy, logits))


def test_kl_penalty_has_the_reinforce_gradient_on_sampled_tokens() -> None:
    """The k1 estimate of each sampled token is a penalty on that token's reward."""
    torch.manual_seed(0)
    logits = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    actions, mask = torch.randint(0, 6, (2, 4)), torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]]).bool()
    logprobs = action_logprobs(logits, actions)
    old, reference = logprobs.detach(), torch.randn(2, 4, dtype=torch.float64) - 2
    base = torch.randn(2, 4, dtype=torch.float64) * mask
    with_kl, _ = ppo_loss(logprobs, old, apply_kl_penalty(base, old, reference, mask, 0.7), mask, 0.2, 0.2)
    without, _ = ppo_loss(logprobs, old, base, mask, 0.2, 0.2)
    penalty = (0.7 * (old - reference) * logprobs)[mask].sum()
    found, expected = (
        torch.autograd.grad(with_kl - without, logits, retain_graph=True),
        torch.autograd.grad(penalty, logits),
    )
    torch.testing.assert_close(found, expected)


def test_k3_penalty_equals_the_gradient_of_k3_as_a_loss() -> None:
    torch.manual_seed(0)
    logprobs = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    reference, mask = torch.randn(2, 4, dtype=torch.float64), torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]]).bool()
    log_ratio = reference - logprobs
    (expected,) = torch.autograd.grad((0.7 * (log_ratio.exp() - 1 - log_ratio))[mask].sum(), logprobs)
    shaped = apply_kl_penalty(torch.zeros(2, 4), logprobs.detach(), reference, mask, 0.7, "k3")
    torch.testing.assert_close(-shaped, expected)


def test_k1_and_k2_penalties_equal_the_gradient_of_k2_as_a_loss() -> None:
    torch.manual_seed(0)
    logprobs = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    reference, mask = torch.randn(2, 4, dtype=torch.float64), torch.ones(2, 4, dtype=torch.bool)
    (expected,) = torch.autograd.grad(0.7 * ((logprobs - reference) ** 2 / 2).sum(), logprobs)
    for kind in ("k1", "k2"):
        torch.testing.assert_close(
            -apply_kl_penalty(torch.zeros(2, 4), logprobs.detach(), reference, mask, 0.7, kind), expected
        )


def test_reinforce_pp_advantages_match_hand_computed_values() -> None:
    # Centred: 0, 0, -1, 1, 0, 0; their sample variance is 2 / 5.
    found = reinforce_pp_advantages(REWARDS, GROUP)
    assert found.tolist() == pytest.approx([0.0, 0.0, -(2.5**0.5), 2.5**0.5, 0.0, 0.0], abs=1e-4)
    assert reinforce_pp_advantages(torch.tensor([3.0]), torch.tensor([0])).tolist() == [0.0]


def test_tis_weights_are_capped_probability_ratios() -> None:
    mask = torch.tensor([[True, True, True, False]])
    trainer, sampler = torch.tensor([[0.5, 0.1, 0.9, 0.3]]).log(), torch.tensor([[0.25, 0.2, 0.1, float("nan")]]).log()
    assert tis_weights(trainer, sampler, mask, cap=3.0)[0].tolist() == pytest.approx([2.0, 0.5, 3.0, 0.0])
