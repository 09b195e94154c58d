"""Advantages: worked by hand, for any rewards, and the KL penalty against the gradient that it stands for."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from understudy.algorithms.advantages import (  # noqa: E402
    batch_advantages,
    episode_advantages,
    group_advantages,
    importance,
    kl_shaped,
    leave_one_out,
    token_weights,
)
from understudy.algorithms.losses import policy_loss  # noqa: E402

Rewards = list[tuple[int, float]]
KINDS = ("group", "group_std", "leave_one_out", "batch_std")
# Groups 7 and 3, interleaved; group 5 stands alone.
REWARDS = torch.tensor([1.0, 0.0, 0.0, 2.0, 4.0, 0.0])
GROUP = torch.tensor([7, 3, 7, 7, 5, 3])
MASK = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 0], [0, 1, 1, 1]]).bool()

generated = settings(deadline=None, derandomize=True)
rewards = st.lists(st.tuples(st.integers(0, 3), st.floats(-1e3, 1e3, width=32)), min_size=1, max_size=12)


def test_group_advantages_by_hand() -> None:
    # Group 7: rewards 1, 0, 2, mean 1, sample variance (0 + 1 + 1) / 2 = 1.
    assert group_advantages(REWARDS, GROUP, scale=False).tolist() == [0.0, 0.0, -1.0, 1.0, 0.0, 0.0]
    twice = group_advantages(2 * REWARDS, GROUP, scale=True)
    assert twice.tolist() == pytest.approx([0.0, 0.0, -1.0, 1.0, 0.0, 0.0], abs=1e-5)
    assert group_advantages(torch.tensor([0.0, 1.0, 1.0, 1.0]), torch.zeros(4), scale=True).tolist() == pytest.approx(
        [-1.5, 0.5, 0.5, 0.5],
        abs=1e-5,  # mean 3/4, variance (9 + 1 + 1 + 1) / 16 / 3 = 1/4
    )


def test_leave_one_out_by_hand() -> None:
    # Group 7: 1 - (0 + 2) / 2, 0 - (1 + 2) / 2, 2 - (1 + 0) / 2; who is alone has nobody to compare with.
    assert leave_one_out(REWARDS, GROUP).tolist() == [0.0, 0.0, -1.5, 1.5, 0.0, 0.0]


@pytest.mark.parametrize("kind", KINDS)
def test_equal_rewards_and_lone_episodes_teach_nothing(kind: str) -> None:
    found = episode_advantages(kind, torch.tensor([0.3, 0.3, 0.3, 5.0]), torch.tensor([1, 1, 1, 2]))
    assert found.tolist() == [0.0] * 4, "whatever the mean of 0.3 is rounded to"
    assert episode_advantages(kind, torch.tensor([1.0, 1.0, 5.0]), torch.tensor([1, 1, 2])).tolist() == [0.0] * 3


@generated
@given(rewards, st.randoms(use_true_random=False))
@pytest.mark.parametrize("kind", KINDS)
def test_a_groups_advantages_sum_to_nothing_whatever_the_order(kind: str, drawn: Rewards, random: Random) -> None:
    group = torch.tensor([g for g, _ in drawn])
    reward = torch.tensor([r for _, r in drawn], dtype=torch.float64)
    found = episode_advantages(kind, reward, group)
    assert found.isfinite().all()
    for number in group.unique():
        scale = 1 + float(reward.abs().max()) * (1e6 if kind.endswith("std") else 1)
        assert abs(float(found[group == number].sum())) < 1e-9 * scale
    order = torch.tensor(random.sample(range(len(drawn)), len(drawn)))
    torch.testing.assert_close(episode_advantages(kind, reward[order], 9 - group[order]), found[order])


@generated
@given(rewards)
def test_estimators_order_episodes_as_rewards_do(drawn: Rewards) -> None:
    group = torch.tensor([g for g, _ in drawn])
    reward = torch.tensor([r for _, r in drawn], dtype=torch.float64)
    for kind in KINDS:
        found = episode_advantages(kind, reward, group)
        better = (reward[:, None] > reward[None, :]) & (group[:, None] == group[None, :])
        assert (found[:, None] >= found[None, :])[better].all()


def test_token_weights_by_hand() -> None:
    assert token_weights(MASK, "token")[MASK].tolist() == pytest.approx([1 / 6] * 6)
    assert token_weights(MASK, "sequence")[MASK].tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 9, 1 / 9, 1 / 9])
    assert token_weights(MASK, "constant", 10.0)[MASK].tolist() == pytest.approx([1 / 30] * 6)
    for per in ("token", "sequence", "constant"):
        assert token_weights(MASK, per)[~MASK].tolist() == [0.0] * 6


def test_weights_of_nothing_are_nothing() -> None:
    empty = torch.zeros(2, 3, dtype=torch.bool)
    for per in ("token", "sequence", "constant"):
        assert token_weights(empty, per).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("per", ["token", "sequence", "constant"])
def test_padding_changes_no_weight(per: str) -> None:
    padded = torch.nn.functional.pad(MASK, (0, 5))
    assert torch.equal(token_weights(padded, per)[:, :4], token_weights(MASK, per))


# ---- the KL penalty ----


def policy(logits: Tensor, actions: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, actions[..., None])[..., 0]


def test_kl_shaped_by_hand() -> None:
    mask = torch.tensor([[False, True, True]])
    found = kl_shaped(torch.ones(1, 3), torch.tensor([[9.0, -1.0, -2.0]]), torch.tensor([[0.0, -3.0, -1.5]]), mask, 0.5)
    assert found.tolist() == [[1.0, 0.0, 1.25]]


def test_kl_folded_in_has_the_gradient_of_the_kl() -> None:
    """Over all actions, weighed by their probability: the expectation that sampled tokens estimate."""
    torch.manual_seed(0)
    logits = torch.randn(1, 5, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(1, 5, dtype=torch.float64).log_softmax(-1)
    coefficient, actions, mask = 0.3, torch.arange(5)[None], torch.ones(1, 5, dtype=torch.bool)
    logprobs = policy(logits.expand(5, -1)[None], actions)
    old = logprobs.detach()
    shaped = kl_shaped(torch.zeros(1, 5, dtype=torch.float64), old, reference, mask, coefficient)
    loss, _ = policy_loss(logprobs, old, shaped * old.exp(), mask, 0.2, 0.2)
    (found,) = torch.autograd.grad(loss, logits)
    kl = (logits.softmax(-1) * (logits.log_softmax(-1) - reference)).sum()
    (expected,) = torch.autograd.grad(coefficient * kl, logits)
    torch.testing.assert_close(found, expected)


def test_kl_folded_in_is_the_score_function_gradient_of_minus_the_log_ratio() -> None:
    """On the tokens that were sampled: each one's k1 as a penalty of its own reward (REINFORCE)."""
    torch.manual_seed(0)
    logits = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    actions, mask = torch.randint(0, 6, (2, 4)), torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]]).bool()
    logprobs = policy(logits, actions)
    old, reference = logprobs.detach(), torch.randn(2, 4, dtype=torch.float64) - 2
    base = torch.randn(2, 4, dtype=torch.float64) * mask
    with_kl, _ = policy_loss(logprobs, old, kl_shaped(base, old, reference, mask, 0.7), mask, 0.2, 0.2)
    without, _ = policy_loss(logprobs, old, base, mask, 0.2, 0.2)
    penalty = (0.7 * (old - reference) * logprobs)[mask].sum()
    found, expected = (
        torch.autograd.grad(with_kl - without, logits, retain_graph=True),
        torch.autograd.grad(penalty, logits),
    )
    torch.testing.assert_close(found, expected)


