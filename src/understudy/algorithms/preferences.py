"""Preference losses (DPO, KTO) as weights of episodes in a negative log-likelihood.

The gradient of these losses is a sum over episodes. Each episode's term has a factor that depends on the
log-probabilities of complete episodes, and the functions here return that factor as a weight [B]. `nll_loss` with these
weights on the episodes' tokens has exactly the gradient of the preference loss, for one optimizer step after
`compute_logprobs`. The batch may be split anywhere.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def sequence_log_ratios(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return log(policy / reference) of each episode [B], summed over its sampled tokens; the arguments are [B, T]."""
    return torch.where(mask, logprobs - ref_logprobs, 0.0).sum(1)


def dpo_weights(log_ratios: Tensor, pair_ids: Tensor, chosen: Tensor, beta: float) -> tuple[Tensor, dict[str, float]]:
    """Return the weights [B] of direct preference optimization, and its metrics as means over the pairs.

    `log_ratios` [B] comes from `sequence_log_ratios`, `pair_ids` [B] holds each episode's pair number, and `chosen` [B]
    is bool. Raise ValueError if a pair is not one chosen and one rejected episode. See Rafailov et al. 2023,
    arXiv:2305.18290, eq. 7.
    """
    numbers, index = torch.unique(pair_ids, return_inverse=True)
    sign = torch.where(chosen, 1.0, -1.0).to(log_ratios)
    if not torch.equal(torch.bincount(index), torch.full_like(numbers, 2)) or _sum(sign, index).any():
        raise ValueError("every pair in pair_ids must have one chosen episode and one rejected episode")
    margin = beta * _sum(sign * log_ratios, index)
    weights = beta * torch.sigmoid(-margin)[index] * sign / len(numbers)
    metrics = {
        "loss": float(-logsigmoid(margin).mean()),
        "preference_accuracy": float((margin > 0).float().mean()),
    }
    return weights, metrics


def kto_weights(
    log_ratios: Tensor, desirable: Tensor, beta: float, kl: float = 0.0, undesirable_weight: float = 1.0
) -> tuple[Tensor, dict[str, float]]:
    """Return the weights [B] of Kahneman-Tversky optimization (Ethayarajh et al. 2024, arXiv:2402.01306), and metrics.

    `log_ratios` [B] comes from `sequence_log_ratios`, and `desirable` [B] is bool; episodes are not paired. `kl` is the
    reference point: an estimate of KL(policy || reference) without gradient, and 0 if negative. Undesirable episodes
    have the weight `undesirable_weight`.
    """
    sign = torch.where(desirable, 1.0, -1.0).to(log_ratios)
    scale = torch.where(desirable, 1.0, undesirable_weight).to(log_ratios)
    value = torch.sigmoid(sign * beta * (log_ratios - max(0.0, kl)))
    weights = scale * sign * beta * value * (1 - value) / len(log_ratios)
    return weights, {"loss": float((scale * (1 - value)).mean()), "kl": max(0.0, kl)}


def _sum(values: Tensor, index: Tensor) -> Tensor:
    """Return the sum of `values` [B] for each index."""
    return torch.zeros(int(index.max()) + 1, dtype=values.dtype, device=values.device).index_add(0, index, values)
