"""Sampling from a part of the vocabulary, each row by settings of its own.

Penalty, temperature, min-p, top-k, top-p, in this order, which is vLLM's: each works on what the one before has left.
top-p is nucleus sampling (Holtzman et al. 2019, arXiv:1904.09751), min-p that of Nguyen et al. 2024
(arXiv:2407.01082), the penalty that of CTRL (Keskar et al. 2019, arXiv:1909.05858), over prompt and reply. Where the
last token of top-k has equals, all of them stay. All is computed row by row in float64: no row depends on another.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from understudy.engines.base import Sampling


def sample(
    logits: Tensor, samplings: Sequence[Sampling], seen: Sequence[Tensor], uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """One token for each row of logits [S, V], and its log-probability under the whole softmax: int64 and fp32 [S].

    `seen` holds the token ids, int64 [n], that stand before each row. The token is the inverse of the cumulative
    distribution of what is left, in the vocabulary's order, at uniforms [S] of [0, 1).
    """
    wide = logits.double()
    temperature = _column([s.temperature or 1.0 for s in samplings], wide)
    kept = _kept(_penalized(wide, samplings, seen) / temperature, samplings)
    sums = kept.cumsum(-1)
    drawn = uniforms.double().clamp(max=1 - 2**-24)[:, None]
    tokens = torch.searchsorted(sums, drawn * sums[:, -1:], right=True)
    greedy = torch.tensor([s.temperature == 0 for s in samplings], device=wide.device)[:, None]
    tokens = torch.where(greedy, kept.argmax(-1, keepdim=True), tokens)
    logprobs = (wide / temperature).log_softmax(-1).gather(-1, tokens)
    return tokens[:, 0], logprobs[:, 0].float()


def _penalized(logits: Tensor, samplings: Sequence[Sampling], seen: Sequence[Tensor]) -> Tensor:
    penalties = [s.repetition_penalty for s in samplings]
    rows = [row for row, penalty in enumerate(penalties) if penalty != 1.0]
    if not rows:
        return logits
    known = torch.zeros_like(logits, dtype=torch.bool)
    for row in rows:
        known[row, seen[row].to(logits.device)] = True
    penalty = _column(penalties, logits)
    return torch.where(known, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def _kept(scores: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Probabilities [S, V] of the tokens that may be drawn, not normalized; 0 for the others."""
    probs = scores.softmax(-1)
    floor = _column([s.min_p for s in samplings], probs) * probs.amax(-1, keepdim=True)
    probs = probs.where(probs >= floor, 0.0)
    if any(s.top_k or s.top_p < 1.0 for s in samplings):
        probs = _most_likely(probs, samplings)
    return probs


def _most_likely(probs: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    vocabulary = probs.shape[-1]
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    count = torch.tensor([min(s.top_k or vocabulary, vocabulary) for s in samplings], device=probs.device)[:, None]
    ordered = ordered.where(ordered >= ordered.gather(-1, count - 1), 0.0)
    before = ordered.cumsum(-1) - ordered
    top_p = _column([s.top_p for s in samplings], probs)
    inside = (before < top_p * ordered.sum(-1, keepdim=True)) | (top_p == 1.0)
    return torch.zeros_like(probs).scatter_(-1, index, ordered.where(inside, 0.0))


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
