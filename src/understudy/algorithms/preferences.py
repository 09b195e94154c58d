"""Learning from preferences: what each episode weighs in a negative log-likelihood.

The gradient of these losses is a sum over episodes, each times a factor that depends on the log-probabilities of whole
episodes. The factor is folded into weights: `nll` with these weights [B] on the tokens of each episode has, for the one
optimizer step that follows `Engine.forward`, exactly the loss's gradient, and the batch may be split anywhere.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def margins(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """log policy(episode) - log reference(episode) [B], summed over the sampled tokens; all are [B, T]."""
    return torch.where(mask, logprobs - reference, 0.0).sum(1)


def dpo_weights(margin: Tensor, pair: Tensor, won: Tensor, beta: float) -> tuple[Tensor, dict[str, float]]:
    """Weights [B] of direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290, eq. 7), and its metrics.

    `pair` [B] numbers the pairs, each of one episode that `won` [B] and one that lost. The mean is over the pairs.
    """
    numbers, index = torch.unique(pair, return_inverse=True)
    sign = torch.where(won, 1.0, -1.0).to(margin)
    if not torch.equal(torch.bincount(index), torch.full_like(numbers, 2)) or _sum(sign, index).any():
        raise ValueError("a pair is one episode that won and one that lost")
    apart = beta * _sum(sign * margin, index)
    weights = beta * torch.sigmoid(-apart)[index] * sign / len(numbers)
    return weights, {"loss": float(-logsigmoid(apart).mean()), "preferred": float((apart > 0).float().mean())}


def kto_weights(
    margin: Tensor, wanted: Tensor, beta: float, kl: float = 0.0, unwanted_weight: float = 1.0
) -> tuple[Tensor, dict[str, float]]:
    """Weights [B] of Kahneman-Tversky optimization (Ethayarajh et al. 2024, arXiv:2402.01306), and its metrics.

    Episodes need no partner: each is `wanted` [B] or not. `kl` is the reference point, an estimate of
    KL(policy || reference) that no gradient flows through, 0 where it is below; unwanted episodes weigh
    `unwanted_weight`.
    """
    sign = torch.where(wanted, 1.0, -1.0).to(margin)
    scale = torch.where(wanted, 1.0, unwanted_weight).to(margin)
    value = torch.sigmoid(sign * beta * (margin - max(0.0, kl)))
    weights = scale * sign * beta * value * (1 - value) / len(margin)
    return weights, {"loss": float((scale * (1 - value)).mean()), "kl": max(0.0, kl)}


def _sum(values: Tensor, index: Tensor) -> Tensor:
    """The sum of the values at each place."""
    return torch.zeros(int(index.max()) + 1, dtype=values.dtype, device=values.device).index_add(0, index, values)
