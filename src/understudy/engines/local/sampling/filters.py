"""Sampling with filters, which may differ between the rows of a batch.

The order is vLLM's: repetition penalty, temperature, min-p, top-k, top-p. Each filter works on what the one before it
left. top-p is nucleus sampling (Holtzman et al. 2019, arXiv:1904.09751), min-p that of Nguyen et al. 2024
(arXiv:2407.01082), and the penalty that of CTRL (Keskar et al. 2019, arXiv:1909.05858), over prompt and reply. Ties
with the last token of top-k are kept. Rows are computed independently, in float64.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from understudy.engines.base import SamplingParams

_FIRST = 64
"""Number of most likely tokens that top-p sorts first. They usually include the whole nucleus."""


def sample_filtered(
    logits: Tensor, params: Sequence[SamplingParams], previous_tokens: Sequence[Tensor], uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Return one token for each row of logits [S, V] and its log-probability under the whole softmax: int64 and fp32
    [S].

    `previous_tokens` are the token ids [n] (int64) before each row. The token is the inverse of the cumulative
    distribution of the remaining tokens, in the vocabulary's order, at uniforms [S] in [0, 1). A row with NaN gets any
    token, with the log-probability NaN.
    """
    wide = logits.double()
    temperature = _column([s.temperature or 1.0 for s in params], wide)
    filtered = _filter_scores(_penalized(wide, params, previous_tokens) / temperature, params)
    sums = filtered.cumsum(-1)
    drawn = uniforms.double().clamp(max=1 - 2**-24)[:, None]
    tokens = torch.searchsorted(sums, drawn * sums[:, -1:], right=True).clamp_(max=wide.shape[-1] - 1)
    greedy = torch.tensor([s.temperature == 0 for s in params], device=wide.device)[:, None]
    tokens = torch.where(greedy, filtered.argmax(-1, keepdim=True), tokens)
    logprobs = (wide / temperature).log_softmax(-1).gather(-1, tokens)
    return tokens[:, 0], logprobs[:, 0].float()


def _penalized(logits: Tensor, samplings: Sequence[SamplingParams], seen: Sequence[Tensor]) -> Tensor:
    penalties = [s.repetition_penalty for s in samplings]
    rows = [row for row, penalty in enumerate(penalties) if penalty != 1.0]
    if not rows:
        return logits
    known = torch.zeros_like(logits, dtype=torch.bool)
    for row in rows:
        known[row, seen[row].to(logits.device)] = True
    penalty = _column(penalties, logits)
    return torch.where(known, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def _filter_scores(scores: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    """Return unnormalized probabilities [S, V] of the remaining tokens. The others are 0."""
    probs = scores.softmax(-1)
    floor = _column([s.min_p for s in samplings], probs) * probs.amax(-1, keepdim=True)
    probs = probs.where(probs >= floor, 0.0)
    cut = [row for row, s in enumerate(samplings) if s.top_k or s.top_p < 1.0]
    if cut:
        probs[cut] = _most_likely(probs[cut], [samplings[row] for row in cut])
    return probs


def _most_likely(probs: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    """Apply top-k and top-p to rows [S, V] that have either. Rows are sorted fully only if necessary."""
    probs = probs.where(probs >= _last_of_top_k(probs, samplings), 0.0)
    top_p = _column([s.top_p for s in samplings], probs)
    wanted = torch.where(top_p < 1.0, top_p * probs.sum(-1, keepdim=True), torch.inf)
    count = min(_FIRST, probs.shape[-1])
    values = probs.topk(count).values
    last = values[:, -1:]
    above = values.where(values > last, 0.0).sum(-1, keepdim=True)
    enough = ((last == 0.0) | (above >= wanted))[:, 0]
    filtered = torch.empty_like(probs)
    filtered[enough] = _nucleus(probs[enough], wanted[enough], count)
    filtered[~enough] = _nucleus(probs[~enough], wanted[~enough], probs.shape[-1])
    return filtered


def _nucleus(probs: Tensor, wanted: Tensor, count: int) -> Tensor:
    """Keep the fewest tokens of rows [S, V] with mass `wanted` [S, 1]. They are among the `count` most likely."""
    index = probs.topk(count).indices.sort(dim=-1).values  # ties in the vocabulary's order
    ordered, order = probs.gather(-1, index).sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(probs).scatter_(-1, index.gather(-1, order), ordered.where(before < wanted, 0.0))


def _last_of_top_k(probs: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    """Return the smallest probability [S, 1] of the top-k of each row, or 0 without top-k."""
    counts = torch.tensor([min(s.top_k, probs.shape[-1]) for s in samplings], device=probs.device)[:, None]
    if not counts.any():
        return torch.zeros_like(probs[:, :1])
    last = probs.topk(int(counts.max())).values.gather(-1, (counts - 1).clamp(min=0))
    return last.where(counts > 0, 0.0)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
