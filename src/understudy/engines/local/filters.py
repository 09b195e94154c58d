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

_FIRST = 64
"""So many of a row's likeliest tokens are looked at first; mostly what is left is among them."""


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
    cut = [row for row, s in enumerate(samplings) if s.top_k or s.top_p < 1.0]
    if cut:
        probs[cut] = _most_likely(probs[cut], [samplings[row] for row in cut])
    return probs


def _most_likely(probs: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """What top-k and top-p leave of rows [S, V] that have either. All of a row is sorted only where it has to be."""
    probs = probs.where(probs >= _last_of_top_k(probs, samplings), 0.0)
    top_p = _column([s.top_p for s in samplings], probs)
    wanted = torch.where(top_p < 1.0, top_p * probs.sum(-1, keepdim=True), torch.inf)
    count = min(_FIRST, probs.shape[-1])
    values = probs.topk(count).values
    last = values[:, -1:]
    above = values.where(values > last, 0.0).sum(-1, keepdim=True)
    enough = ((last == 0.0) | (above >= wanted))[:, 0]
    kept = torch.empty_like(probs)
    kept[enough] = _nucleus(probs[enough], wanted[enough], count)
    kept[~enough] = _nucleus(probs[~enough], wanted[~enough], probs.shape[-1])
    return kept


def _nucleus(probs: Tensor, wanted: Tensor, count: int) -> Tensor:
    """The fewest tokens of rows [S, V] that have the mass wanted [S, 1], which are among the `count` likeliest."""
    index = probs.topk(count).indices.sort(dim=-1).values  # the first of equals first
    ordered, order = probs.gather(-1, index).sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(probs).scatter_(-1, index.gather(-1, order), ordered.where(before < wanted, 0.0))


def _last_of_top_k(probs: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """The least probability [S, 1] among the top-k of each row; 0 where all are taken."""
    counts = torch.tensor([min(s.top_k, probs.shape[-1]) for s in samplings], device=probs.device)[:, None]
    if not counts.any():
        return torch.zeros_like(probs[:, :1])
    last = probs.topk(int(counts.max())).values.gather(-1, (counts - 1).clamp(min=0))
    return last.where(counts > 0, 0.0)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
