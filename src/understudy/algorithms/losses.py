"""Losses: sums over tokens, never means, so that splitting a batch cannot change a gradient.

All tensors have one shape; masked tokens contribute nothing, to the value or to the gradient. Metrics are sums too.
"""

import torch
from torch import Tensor

from understudy.algorithms.options import Loss


def policy_loss(
    logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate of PPO (Schulman et al. 2017, arXiv:1707.06347, eq. 7), negated and summed.

    At ratio 1 its gradient is the policy gradient, -advantages * grad(logprobs): a first step on policy is no fault.
    """
    log_ratio = torch.where(mask, logprobs - old, torch.zeros_like(logprobs))
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)[mask].sum()
    with torch.no_grad():
        metrics = {
            "clip_fraction": (clipped * advantages < ratio * advantages)[mask].sum(),
            "approx_kl": (ratio - 1 - log_ratio)[mask].sum(),
            "logprob_gap": log_ratio.abs()[mask].sum(),
        }
    return loss, metrics


def nll(logprobs: Tensor, weights: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Negative log-likelihood, each token times its weight, summed."""
    loss = -(logprobs * weights)[mask].sum()
    return loss, {"nll": -logprobs.detach()[mask].sum()}


def compute(
    loss: Loss, logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss that `loss` names."""
    if loss.kind == "nll":
        return nll(logprobs, advantages, mask)
    return policy_loss(logprobs, old, advantages, mask, loss.clip_low, loss.clip_high)
