"""Advantages: what each sampled token is worth, from one reward per episode.

Every mean and normalization is folded in here, so that a loss is a plain sum (see `losses`). Shapes: B episodes, T tokens.

    GRPO      group_advantages(scale=True) + per_token("sequence")     Shao et al. 2024, arXiv:2402.03300
    Dr. GRPO  group_advantages(scale=False) + per_token("constant")    Liu et al. 2025, arXiv:2503.20783
    DAPO      group_advantages(scale=True) + per_token("token")        Yu et al. 2025, arXiv:2503.14476
    RLOO      leave_one_out + per_token("constant")                    Ahmadian et al. 2024, arXiv:2402.14740
"""

from typing import Literal

import torch
from torch import Tensor

Per = Literal["token", "sequence", "constant"]


def group_advantages(rewards: Tensor, group: Tensor, scale: bool) -> Tensor:
    """Reward minus the mean of its group, over the group's standard deviation where `scale`; all [B].

    The deviation is the sample's (n - 1), as in GRPO; a group of equal rewards, or of one, has advantage 0.
    """
    _, index, count = torch.unique(group, return_inverse=True, return_counts=True)
    centred = rewards - _group_sum(rewards, index, count)[index] / count[index]
    if not scale:
        return centred
    variance = _group_sum(centred**2, index, count) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt()[index] + 1e-6)


def leave_one_out(rewards: Tensor, group: Tensor) -> Tensor:
    """Reward minus the mean of the others in its group [B]; a group of one has advantage 0."""
    _, index, count = torch.unique(group, return_inverse=True, return_counts=True)
    others = (_group_sum(rewards, index, count)[index] - rewards) / (count[index] - 1).clamp(min=1)
    return torch.where(count[index] > 1, rewards - others, torch.zeros_like(rewards))


def per_token(advantages: Tensor, mask: Tensor, per: Per, constant: float = 1.0) -> Tensor:
    """Spread episode advantages [B] over the sampled tokens of `mask` [B, T], with the loss's mean folded in: [B, T].

    `token`: every token of the batch weighs the same. `sequence`: every episode does. `constant`: each token weighs
    1 / (B * constant), whatever the lengths.
    """
    weights = mask.to(advantages.dtype)
    if per == "token":
        weights = weights / weights.sum().clamp(min=1)
    elif per == "sequence":
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1) / len(weights)
    else:
        weights = weights / (len(weights) * constant)
    return advantages[:, None] * weights


def kl_shaped(advantages: Tensor, logprobs: Tensor, reference: Tensor, mask: Tensor, coefficient: float) -> Tensor:
    """Advantages [B, T] with a KL penalty against a reference policy folded in, before any mean is.

    The gradient of KL(policy || reference), estimated on sampled tokens, is that of a per-token reward of minus the log
    ratio (k1); adding it here costs the loss nothing. `logprobs` and `reference` are both [B, T] and without gradient.
    """
    return advantages - coefficient * (logprobs - reference) * mask


def _group_sum(values: Tensor, index: Tensor, count: Tensor) -> Tensor:
    return torch.zeros(len(count), dtype=values.dtype, device=values.device).index_add_(0, index, values)
