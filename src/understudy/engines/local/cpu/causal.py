"""Causal attention from a sequence's last tokens to the whole sequence, forward and backward.

In bfloat16 on a CPU it works on chunks of queries, each with the keys that it sees, with the products of `attention`.
There PyTorch's kernel takes 1.5 times as long, and 3 times as long for gradients, which it sums in bfloat16. Elsewhere
PyTorch's kernel is used.

Shapes: queries [M, Hq, d] of the last M of P tokens, keys and values [P, H, d]. The result is [M, Hq, d].
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.engines.local.attention import attend, attend_backward
from understudy.engines.local.cpu import kernel_library, kernels

QUERY_CHUNK = 128
"""Queries per chunk. Only the scores of one chunk are in memory at a time."""


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Return causal attention of the queries, [M, Hq, d]."""
    if not _in_strips(q):
        return _whole(q, k, v, scale)
    keys, values, none = _heads_first(k), _heads_first(v), _none(k)
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    for index, seen, limits in _strips(len(q), len(k), group):
        queries, own = kernels.gather_heads(q, index, group), (keys[:, :, :seen], values[:, :, :seen])
        result = attend(queries, none, none, *own, limits, scale)[0]
        kernels.scatter_heads_(out, index[0], result, torch.arange(index.shape[1]), group)
    return out


def causal_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v. This repeats the forward pass instead of storing scores."""
    if not _in_strips(q):
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        with torch.enable_grad():
            out = _whole(q, k, v, scale)
        return torch.autograd.grad(out, (q, k, v), grad)  # type: ignore[return-value]
    keys, values, none = _heads_first(k), _heads_first(v), _none(k)
    group = q.shape[1] // k.shape[1]
    grad_q = torch.empty_like(q)
    grad_k, grad_v = (torch.zeros_like(keys[:, 0], dtype=torch.float32) for _ in range(2))
    for index, seen, limits in _strips(len(q), len(k), group):
        args = kernels.gather_heads(q, index, group), none, none, keys[:, :, :seen], values[:, :, :seen]
        out, weights = attend(*args, limits, scale)
        gradients = attend_backward(kernels.gather_heads(grad, index, group), out, weights, *args, scale)
        kernels.scatter_heads_(grad_q, index[0], gradients.q, torch.arange(index.shape[1]), group)
        grad_k[:, :seen] += gradients.k[:, 0]
        grad_v[:, :seen] += gradients.v[:, 0]
    return grad_q, grad_k.transpose(0, 1), grad_v.transpose(0, 1)


def _in_strips(q: Tensor) -> bool:
    return q.is_cpu and q.dtype == torch.bfloat16 and kernel_library.kernels_available(q.dtype)


def _strips(queries: int, tokens: int, group: int) -> Iterator[tuple[Tensor, int, Tensor]]:
    """Yield for each chunk its queries [1, L], the maximum number of visible tokens, and the number per query [1, G *
    L]."""
    for start in range(0, queries, QUERY_CHUNK):
        index = torch.arange(start, min(start + QUERY_CHUNK, queries))[None]
        limits = (index + tokens - queries + 1).int()
        yield index, int(limits[0, -1]), limits.repeat(1, group)


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
