"""Sampling with filters, which may differ between the rows of a batch.

The order is vLLM's: repetition, frequency and presence penalty, temperature, min-p, top-k, top-p. Each filter works on
what the one before it left. top-p is nucleus sampling (Holtzman et al. 2019, arXiv:1904.09751), min-p that of Nguyen et
al. 2024 (arXiv:2407.01082), and the repetition penalty that of CTRL (Keskar et al. 2019, arXiv:1909.05858), over prompt
and reply. Frequency and presence penalties are those of OpenAI's API, over the reply. Ties with the last token of top-k
are kept. Rows are computed independently, in float64.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from understudy.engines.interface import SamplingParams
from understudy.engines.local.kept_tokens import KeptTokens, keep_tokens
from understudy.engines.local.transfers import to_device

NUM_CANDIDATES = {"cpu": 64, "cuda": 1024}
"""Number of most likely tokens of which top-p is computed first, by device. They usually include the whole nucleus."""


class FilteredSample(NamedTuple):
    """One token for each of S rows."""

    tokens: Tensor  # [S] int64
    logprobs: Tensor  # [S] fp32, under the whole softmax, or over the kept tokens
    is_exact: Tensor  # [S] bool, False where top-p keeps more than the candidates: draw such a row again from all
    kept: KeptTokens | None  # if they were asked for


class _Columns(NamedTuple):
    """The parameters of S rows as columns [S, 1]."""

    temperature: Tensor  # float64; 1 for greedy rows
    greedy: Tensor  # bool
    penalty: Tensor  # float64
    min_p: Tensor  # float64
    top_p: Tensor  # float64
    top_k: Tensor  # int64, at most the size of the vocabulary; 0 if the row has no top-k


def sample_filtered(
    logits: Tensor,
    params: Sequence[SamplingParams],
    previous_tokens: Sequence[Tensor],
    uniforms: Tensor,
    num_candidates: int | None = None,
    prompt_lengths: Sequence[int] | None = None,
    keep: bool = False,
) -> FilteredSample:
    """Return one token for each row of logits [S, V]. With `keep`, log-probabilities are those over the kept tokens.

    `previous_tokens` are the token ids [n] (int64) before each row, on the CPU. The first `prompt_lengths` of them, by
    default none, are not part of the reply. The token is the inverse of the
    cumulative distribution of the remaining tokens, in the vocabulary's order, at uniforms [S] in [0, 1). A row with
    NaN gets any token, with the log-probability NaN. Top-p sorts the `num_candidates` most likely tokens only; None
    sorts all, so that every row is exact.
    """
    wide = logits.double()
    columns = _columns(params, wide)
    count = min(num_candidates or wide.shape[-1], wide.shape[-1])
    filtered, is_exact = _filter(wide, params, columns, previous_tokens, count, prompt_lengths)
    sums = filtered.cumsum(-1)
    drawn = uniforms.double().clamp(max=1 - 2**-24)[:, None]
    tokens = torch.searchsorted(sums, drawn * sums[:, -1:], right=True).clamp_(max=wide.shape[-1] - 1)
    tokens = torch.where(columns.greedy, filtered.argmax(-1, keepdim=True), tokens)
    if keep:
        logprobs, kept = keep_tokens(wide, filtered > 0, tokens[:, 0], columns.temperature)
        return FilteredSample(tokens[:, 0], logprobs, is_exact, kept)
    logprobs = (wide / columns.temperature).log_softmax(-1).gather(-1, tokens)
    return FilteredSample(tokens[:, 0], logprobs[:, 0].float(), is_exact, None)


def find_kept_tokens(
    logits: Tensor,
    params: Sequence[SamplingParams],
    previous_tokens: Sequence[Tensor],
    prompt_lengths: Sequence[int],
    tokens: Tensor,
) -> tuple[Tensor, KeptTokens]:
    """Return the log-probabilities [S] of tokens [S] that another sampler drew, over the kept tokens, and these.

    The arguments are those of `sample_filtered`.
    """
    wide = logits.double()
    columns = _columns(params, wide)
    filtered, _ = _filter(wide, params, columns, previous_tokens, wide.shape[-1], prompt_lengths)
    return keep_tokens(wide, filtered > 0, tokens, columns.temperature)


def _filter(
    logits: Tensor,
    params: Sequence[SamplingParams],
    columns: _Columns,
    previous_tokens: Sequence[Tensor],
    count: int,
    prompt_lengths: Sequence[int] | None,
) -> tuple[Tensor, Tensor]:
    """Return what `_filter_scores` does, for logits [S, V] to which no penalty was applied."""
    penalized = _penalized(logits, params, previous_tokens, columns.penalty)
    replies = [ids[n:] for ids, n in zip(previous_tokens, prompt_lengths or [0] * len(params), strict=True)]
    penalized = _without_repeats(penalized, params, replies)
    return _filter_scores(penalized / columns.temperature, params, columns, count)


def _columns(params: Sequence[SamplingParams], logits: Tensor) -> _Columns:
    size = logits.shape[-1]
    rows = [
        (s.temperature or 1.0, s.temperature == 0, s.repetition_penalty, s.min_p, s.top_p, min(s.top_k, size))
        for s in params
    ]
    table = to_device(torch.tensor(rows, dtype=torch.float64), logits.device)
    temperature, greedy, penalty, min_p, top_p, top_k = table.T[..., None].unbind()
    return _Columns(temperature, greedy.bool(), penalty, min_p, top_p, top_k.long())


def _penalized(logits: Tensor, samplings: Sequence[SamplingParams], seen: Sequence[Tensor], penalty: Tensor) -> Tensor:
    rows = [row for row, s in enumerate(samplings) if s.repetition_penalty != 1.0]
    if not rows:
        return logits
    known = torch.zeros_like(logits, dtype=torch.bool)
    places = torch.cat([row * logits.shape[-1] + seen[row] for row in rows])
    known.view(-1).index_fill_(0, to_device(places, logits.device), True)
    return torch.where(known, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def _without_repeats(logits: Tensor, samplings: Sequence[SamplingParams], replies: Sequence[Tensor]) -> Tensor:
    """Return logits [S, V] minus the frequency and presence penalties of the tokens of each reply."""
    rows = [row for row, s in enumerate(samplings) if s.frequency_penalty or s.presence_penalty]
    reduced = logits.clone() if rows else logits
    for row in rows:
        tokens, counts = (to_device(x, logits.device) for x in torch.unique(replies[row], return_counts=True))
        reduced[row, tokens] -= samplings[row].frequency_penalty * counts + samplings[row].presence_penalty
    return reduced


def _filter_scores(
    scores: Tensor, samplings: Sequence[SamplingParams], columns: _Columns, count: int
) -> tuple[Tensor, Tensor]:
    """Return unnormalized probabilities [S, V] of the remaining tokens, with 0 for the others, and which rows [S] are
    exact."""
    probs = scores.softmax(-1)
    probs = probs.where(probs >= columns.min_p * probs.amax(-1, keepdim=True), 0.0)
    is_exact = torch.ones_like(columns.greedy[:, 0])
    if cut := [row for row, s in enumerate(samplings) if s.top_k]:
        index, most = to_device(torch.tensor(cut), probs.device), max(min(s.top_k, probs.shape[-1]) for s in samplings)
        probs[index] = _keep_top_k(probs[index], columns.top_k[index], most)
    if cut := [row for row, s in enumerate(samplings) if s.top_p < 1.0]:
        index = to_device(torch.tensor(cut), probs.device)
        probs[index], is_exact[index] = _keep_top_p(probs[index], columns.top_p[index], count)
    return probs, is_exact


def _keep_top_k(probs: Tensor, top_k: Tensor, most: int) -> Tensor:
    """Apply top-k, at most `most`, to rows [S, V]."""
    last = probs.topk(most).values.gather(-1, top_k - 1)
    return probs.where(probs >= last, 0.0)


def _keep_top_p(probs: Tensor, top_p: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Apply top-p to rows [S, V].

    Return the rows, and which of them [S] are exact although only `count` tokens were sorted.
    """
    wanted = top_p * probs.sum(-1, keepdim=True)
    if count == probs.shape[-1]:
        return _nucleus(probs, wanted, count), torch.ones_like(top_p[:, 0], dtype=torch.bool)
    values = probs.topk(count).values
    last = values[:, -1:]
    above = values.where(values > last, 0.0).sum(-1, keepdim=True)
    return _nucleus(probs, wanted, count), ((last == 0.0) | (above >= wanted))[:, 0]


def _nucleus(probs: Tensor, wanted: Tensor, count: int) -> Tensor:
    """Keep the fewest tokens of rows [S, V] with mass `wanted` [S, 1]. They are among the `count` most likely."""
    index = probs.topk(count).indices.sort(dim=-1).values  # ties in the vocabulary's order
    ordered, order = probs.gather(-1, index).sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(probs).scatter_(-1, index.gather(-1, order), ordered.where(before < wanted, 0.0))
