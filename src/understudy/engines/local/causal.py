"""Causal attention of a sequence's last tokens to all of it, forward and backward.

In bfloat16 on a CPU it is done in strips of queries, each with the keys that it sees, by the products of `attention`:
PyTorch's kernel takes half as long again there, and three times as long for gradients, which it sums in bfloat16.
Elsewhere it is PyTorch's.

Shapes: queries [M, Hq, d] of the last M of P tokens, keys and values [P, H, d]; the result is [M, Hq, d].
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.engines.local import compiled
from understudy.engines.local.attention import attend, fold, gradients, unfold

STRIP = 128
"""Queries at a time; scores of a strip are all that is kept of any."""


def causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Each query's weighted sum of the values up to its own."""
    if not _in_strips(q):
        return _whole(q, k, v, scale)
    keys, values, none = _heads_first(k), _heads_first(v), _none(k)
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    for index, seen, limits in _strips(len(q), len(k), group):
        own = keys[:, :, :seen], values[:, :, :seen]
        out[index[0]] = unfold(attend(fold(q, index, group), none, none, *own, limits, scale)[0], group)[0]
    return out


def causal_gradients(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """The backward pass of `causal`, through a second forward pass, so that no scores are kept between the two."""
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
        args = fold(q, index, group), none, none, keys[:, :, :seen], values[:, :, :seen]
        out, weights = attend(*args, limits, scale)
        found = gradients(fold(grad, index, group), out, weights, *args, scale)
        grad_q[index[0]] = unfold(found.q, group)[0]
        grad_k[:, :seen] += found.k[:, 0]
        grad_v[:, :seen] += found.v[:, 0]
    return grad_q, grad_k.transpose(0, 1), grad_v.transpose(0, 1)


def _in_strips(q: Tensor) -> bool:
    return q.is_cpu and q.dtype == torch.bfloat16 and compiled.available(q.dtype)


def _strips(queries: int, tokens: int, group: int) -> Iterator[tuple[Tensor, int, Tensor]]:
    """Of each strip which queries it has, [1, L], the most tokens that they see, and how many each does, [1, G * L]."""
    for start in range(0, queries, STRIP):
        index = torch.arange(start, min(start + STRIP, queries))[None]
        limits = (index + tokens - queries + 1).int()
        yield index, int(limits[0, -1]), limits.repeat(1, group)


def _heads_first(x: Tensor) -> Tensor:
    """Flat [P, H, d] as those of one row, [H, 1, P, d]."""
    return x.transpose(0, 1).contiguous()[:, None]


def _none(x: Tensor) -> Tensor:
    """Keys or values of no prefix."""
    return x.new_empty(x.shape[1], 0, x.shape[2])


def _whole(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    alike = len(q) == len(k)
    seen = None if alike else torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).tril(len(k) - len(q))
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=alike, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)
