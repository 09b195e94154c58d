"""Advantages of sampled tokens, computed from one reward per episode.

All means and normalizations are part of the advantages and token weights, so each loss is a plain sum (see `losses`).
Shapes: B is the number of rows, T the number of tokens. An episode has one row or several: its token sequences.

    GRPO         grpo, sequence_mean                      Shao et al. 2024, arXiv:2402.03300
    Dr. GRPO     group_mean, seq_mean_token_sum_norm      Liu et al. 2025, arXiv:2503.20783
    DAPO         grpo, token_mean                         Yu et al. 2025, arXiv:2503.14476
    RLOO         rloo, seq_mean_token_sum_norm            Ahmadian et al. 2024, arXiv:2402.14740
    REINFORCE++  reinforce_pp, token_mean                 Hu et al. 2025, arXiv:2501.03262
    RFT          success_indicator, token_mean, loss nll  Yuan et al. 2023, arXiv:2308.01825
    GKD          zero, a KL penalty against a teacher     Agarwal et al. 2023, arXiv:2306.13649

The middle column gives `algorithm.advantage_estimator` and `algorithm.loss_aggregation`. PPO's advantages use a critic:
see `critic`.
"""

import torch
from torch import Tensor

from understudy.algorithms.config import AdvantageEstimator, KLEstimator, LossAggregation
from understudy.algorithms.critic import gae_advantages, terminal_rewards


