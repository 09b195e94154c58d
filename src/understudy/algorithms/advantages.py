"""Advantages: what each sampled token is worth, from one reward per episode.

Every mean and normalization is folded in here, so that a loss is a plain sum (see `losses`). Shapes: B episodes, T
tokens.

    GRPO         group_advantages(scale=True), token_weights("sequence")     Shao et al. 2024, arXiv:2402.03300
    Dr. GRPO     group_advantages(scale=False), token_weights("constant")    Liu et al. 2025, arXiv:2503.20783
    DAPO         group_advantages(scale=True), token_weights("token")        Yu et al. 2025, arXiv:2503.14476
    RLOO         leave_one_out, token_weights("constant")                    Ahmadian et al. 2024, arXiv:2402.14740
    REINFORCE++  batch_advantages, token_weights("token")                    Hu et al. 2025, arXiv:2501.03262
    RFT          1 for a success and 0 else, of successes alone, loss nll    Yuan et al. 2023, arXiv:2308.01825
    GKD          0, and `kl_shaped` with coefficient 1 against a teacher     Agarwal et al. 2023, arXiv:2306.13649

PPO's come from a critic: see `critic`.
"""

import torch
from torch import Tensor

from understudy.algorithms.critic import at_the_end, gae
from understudy.algorithms.options import Advantage, Penalty, Per


def episode_advantages(kind: Advantage, rewards: Tensor, group: Tensor) -> Tensor:
    """The advantage [B] of each episode by the estimator of that name, of those that compare episodes."""
    if kind in ("gae", "turn"):
        raise ValueError(f"{kind} is no single number an episode: see critic.gae and turn_advantages")
    if kind == "leave_one_out":
        return leave_one_out(rewards, group)
    if kind == "batch_std":
        return batch_advantages(rewards, group)
    if kind == "success":
        return (rewards >= 1.0).to(rewards.dtype)
    if kind == "none":
        return torch.zeros_like(rewards)
    return group_advantages(rewards, group, scale=kind == "group_std")


def group_advantages(rewards: Tensor, group: Tensor, scale: bool) -> Tensor:
    """Reward minus the mean of its group, over the group's standard deviation where `scale`; all [B].

    The deviation is the sample's (n - 1), which the paper leaves open and TRL takes too. A group of equal rewards, or
    of one, has advantage 0.
    """
    index, count = _members(group)
    centred = rewards - _group_sum(rewards, index, count)[index] / count[index]
    centred = torch.where(differing(rewards, group), centred, 0.0)
    if not scale:
        return centred
    variance = _group_sum(centred**2, index, count) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt()[index] + 1e-6)


def leave_one_out(rewards: Tensor, group: Tensor) -> Tensor:
    """Reward minus the mean of the others in its group [B]; of equal rewards, or of one, a group has advantage 0."""
    index, count = _members(group)
    others = (_group_sum(rewards, index, count)[index] - rewards) / (count[index] - 1).clamp(min=1)
    return torch.where(differing(rewards, group), rewards - others, 0.0)


def differing(rewards: Tensor, group: Tensor) -> Tensor:
    """Whether the rewards [B] in an episode's group differ [B]; a mean of equal ones may do so by rounding."""
    index, count = _members(group)
    least, most = (
        rewards.new_zeros(len(count)).scatter_reduce(0, index, rewards, which, include_self=False)
        for which in ("amin", "amax")
    )
    return (least < most)[index]


def batch_advantages(rewards: Tensor, group: Tensor) -> Tensor:
    """Reward minus the mean of its group, over the deviation of that in the whole batch [B] (REINFORCE++-baseline).

    One scale for all: a group whose rewards hardly differ counts for little, which `group_advantages` with `scale`
    blows up. A batch without any difference has advantage 0.
    """
    centred = group_advantages(rewards, group, scale=False)
    return centred / (centred.std(correction=1 if len(centred) > 1 else 0) + 1e-6)


