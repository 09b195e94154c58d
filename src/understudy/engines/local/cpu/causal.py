"""Causal attention from a sequence's last tokens to the whole sequence, forward and backward.

On a CPU where the C kernels fit, this is `kernels.tree_attention`. Elsewhere plain attention uses PyTorch's kernel,
except in bfloat16 on a CPU, where that sums gradients in bfloat16. There, and with windows, capped scores and the like,
this works on strips of queries, each with the keys that it sees, with the products of `attention`.

Shapes: queries [M, Hq, d] of the last M of P tokens, keys [P, H, d] and values [P, H, dv]. The result is [M, Hq, dv].
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.engines.local.attention import AttentionSpec, Visible, attend, attend_backward
from understudy.engines.local.cpu import kernel_library, kernels

QUERY_CHUNK = 128
"""Queries per strip. Only the scores of one strip are in memory at a time."""


def causal_attention(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    """Return causal attention of the queries, [M, Hq, dv]."""
    if kernels.fits_tree_attention(q, k, v):
        places = torch.arange(len(k), dtype=torch.int32)
        window = (places, spec.first_visible(places[len(k) - len(q) :])) if spec.is_local else None
        scores = kernels.TreeScores(spec.scale, None, window, spec.softcap)
        return kernels.tree_attention(q, k, v, scores, spec.sinks)[0]
    if not _in_strips(q, spec):
        return _whole(q, k, v, spec.scale)
    keys, values = _heads_first(k), _heads_first(v)
    group = q.shape[1] // k.shape[1]
    out = q.new_empty(*q.shape[:2], v.shape[2])
    for index, seen, visible in _strips(q, len(k), spec):
        queries, own = kernels.gather_heads(q, index, group), (keys[:, :, seen], values[:, :, seen])
        result = attend(queries, _none(k), _none(v), *own, visible, spec)[0]
        kernels.scatter_heads_(out, index[0], result, index[0] - index[0, 0], group)
    return out


def causal_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec
) -> tuple[Tensor, Tensor, Tensor, Tensor | float]:
    """Return the gradients of q, k, v and sinks (0 if none). It repeats the forward pass instead of storing scores."""
    if not _in_strips(q, spec):
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        with torch.enable_grad():
            out = _whole(q, k, v, spec.scale)
        return *torch.autograd.grad(out, (q, k, v), grad), 0.0  # type: ignore[return-value]
    keys, values = _heads_first(k), _heads_first(v)
    group = q.shape[1] // k.shape[1]
    grad_q = torch.empty_like(q)
    grad_k, grad_v = (torch.zeros_like(x[:, 0], dtype=torch.float32) for x in (keys, values))
    grad_sinks: Tensor | float = 0.0
    for index, seen, visible in _strips(q, len(k), spec):
        args = kernels.gather_heads(q, index, group), _none(k), _none(v), keys[:, :, seen], values[:, :, seen]
        out, weights = attend(*args, visible, spec)
        gradients = attend_backward(kernels.gather_heads(grad, index, group), out, weights, *args, spec)
        kernels.scatter_heads_(grad_q, index[0], gradients.q, index[0] - index[0, 0], group)
        grad_k[:, seen] += gradients.k[:, 0]
        grad_v[:, seen] += gradients.v[:, 0]
        grad_sinks = grad_sinks + gradients.sinks
    return grad_q, grad_k.transpose(0, 1), grad_v.transpose(0, 1), grad_sinks


def _in_strips(q: Tensor, spec: AttentionSpec) -> bool:
    return not spec.is_plain or (q.is_cpu and q.dtype == torch.bfloat16 and kernel_library.kernels_available(q.dtype))


def _strips(q: Tensor, tokens: int, spec: AttentionSpec) -> Iterator[tuple[Tensor, slice, Visible]]:
    """Yield for each strip its queries [1, L], the tokens that any of them sees, and which of these each one sees."""
    before = tokens - len(q)
    for start in range(0, len(q), QUERY_CHUNK):
        stop = min(start + QUERY_CHUNK, len(q))
        index, unseen = torch.arange(start, stop, device=q.device)[None], max(0, spec.first_visible(start + before))
        yield index, slice(unseen, stop + before), spec.visible(index + before, unseen)


def _heads_first(x: Tensor) -> Tensor:
    """Return flat [P, H, d] as one row, [H, 1, P, d]."""
    return x.transpose(0, 1).contiguous()[:, None]


def _none(x: Tensor) -> Tensor:
    """Return keys or values of an empty prefix."""
    return x.new_empty(x.shape[1], 0, x.shape[2])


def _whole(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    alike = len(q) == len(k)
    seen = None if alike else torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).tril(len(k) - len(q))
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=alike, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)