def test_k3_as_a_loss_has_the_gradient_of_its_advantage() -> None:
    torch.manual_seed(0)
    logprobs = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    reference, mask = torch.randn(2, 4, dtype=torch.float64), torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]]).bool()
    log_ratio = reference - logprobs
    (expected,) = torch.autograd.grad((0.7 * (log_ratio.exp() - 1 - log_ratio))[mask].sum(), logprobs)
    shaped = kl_shaped(torch.zeros(2, 4), logprobs.detach(), reference, mask, 0.7, "k3")
    torch.testing.assert_close(-shaped, expected)


def test_k2_as_a_loss_has_the_gradient_of_k1_as_a_reward() -> None:
    torch.manual_seed(0)
    logprobs = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    reference, mask = torch.randn(2, 4, dtype=torch.float64), torch.ones(2, 4, dtype=torch.bool)
    (expected,) = torch.autograd.grad(0.7 * ((logprobs - reference) ** 2 / 2).sum(), logprobs)
    for kind in ("k1", "k2"):
        torch.testing.assert_close(
            -kl_shaped(torch.zeros(2, 4), logprobs.detach(), reference, mask, 0.7, kind), expected
        )


# ---- one scale for the batch, the sampler's error ----


def test_batch_advantages_by_hand() -> None:
    # Centred: 0, 0, -1, 1, 0, 0; their sample variance is 2 / 5.
    found = batch_advantages(REWARDS, GROUP)
    assert found.tolist() == pytest.approx([0.0, 0.0, -(2.5**0.5), 2.5**0.5, 0.0, 0.0], abs=1e-4)
    assert batch_advantages(torch.tensor([3.0]), torch.tensor([0])).tolist() == [0.0]


def test_importance_makes_up_for_the_sampler_up_to_its_cap() -> None:
    mask = torch.tensor([[True, True, True, False]])
    trainer, sampler = torch.tensor([[0.5, 0.1, 0.9, 0.3]]).log(), torch.tensor([[0.25, 0.2, 0.1, float("nan")]]).log()
    assert importance(trainer, sampler, mask, cap=3.0)[0].tolist() == pytest.approx([2.0, 0.5, 3.0, 0.0])