def turn_advantages(rewards: Tensor, situations: Tensor, mask: Tensor, lam: float) -> Tensor:
    """The advantage [B, T] of each reply, of rewards [B], where situations [B, T] tell in which one a reply was begun.

    What a situation is worth is the mean reward of the episodes that were in it, and advantages are GAE's over replies
    with these values. With `lam` 1 that is the reward minus this mean: the step advantage of GiGPO (Feng et al. 2025,
    arXiv:2505.10978), whose anchor states the situations are. A reply that no other episode could have made in its
    place has advantage 0 then, and replies with `lam` 0 add up to their episode's reward minus the group's mean.
    """
    values = situation_values(rewards, situations)
    return gae(at_the_end(rewards, mask), values, mask, 1.0, lam, turns=True)


def situation_values(rewards: Tensor, situations: Tensor) -> Tensor:
    """The mean reward of the episodes that were in a token's situation, each counted once; 0 where it has none."""
    count = int(situations.max()) + 1
    if not count:
        return torch.zeros_like(situations, dtype=rewards.dtype)
    rows, tokens = (situations >= 0).nonzero(as_tuple=True)
    been = torch.unique(rows * count + situations[rows, tokens])  # by whom and where, each pair once
    episodes, places = been // count, been % count
    earned = torch.stack([rewards[episodes], torch.ones_like(rewards[episodes])])
    sums, visits = torch.zeros_like(earned[:, :1]).repeat(1, count).index_add(1, places, earned)
    means = sums / visits
    return torch.where(situations >= 0, means[situations.clamp(min=0)], 0.0)


def token_weights(mask: Tensor, per: Per, constant: float = 1.0) -> Tensor:
    """What each sampled token of `mask` [B, T] weighs in the loss: its mean, [B, T].

    `token`: every token of the batch weighs the same. `sequence`: every episode does. `constant`: each token weighs
    1 / (B * constant), whatever the lengths.
    """
    weights = mask.float()
    if per == "token":
        return weights / weights.sum().clamp(min=1)
    if per == "sequence":
        return weights / weights.sum(1, keepdim=True).clamp(min=1) / len(weights)
    return weights / (len(weights) * constant)


def kl_shaped(
    advantages: Tensor, logprobs: Tensor, reference: Tensor, mask: Tensor, coefficient: float, kind: Penalty = "k1"
) -> Tensor:
    """Advantages [B, T] with a KL penalty against a reference policy folded in; take the mean afterwards.

    On policy, a penalty in the loss has the gradient of an advantage: of minus the log ratio for the estimator k2 as a
    loss, and for k1 as a reward, which is the gradient of KL(policy || reference); of reference / policy - 1 for k3 as
    a loss, GRPO's, which is that of the other direction's and is bounded where the policy has become likelier. (k1 as a
    loss would have no gradient on average: here `k1` is the reward.) See Schulman 2020, joschu.net/blog/kl-approx, and
    Tang & Munos 2025, arXiv:2506.09477. `logprobs` and `reference` are both [B, T] and without gradient.
    """
    log_ratio = torch.where(mask, logprobs - reference, 0.0)
    return advantages - coefficient * (1 - (-log_ratio).exp() if kind == "k3" else log_ratio)


def importance(trainer: Tensor, sampler: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Weights [B, T] that make up for a sampler whose probabilities are not the trainer's, never above `cap`.

    Truncated importance sampling (Ionides 2008; Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You
    Off-Policy RL Training"): multiply the advantages by them, and take the trainer's log-probabilities as the old ones.
    """
    return torch.where(mask, trainer - sampler, 0.0).exp().clamp(max=cap) * mask


def overlong_penalty(lengths: Tensor, limit: int, margin: float) -> Tensor:
    """What share of a penalty episodes of so many tokens pay [B]: none up to `limit * (1 - margin)`, all from `limit`.

    It grows linearly in between (Yu et al. 2025, arXiv:2503.14476, eq. 13). Without a margin none pays.
    """
    if not margin:
        return torch.zeros(lengths.shape)
    return ((lengths - limit * (1 - margin)) / (limit * margin)).clamp(0.0, 1.0)


def _members(group: Tensor) -> tuple[Tensor, Tensor]:
    """The place [B] of each episode's group, and the size of the group at each place."""
    _, index, count = torch.unique(group, return_inverse=True, return_counts=True)
    return index, count


def _group_sum(values: Tensor, index: Tensor, count: Tensor) -> Tensor:
    return torch.zeros(len(count), dtype=values.dtype, device=values.device).index_add_(0, index, values)
