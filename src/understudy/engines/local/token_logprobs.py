"""Log-probabilities of tokens from hidden states, without storing [N, V] logits.

Logits exist for one chunk of positions at a time. The backward pass computes them again. With a sampling mask, the
log-probability of a token is that over the tokens of the mask. `masked_token_logprobs` computes only their logits.

On a CPU with kernels, logits are in float32, in the sampler too. Rounded to bfloat16, they make up most of the
difference between sampler and trainer (as in MiniMax-M1, arXiv:2506.13585).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from understudy.engines.local.cpu import kernels

LOGIT_CHUNK = 512
"""Positions of a chunk, at most."""
CHUNK_LOGITS = 1 << 25
"""Logits of a chunk, at most: 128 MiB in float32."""
CHUNK_ROWS = 1 << 13
"""Rows of the output weights that `masked_token_logprobs` gathers at a time, about: 18 MiB in float32 for a width of
576."""
OUTSIDE = -1e30
"""Logit of the tokens outside a sampling mask. Minus infinity would make the entropy NaN."""


class MaskRows(NamedTuple):
    """The sampling masks of M tokens."""

    sizes: Tensor  # [M] on the CPU; 0 without a mask
    token_ids: Tensor  # [K] the ids of the masks, one mask after the other
    owners: Tensor  # [K] the token that each id belongs to, ascending
    has_mask: Tensor  # [M] whether a token has a mask, on the device

    def spans(self, most: int) -> Iterator[tuple[slice, slice]]:
        """Yield spans of tokens, and of ids, with about `most` ids each."""
        ends = [0, *self.sizes.cumsum(0).tolist()]
        first = 0
        for last in range(1, len(ends)):
            if last == len(ends) - 1 or ends[last + 1] - ends[first] > most:
                yield slice(first, last), slice(ends[first], ends[last])
                first = last


def logit_chunk(vocabulary: int) -> int:
    """Return the positions of a chunk of logits [n, V]: fewer for a large vocabulary."""
    return max(1, min(LOGIT_CHUNK, CHUNK_LOGITS // vocabulary))


def token_logprobs(
    hidden: Tensor,
    lm_head: Tensor,
    targets: Tensor,
    temperature: float,
    rows: Tensor | None = None,
    tokens: Tensor | None = None,
    masks: MaskRows | None = None,
    packed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [M] of `targets` [M] at `temperature` and entropies [M]. Entropies have no gradient.

    `hidden` [M, D] are the hidden states before the targets, `lm_head` [V, D] the output weights. `rows` [K, D] equal
    those of `tokens` [K] in `lm_head`, and get the gradient of these alone. If `lm_head` is also given `packed` for the
    kernels, logits are in float32, else in the dtype of `hidden`.
    """
    return TokenLogprobsFunction.apply(hidden, lm_head, targets, temperature, rows, tokens, masks, packed)  # type: ignore[no-any-return, no-untyped-call]


