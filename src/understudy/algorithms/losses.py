"""Losses as sums over tokens, so that splitting a batch does not change its gradient.

All tensors of one call have the same shape. Tokens with `mask` False contribute nothing to the loss and its
gradient. Metrics are sums as well. A batch may be split between any tokens, for `gspo_loss` only between sequences.
"""

import torch
from torch import Tensor

from understudy.algorithms.batch import LossOutput
from understudy.algorithms.config import LossConfig, is_custom
from understudy.algorithms.custom import custom_loss


def ppo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> LossOutput:
    """Return the negated sum of PPO's clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, eq. 7).

    At ratio 1, in the first on-policy step, its gradient is the policy gradient, -advantages * grad(logprobs). With
    `dual_clip` above 1, the surrogate of a negative advantage is at least `dual_clip * advantage`, as in dual-clip PPO
    (Ye et al. 2020, "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning", arXiv:1912.09729).
    """
    log_ratio = _log_ratio(logprobs, old_logprobs, mask)
    return _clipped_surrogate(log_ratio.exp(), log_ratio, advantages, mask, clip_low, clip_high, dual_clip)


def gspo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    sequence_ids: Tensor,
    clip_low: float,
    clip_high: float,
) -> LossOutput:
    """Return the GSPO loss, which clips the ratio of a sequence (Zheng et al. 2025, arXiv:2507.18071, eq. 5).

    The ratio of a sequence is the geometric mean of its tokens' ratios. `sequence_ids` holds the number of each token's
    sequence.
    """
    log_ratio = _log_ratio(logprobs, old_logprobs, mask)
    index = _number_sequences(sequence_ids)
    zeros = torch.zeros(logprobs.numel(), dtype=logprobs.dtype, device=logprobs.device)
    sums = zeros.index_add(0, index.flatten(), log_ratio.flatten())
    counts = zeros.index_add(0, index.flatten(), mask.flatten().to(logprobs.dtype))
    ratio = (sums / counts.clamp(min=1)).exp()[index]
    return _clipped_surrogate(ratio, log_ratio, advantages, mask, clip_low, clip_high)


def cispo_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float
) -> LossOutput:
    """Return the CISPO loss, which clips the importance weight (MiniMax 2025, arXiv:2506.13585, eq. 4).

    This is REINFORCE with the ratio as a constant weight, clipped to [1 - clip_low, 1 + clip_high]. Every token keeps
    its gradient.
    """
    log_ratio = _log_ratio(logprobs, old_logprobs, mask)
    ratio = log_ratio.detach().exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -_sum(weight * advantages * torch.where(mask, logprobs, 0.0), mask)
    return loss, _metrics(ratio, log_ratio.detach(), weight != ratio, mask)


def nll_loss(logprobs: Tensor, weights: Tensor, mask: Tensor) -> LossOutput:
    """Return the weighted sum of the tokens' negative log-likelihoods."""
    loss = -_sum(logprobs * weights, mask)
    return loss, {"nll_loss": -_sum(logprobs.detach(), mask)}


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, weights: Tensor, mask: Tensor, clip: float
) -> LossOutput:
    """Return half the weighted sum of a critic's squared errors.

    Each token counts the larger of its squared error and the squared error of the value clipped to within `clip` of its
    old value. The code of Schulman et al. 2017 does this, though the paper does not mention it. Engstrom et al. 2020,
    arXiv:2005.12729, find no gain in it. A `clip` of 0 disables clipping.
    """
    values, old_values, returns, weights = (torch.where(mask, x, 0.0) for x in (values, old_values, returns, weights))
    error = (values - returns) ** 2
    clipped_error = error
    if clip:
        clipped_values = old_values + (values - old_values).clamp(-clip, clip)
        clipped_error = (clipped_values - returns) ** 2
    loss = 0.5 * (torch.maximum(error, clipped_error) * weights).sum()
    metrics = {
        "value_loss": loss.detach(),
        "value_mse": error.detach().sum(),
        "value_clip_fraction": (clipped_error > error).sum(),
        "valued_tokens": mask.sum(),
    }
    return loss, metrics


def compute_loss(
    loss: LossConfig,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    sequence_ids: Tensor | None = None,
) -> LossOutput:
    """Return the loss that `loss.kind` names. For `nll` the advantages are the token weights.

    Without a mask, every token counts. `sequence_ids` holds the number of each token's sequence; by default each row of
    [B, T] is a sequence.
    """
    if sequence_ids is None and (loss.kind == "gspo" or is_custom(loss.kind)):
        sequence_ids = torch.arange(len(logprobs), device=logprobs.device)[:, None].expand_as(logprobs)
    if is_custom(loss.kind):
        assert sequence_ids is not None
        return custom_loss(loss, logprobs, old_logprobs, advantages, mask, sequence_ids)
    mask = torch.ones_like(logprobs, dtype=torch.bool) if mask is None else mask
    if loss.kind == "nll":
        return nll_loss(logprobs, advantages, mask)
    if loss.kind == "gspo":
        assert sequence_ids is not None
        return gspo_loss(logprobs, old_logprobs, advantages, mask, sequence_ids, loss.clip_low, loss.clip_high)
    if loss.kind == "cispo":
        return cispo_loss(logprobs, old_logprobs, advantages, mask, loss.clip_low, loss.clip_high)
    return ppo_loss(logprobs, old_logprobs, advantages, mask, loss.clip_low, loss.clip_high, loss.dual_clip)


def _log_ratio(logprobs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, logprobs - old, torch.zeros_like(logprobs))


def _sum(x: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of x where `mask` is True. `x[mask]` would make a GPU's host wait for the number of its tokens."""
    return torch.where(mask, x, 0.0).sum()


def _number_sequences(sequence_ids: Tensor) -> Tensor:
    """Return consecutive numbers from 0 for the sequences, in the shape of `sequence_ids`.

    This is `torch.unique`'s inverse, which makes a GPU's host wait for the number of sequences.
    """
    ordered, order = sequence_ids.flatten().sort()
    steps = torch.zeros_like(order)
    steps[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(order).scatter_(0, order, steps.cumsum(0)).view(sequence_ids.shape)


def _clipped_surrogate(
    ratio: Tensor,
    log_ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> LossOutput:
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    is_clipped = (clipped * advantages < ratio * advantages).detach()
    if dual_clip:
        is_below = (advantages < 0) & (surrogate < dual_clip * advantages).detach()
        surrogate = torch.where(is_below, dual_clip * advantages, surrogate)
        is_clipped = is_clipped | is_below
    return -_sum(surrogate, mask), _metrics(ratio.detach(), log_ratio.detach(), is_clipped, mask)


def _metrics(ratio: Tensor, log_ratio: Tensor, is_clipped: Tensor, mask: Tensor) -> dict[str, Tensor]:
    return {
        "clip_fraction": (is_clipped & mask).sum(),
        "approx_kl": _sum(log_ratio.exp() - 1 - log_ratio, mask),
        "logprob_abs_diff": _sum(log_ratio.abs(), mask),
        "ratio": _sum(ratio, mask),
        "ratio_mse": _sum((ratio - 1) ** 2, mask),
    }