def episode_advantages(estimator: AdvantageEstimator, rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Return one advantage per episode [E] from `rewards` [E] and `group_ids` [E].

    Raise ValueError for the estimators `gae` and `turn`, which give one advantage per token.
    """
    if estimator in ("gae", "turn"):
        raise ValueError(
            f"advantage_estimator {estimator!r} gives one advantage per token, not per episode: "
            "call gae_advantages or turn_advantages"
        )
    if estimator == "rloo":
        return rloo_advantages(rewards, group_ids)
    if estimator == "reinforce_pp":
        return reinforce_pp_advantages(rewards, group_ids)
    if estimator == "success_indicator":
        return (rewards >= 1.0).to(rewards.dtype)
    if estimator == "zero":
        return torch.zeros_like(rewards)
    return group_advantages(rewards, group_ids, scale_by_std=estimator == "grpo")


def group_advantages(rewards: Tensor, group_ids: Tensor, scale_by_std: bool) -> Tensor:
    """Return each reward minus its group's mean [B], divided by the group's standard deviation if `scale_by_std`.

    The standard deviation is the sample's (n - 1), as in TRL; the GRPO paper does not specify it. Advantages are 0 in a
    zero-variance group and in a group of one episode.
    """
    index, count = _group_index(group_ids)
    centred = rewards - _group_sum(rewards, index, count)[index] / count[index]
    centred = torch.where(has_group_variance(rewards, group_ids), centred, 0.0)
    if not scale_by_std:
        return centred
    variance = _group_sum(centred**2, index, count) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt()[index] + 1e-6)


def rloo_advantages(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Return each reward minus the mean reward of the other episodes in its group [B] (leave-one-out).

    Advantages are 0 in a zero-variance group and in a group of one episode.
    """
    index, count = _group_index(group_ids)
    others = (_group_sum(rewards, index, count)[index] - rewards) / (count[index] - 1).clamp(min=1)
    return torch.where(has_group_variance(rewards, group_ids), rewards - others, 0.0)


def has_group_variance(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Return for each episode whether the rewards in its group differ, as bool [B].

    This compares the minimum with the maximum, because rounding can make the mean of equal rewards differ from them.
    """
    index, count = _group_index(group_ids)
    zeros = rewards.new_zeros(len(count))
    minimum = zeros.scatter_reduce(0, index, rewards, "amin", include_self=False)
    maximum = zeros.scatter_reduce(0, index, rewards, "amax", include_self=False)
    return (minimum < maximum)[index]


def reinforce_pp_advantages(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Return each reward minus its group's mean, divided by the standard deviation over the batch [B].

    This is REINFORCE++-baseline. One scale for the whole batch gives groups with nearly equal rewards small advantages;
    `group_advantages` with `scale_by_std` enlarges them. Advantages are 0 if every group has zero variance.
    """
    centred = group_advantages(rewards, group_ids, scale_by_std=False)
    return centred / (centred.std(correction=1 if len(centred) > 1 else 0) + 1e-6)


def turn_advantages(
    rewards: Tensor, anchor_states: Tensor, mask: Tensor, gae_lambda: float, episode_ids: Tensor | None = None
) -> Tensor:
    """Return turn-level advantages [B, T] from `rewards` [B], `anchor_states` [B, T] and `mask` [B, T].

    `anchor_states` holds, for each token, the number of the state in which its reply started. The value of a state is
    the mean reward of the episodes that visited it. Advantages are GAE over replies with these values. With
    `gae_lambda` 1 an advantage is the reward minus the state's value, the step advantage of GiGPO (Feng et al. 2025,
    arXiv:2505.10978); it is 0 in a state that only one episode visited. With `gae_lambda` 0 the advantages of an
    episode's replies sum to its reward minus the group's mean. Each row of an episode with several gets the reward.
    """
    values = anchor_state_values(rewards, anchor_states, episode_ids)
    return gae_advantages(terminal_rewards(rewards, mask), values, mask, 1.0, gae_lambda, turn_level=True)


def anchor_state_values(rewards: Tensor, anchor_states: Tensor, episode_ids: Tensor | None = None) -> Tensor:
    """Return the mean reward of the episodes that visited each token's anchor state [B, T].

    An episode counts once per state. The value is 0 where `anchor_states` is -1.
    """
    num_states = int(anchor_states.max()) + 1
    if not num_states:
        return torch.zeros_like(anchor_states, dtype=rewards.dtype)
    rows, columns = (anchor_states >= 0).nonzero(as_tuple=True)
    first = torch.arange(len(rewards)) if episode_ids is None else _first_rows(episode_ids)
    visits = torch.unique(first[rows] * num_states + anchor_states[rows, columns])  # one number per (episode, state)
    episodes = visits // num_states
    states = visits % num_states
    rewards_and_ones = torch.stack([rewards[episodes], torch.ones_like(rewards[episodes])])
    zeros = torch.zeros_like(rewards_and_ones[:, :1]).repeat(1, num_states)
    sums, counts = zeros.index_add(1, states, rewards_and_ones)
    means = sums / counts
    return torch.where(anchor_states >= 0, means[anchor_states.clamp(min=0)], 0.0)


def token_weights(
    mask: Tensor,
    aggregation: LossAggregation,
    constant: float = 1.0,
    num_episodes: float | None = None,
    episode_ids: Tensor | None = None,
) -> Tensor:
    """Return the weight of each sampled token in the loss [B, T]; 0 where `mask` [B, T] is False.

    `token_mean` gives all tokens of the batch equal weight; the weights sum to 1. `sequence_mean` gives all episodes
    equal weight. `seq_mean_token_sum_norm` gives every token the weight 1 / (num_episodes * constant), independent of
    lengths. `episode_ids` [B] numbers the episode of each row; by default every row is its own. `num_episodes` is the
    number of these by default. It is larger if episodes without an advantage were left out of `mask`.
    """
    weights = mask.float()
    if aggregation == "token_mean":
        return weights / weights.sum().clamp(min=1)
    index, count = _group_index(torch.arange(len(mask)) if episode_ids is None else episode_ids)
    if aggregation == "sequence_mean":
        lengths = _group_sum(weights.sum(1), index, count)[index]
        return weights / lengths[:, None].clamp(min=1) / len(count)
    return weights / ((len(count) if num_episodes is None else num_episodes) * constant)


def apply_kl_penalty(
    advantages: Tensor,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor,
    kl_coef: float,
    estimator: KLEstimator = "k1",
) -> Tensor:
    """Return `advantages` [B, T] minus `kl_coef` times a KL penalty against a reference policy.

    Multiply by `token_weights` afterwards. `logprobs` and `ref_logprobs` are [B, T] and carry no gradient. On policy,
    this penalty has the same gradient as a KL term in the loss:

    - `k1` and `k2`: the penalty is the log ratio, log(policy / reference). Its gradient is that of KL(policy ||
      reference). This is `k1` in the reward, or `k2` in the loss; `k1` in the loss would have zero expected gradient.
    - `k3`: the penalty is 1 - reference / policy. Its gradient is that of `k3` in the loss, as in GRPO, and of
      KL(reference || policy). It is bounded where the policy's probability is above the reference's.

    See Schulman 2020, joschu.net/blog/kl-approx, and Tang & Munos 2025, arXiv:2506.09477.
    """
    log_ratio = torch.where(mask, logprobs - ref_logprobs, 0.0)
    penalty = 1 - (-log_ratio).exp() if estimator == "k3" else log_ratio
    return advantages - kl_coef * penalty


def add_entropy_bonus(advantages: Tensor, logprobs: Tensor, mask: Tensor, entropy_coef: float) -> Tensor:
    """Return `advantages` [B, T] minus `entropy_coef` times the log-probabilities [B, T] of the sampled tokens.

    Multiply by `token_weights` afterwards. On policy, the expected gradient is that of PPO's entropy bonus (Schulman et
    al. 2017, arXiv:1707.06347, eq. 9; `entropy_coeff` in verl), whose gradient is the mean of -log p * grad(log p)
    over the sampled token. verl sums over all tokens instead of sampling one.
    """
    return advantages - entropy_coef * torch.where(mask, logprobs, 0.0)


def tis_weights(trainer_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Return truncated importance weights [B, T]: the trainer's probability over the sampler's, at most `cap`.

    The weights correct for differences between the sampler's and the trainer's probabilities. Multiply the advantages
    by them, and use the trainer's log-probabilities as the old ones. Weights are 0 where `mask` is False. See Ionides
    2008, and Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    """
    return torch.where(mask, trainer_logprobs - sampler_logprobs, 0.0).exp().clamp(max=cap) * mask


def _first_rows(episode_ids: Tensor) -> Tensor:
    """Return the index of the first row of each row's episode [B]."""
    return (episode_ids[:, None] == episode_ids).int().argmax(1)


def _group_index(group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index of each episode's group [B] and the size of each group [groups]."""
    _, index, count = torch.unique(group_ids, return_inverse=True, return_counts=True)
    return index, count


def _group_sum(values: Tensor, index: Tensor, count: Tensor) -> Tensor:
    """Return the sum of `values` [B] in each group [groups]."""
    return torch.zeros(len(count), dtype=values.dtype, device=values.device).index_add_(0, index, values)