def masked_token_logprobs(
    hidden: Tensor,
    lm_head: Tensor,
    targets: Tensor,
    temperature: float,
    rows: Tensor | None,
    tokens: Tensor | None,
    masks: MaskRows,
    rounds: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return what `token_logprobs` does, from the logits of the masks' tokens alone. Every token has a mask.

    `rounds` says whether logits are rounded to the dtype of `hidden`, as those that were sampled from.
    """
    return MaskedLogprobsFunction.apply(hidden, lm_head, targets, temperature, rows, tokens, masks, rounds)  # type: ignore[no-any-return, no-untyped-call]


def token_logprobs_of(
    logits: Callable[[Tensor], Tensor],
    vocabulary: int,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    masks: MaskRows | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the same as `token_logprobs` for a model whose logits [M, V] are any function of hidden states [M, D].

    Such a function may scale or cap them, as Gemma 2 and Cohere do, or add a bias.
    """

    def part(x: Tensor, y: Tensor, span: slice) -> tuple[Tensor, Tensor]:
        wide = logits(x).float()
        outside = None if masks is None else _outside(masks, span, wide)
        wide = wide if outside is None else wide.masked_fill(outside, OUTSIDE)
        logprobs = (wide / temperature).log_softmax(-1)
        entropy = -(logprobs.detach().exp() * logprobs.detach()).sum(-1)
        return logprobs.gather(-1, y[:, None])[:, 0], entropy

    size = logit_chunk(vocabulary)
    spans = [slice(start, start + size) for start in range(0, len(hidden), size)]
    inputs = zip(torch.split(hidden, size), torch.split(targets, size), spans, strict=True)
    found = [checkpoint(part, *x, use_reentrant=False) if torch.is_grad_enabled() else part(*x) for x in inputs]
    logprobs, entropy = (torch.cat(x) for x in zip(*found, strict=True))
    return logprobs, entropy


class _ChunkLogits:
    """The logits of one chunk of hidden states [M, D] after the other, in the same memory.

    glibc would give each chunk new memory: the hole that a freed tensor leaves is a few bytes too small for one of the
    same size, because tensors are aligned.
    """

    def __init__(self, hidden: Tensor, head: Tensor, masks: MaskRows | None, packed: Tensor | None) -> None:
        size = logit_chunk(len(head))
        self._hidden, self._head, self._masks, self._packed = hidden, head, masks, packed
        dtype = hidden.dtype if packed is None else torch.float32
        self._logits = hidden.new_empty(min(size, len(hidden)), len(head), dtype=dtype)
        self.parts = [slice(start, min(start + size, len(hidden))) for start in range(0, len(hidden), size)]

    def __call__(self, part: slice) -> Tensor:
        """Return the logits [n, V] of a chunk, and overwrite those of the chunk before."""
        logits = self._logits[: part.stop - part.start]
        if self._packed is None:
            torch.mm(self._hidden[part], self._head.T, out=logits)
        else:
            kernels.packed_logits(self._hidden[part], self._packed, logits)
        if self._masks is not None and (outside := _outside(self._masks, part, logits)) is not None:
            logits.masked_fill_(outside, OUTSIDE)
        return logits


def _outside(masks: MaskRows, part: slice, logits: Tensor) -> Tensor | None:
    """Return which of a chunk's logits [n, V] are outside the masks of its tokens, or None if it has no masks."""
    sizes = masks.sizes[part]
    if not sizes.any():
        return None
    first = int(masks.sizes[: part.start].sum())
    own = slice(first, first + int(sizes.sum()))
    outside = masks.has_mask[part, None].expand(logits.shape).clone()
    outside[masks.owners[own] - part.start, masks.token_ids[own]] = False
    return outside


class TokenLogprobsFunction(torch.autograd.Function):
    """Autograd function of `token_logprobs`."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        targets: Tensor,
        temperature: float,
        rows: Tensor | None,
        tokens: Tensor | None,
        masks: MaskRows | None,
        packed: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.temperature, ctx.tokens, ctx.masks, ctx.packed = temperature, tokens, masks, packed
        chunks = _ChunkLogits(hidden, head, masks, packed)
        parts = [kernels.logits_to_logprobs(chunks(part), targets[part], temperature) for part in chunks.parts]
        logprobs, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, head, targets, logprobs)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        hidden, head, targets, logprobs = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        tokens = ctx.tokens if ctx.needs_input_grad[4] else None
        grad_rows = None if tokens is None else head.new_zeros(len(tokens), head.shape[1], dtype=torch.float32)
        chunks = _ChunkLogits(hidden, head, ctx.masks, ctx.packed)
        for part in chunks.parts:
            logits = chunks(part)
            kernels.logits_to_logprobs_backward_(logits, targets[part], grads[0][part], ctx.temperature, logprobs[part])
            grad_logits = logits.to(head.dtype)
            grad_hidden[part] = grad_logits @ head
            if grad_head is not None:
                grad_head += grad_logits.T @ hidden[part]
            if grad_rows is not None:
                grad_rows += grad_logits[:, tokens].T @ hidden[part]
        # The sum over chunks is in float32: in bfloat16, each addition would round it.
        grads_of_weights = [None if grad is None else grad.to(head.dtype) for grad in (grad_head, grad_rows)]
        return grad_hidden, grads_of_weights[0], None, None, grads_of_weights[1], None, None, None


class MaskedLogprobsFunction(torch.autograd.Function):
    """Autograd function of `masked_token_logprobs`. It stores the probabilities of the masks' tokens."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        targets: Tensor,
        temperature: float,
        rows: Tensor | None,
        tokens: Tensor | None,
        masks: MaskRows,
        rounds: bool,
    ) -> tuple[Tensor, Tensor]:
        wide, owners = torch.promote_types(hidden.dtype, torch.float32), masks.owners
        logits = torch.empty(len(owners), dtype=wide, device=hidden.device)
        for _, ids in masks.spans(CHUNK_ROWS):
            products = hidden[owners[ids]].to(wide).mul_(head[masks.token_ids[ids]])
            logits[ids] = products.sum(-1).to(hidden.dtype if rounds else wide)
        scores = logits / temperature
        zeros = scores.new_zeros(len(hidden))
        highest = zeros.scatter_reduce(0, owners, scores, "amax", include_self=False)
        sums = zeros.index_add(0, owners, (scores - highest[owners]).exp())
        every = scores - (highest + sums.log())[owners]
        is_target = masks.token_ids == targets[owners]
        logprobs = zeros.index_add(0, owners, every.where(is_target, 0.0))
        entropy = -zeros.index_add(0, owners, every.exp() * every)
        ctx.temperature, ctx.tokens, ctx.masks = temperature, tokens, masks
        ctx.save_for_backward(hidden, head, every.exp(), is_target)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        hidden, head, probs, is_target = ctx.saved_tensors
        masks: MaskRows = ctx.masks
        slopes = (grads[0] / ctx.temperature)[masks.owners, None] * (is_target.to(probs.dtype) - probs)[:, None]
        grad_hidden = torch.zeros_like(hidden, dtype=probs.dtype)
        grad_head = torch.zeros_like(head, dtype=probs.dtype) if ctx.needs_input_grad[1] else None
        tokens: Tensor = ctx.tokens
        grad_rows = probs.new_zeros(len(tokens) + 1, head.shape[1]) if ctx.needs_input_grad[4] else None
        for _, ids in masks.spans(CHUNK_ROWS):
            token_ids, owners, slope = masks.token_ids[ids], masks.owners[ids], slopes[ids]
            grad_hidden.index_add_(0, owners, head[token_ids].to(probs.dtype).mul_(slope))
            if grad_head is None and grad_rows is None:
                continue
            of_weights = hidden[owners].to(probs.dtype).mul_(slope)
            if grad_head is not None:
                grad_head.index_add_(0, token_ids, of_weights)
            if grad_rows is not None:  # ids that are not among `tokens` are added to a last row
                place = token_ids.new_full((len(head),), len(tokens))
                place[tokens] = torch.arange(len(tokens), device=place.device)
                grad_rows.index_add_(0, place[token_ids], of_weights)
        of_rows = None if grad_rows is None else grad_rows[:-1]
        given = (x if x is None else x.to(head.dtype) for x in (grad_hidden, grad_head, None, None, of_rows))
        return *given, None, None, None
