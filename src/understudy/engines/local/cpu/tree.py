"""Attention over a tree of tokens, forward and backward, and causal attention, which is that over a single path.

The tokens are in preorder, and the descendants of token j end before position `subtree_end[j]`. So token i sees token j
if j <= i < subtree_end[j], and these are exactly the ancestors of i and i itself. On a CPU the C kernels compute this.
Where they do not fit, the formula is computed for some queries at a time, so that not all scores are in memory.

Shapes: queries [M, Hq, d] of the last M of N tokens, keys [N, H, d] and values [N, H, dv]. The result is [M, Hq, dv].
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.engines.local.attention import AttentionSpec
from understudy.engines.local.cpu import kernels
from understudy.engines.local.cpu.kernels import TreeScores

QUERIES_AT_ONCE = 128


def tree_attention(
    q: Tensor, k: Tensor, v: Tensor, subtree_end: Tensor, positions: Tensor, spec: AttentionSpec
) -> Tensor:
    """Return attention over a tree. `subtree_end` and the positions of the tokens in their rows are int32 [N]."""
    window = (positions, spec.first_visible(positions[len(k) - len(q) :])) if spec.is_local else None
    scores = TreeScores(spec.scale, subtree_end, window, spec.softcap)
    function = _KernelAttention if kernels.fits_tree_attention(q, k, v) else _FormulaAttention
    return function.apply(q, k, v, spec.sinks, scores)  # type: ignore[no-any-return, no-untyped-call]


def causal_attention(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    """Return attention to all tokens before each query, on any device."""
    if spec.is_plain and not q.is_cpu:
        return _causal_attention_of_torch(q, k, v, spec.scale)
    positions = torch.arange(len(k), dtype=torch.int32, device=q.device)
    return tree_attention(q, k, v, torch.full_like(positions, len(k)), positions, spec)


class _KernelAttention(torch.autograd.Function):
    """Attention by the C kernels. It stores a number per query head and token."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scores: TreeScores) -> Tensor:
        out, lse = kernels.tree_attention(q, k, v, scores, sinks)
        ctx.save_for_backward(out, lse, q, k, v, sinks)
        ctx.scores = scores
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        out, lse, q, k, v, sinks = ctx.saved_tensors
        return *kernels.tree_attention_backward(grads[0], out, lse, q, k, v, ctx.scores, sinks), None


class _FormulaAttention(torch.autograd.Function):
    """Attention by the formula. The backward pass repeats the forward pass instead of storing scores."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scores: TreeScores) -> Tensor:
        ctx.save_for_backward(q, k, v, sinks)
        ctx.scores = scores
        out = q.new_empty(*q.shape[:2], v.shape[2])
        for part, keys in _parts(len(q), len(k)):
            out[part] = _by_formula(scores, part, q[part], k[keys], v[keys], sinks)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [x for x in ctx.saved_tensors if x is not None]
        sums = [torch.zeros_like(x, dtype=_wide(x.dtype)) for x in inputs]
        for part, keys in _parts(len(inputs[0]), len(inputs[1])):
            places = [part, keys, keys, slice(None)][: len(inputs)]
            leaves = [x[place].detach().requires_grad_() for x, place in zip(inputs, places, strict=True)]
            with torch.enable_grad():
                out = _by_formula(ctx.scores, part, *leaves)
            found = torch.autograd.grad(out, leaves, grads[0][part])
            for total, place, grad in zip(sums, places, found, strict=True):
                total[place] += grad
        rounded = [total.to(x.dtype) for total, x in zip(sums, inputs, strict=True)]
        return *rounded, *[None] * (5 - len(rounded))


def _parts(queries: int, keys: int) -> Iterator[tuple[slice, slice]]:
    """Yield for each part its queries, and the keys that any of them may see."""
    for start in range(0, queries, QUERIES_AT_ONCE):
        stop = min(start + QUERIES_AT_ONCE, queries)
        yield slice(start, stop), slice(keys - queries + stop)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _by_formula(
    scores: TreeScores, part: slice, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
) -> Tensor:
    """Return attention of the queries of a part, over the keys up to the last of them."""
    heads, place = k.shape[1], torch.arange(len(k), device=k.device)
    query = place[len(k) - len(q) :, None]
    seen = (place <= query) & (query < scores.ends[: len(k)])
    if scores.window is not None:
        positions, firsts = scores.window
        seen &= positions[: len(k)] >= firsts[part, None]
    folded, k, v = (x.to(_wide(x.dtype)) for x in (q.reshape(len(q), heads, -1, q.shape[2]), k, v))
    weights = torch.einsum("lhgd,nhd->hgln", folded, k) * scores.scale
    if scores.softcap:
        weights = scores.softcap * torch.tanh(weights / scores.softcap)
    weights = weights.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        each = sinks.to(k.dtype).view(heads, -1, 1, 1).expand(*weights.shape[:3], 1)
        weights = torch.cat([weights, each], -1)
    weights = weights.softmax(-1)[..., : len(k)]
    return torch.einsum("hgln,nhd->lhgd", weights, v).flatten(1, 2).to(q.dtype)


def _causal_attention_of_torch(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    alike = len(q) == len(k)
    seen = None if alike else torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).tril(len(k) - len(q))
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=alike, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)
