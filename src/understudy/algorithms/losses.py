"""Losses: sums over tokens, never means, so that splitting a batch cannot change a gradient.

All tensors have one shape; masked tokens contribute nothing, to the value or to the gradient. Metrics are sums too. A
batch may be split between sequences anywhere; `gspo_loss` alone forbids to split one.
"""

import torch
from torch import Tensor

from understudy.algorithms.options import Loss

Outcome = tuple[Tensor, dict[str, Tensor]]
"""A loss to minimise, and its metrics."""


def policy_loss(
    logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float
) -> Outcome:
    """The clipped surrogate of PPO (Schulman et al. 2017, arXiv:1707.06347, eq. 7), negated and summed.

    At ratio 1 its gradient is the policy gradient, -advantages * grad(logprobs): a first step on policy is no fault.
    """
    log_ratio = _log_ratio(logprobs, old, mask)
    return _clipped(log_ratio.exp(), log_ratio, advantages, mask, clip_low, clip_high)


def gspo_loss(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    rows: Tensor,
    clip_low: float,
    clip_high: float,
) -> Outcome:
    """GSPO (Zheng et al. 2025, arXiv:2507.18071, eq. 5): clips the ratio of a whole sequence, not of its tokens.

    The ratio is the geometric mean of the tokens' ratios. `rows` numbers each token's sequence.
    """
    log_ratio = _log_ratio(logprobs, old, mask)
    numbers, index = torch.unique(rows, return_inverse=True)
    tokens = torch.zeros(len(numbers), dtype=logprobs.dtype, device=logprobs.device)
    sums = tokens.index_add(0, index.flatten(), log_ratio.flatten())
    counts = tokens.index_add(0, index.flatten(), mask.flatten().to(logprobs.dtype))
    ratio = (sums / counts.clamp(min=1)).exp()[index]
    return _clipped(ratio, log_ratio, advantages, mask, clip_low, clip_high)


def cispo_loss(
    logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float
) -> Outcome:
    """CISPO (MiniMax 2025, arXiv:2506.13585, eq. 4): every token keeps its gradient, its weight is what is clipped.

    REINFORCE with the ratio as a constant weight, held to [1 - clip_low, 1 + clip_high].
    """
    log_ratio = _log_ratio(logprobs, old, mask)
    ratio = log_ratio.detach().exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -(weight * advantages * torch.where(mask, logprobs, 0.0))[mask].sum()
    return loss, _metrics(ratio, log_ratio.detach(), weight != ratio, mask)


def nll(logprobs: Tensor, weights: Tensor, mask: Tensor) -> Outcome:
    """Negative log-likelihood, each token times its weight, summed."""
    loss = -(logprobs * weights)[mask].sum()
    return loss, {"nll": -logprobs.detach()[mask].sum()}


def value_loss(values: Tensor, old: Tensor, returns: Tensor, weights: Tensor, mask: Tensor, clip: float) -> Outcome:
    """Half the squared error of a critic, each token times its weight, summed.

    Of the error, and that with the value held within `clip` of what it was before the update, the worse counts. It is
    what the code of Schulman et al. 2017 does and the paper leaves out; Engstrom et al. 2020, arXiv:2005.12729, find
    no gain in it. A `clip` of 0 does without.
    """
    values, old, returns, weights = (x[mask] for x in (values, old, returns, weights))
    error = (values - returns) ** 2
    held = (old + (values - old).clamp(-clip, clip) - returns) ** 2 if clip else error
    loss = 0.5 * (torch.maximum(error, held) * weights).sum()
    metrics = {
        "value_loss": loss.detach(),
        "value_error": error.detach().sum(),
        "value_clip_fraction": (held > error).sum(),
        "valued_tokens": mask.sum(),
    }
    return loss, metrics


def compute(
    loss: Loss, logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, rows: Tensor | None = None
) -> Outcome:
    """The loss that `loss` names. `rows` numbers each token's sequence; without it they are those of [B, T]."""
    if loss.kind == "nll":
        return nll(logprobs, advantages, mask)
    if loss.kind == "gspo":
        rows = (
            torch.arange(len(logprobs), device=logprobs.device)[:, None].expand_as(logprobs) if rows is None else rows
        )
        return gspo_loss(logprobs, old, advantages, mask, rows, loss.clip_low, loss.clip_high)
    kinds = {"policy": policy_loss, "cispo": cispo_loss}
    return kinds[loss.kind](logprobs, old, advantages, mask, loss.clip_low, loss.clip_high)


def _log_ratio(logprobs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, logprobs - old, torch.zeros_like(logprobs))


def _clipped(
    ratio: Tensor, log_ratio: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float
) -> Outcome:
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)[mask].sum()
    held = (clipped * advantages < ratio * advantages).detach()
    return loss, _metrics(ratio.detach(), log_ratio.detach(), held, mask)


def _metrics(ratio: Tensor, log_ratio: Tensor, held: Tensor, mask: Tensor) -> dict[str, Tensor]:
    return {
        "clip_fraction": held[mask].sum(),
        "approx_kl": (log_ratio.exp() - 1 - log_ratio)[mask].sum(),
        "logprob_gap": log_ratio.abs()[mask].sum(),
        "ratio": ratio[mask].sum(),
        "ratio_error": ((ratio - 1) ** 2)[mask].sum(),
    }
