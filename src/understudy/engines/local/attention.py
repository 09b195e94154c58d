"""Attention over [a prefix that many rows share | what each row has of its own], forward and backward.

The prefix's keys are multiplied once for all rows, as one matrix product; query heads that share a key head are folded
into the length. The same products serve training, prefill and decoding, so that sampler and trainer compute alike.

Shapes: H key heads, b rows, M queries a row (query heads of a group x positions), P prefix tokens, L own tokens, d head
dimension. Queries [H, b, M, d], prefix keys and values [H, P, d], own keys and values [H, b, L, d]; `limits` [b, M]
says how many of its own tokens each query sees (the causal mask). The result is [H, b, M, d].
"""

from typing import NamedTuple

import torch
from torch import Tensor

from understudy.engines.local import kernels


class Weights(NamedTuple):
    """Attention probabilities, or their gradients."""

    prefix: Tensor  # [H, b, M, P]
    own: Tensor  # [H, b, M, L]


class Gradients(NamedTuple):
    """Gradients of what `attend` was given."""

    q: Tensor
    prefix_k: Tensor
    prefix_v: Tensor
    k: Tensor
    v: Tensor


def attend(
    q: Tensor, prefix_k: Tensor, prefix_v: Tensor, k: Tensor, v: Tensor, limits: Tensor, scale: float
) -> tuple[Tensor, Weights]:
    """The result, and the probabilities that `gradients` needs."""
    weights = _products(q, prefix_k, k)
    kernels.joint_softmax_(weights.prefix, weights.own, limits, scale)
    return _weighted(weights, prefix_v, v), weights


def gradients(
    grad: Tensor,
    out: Tensor,
    weights: Weights,
    q: Tensor,
    prefix_k: Tensor,
    prefix_v: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
) -> Gradients:
    """The backward pass of `attend` for a gradient [H, b, M, d] of its result."""
    delta = kernels.row_dot(grad, out)
    grad_prefix_v, grad_v = _gathered(weights, grad)
    scores = _products(grad, prefix_v, v)
    kernels.joint_softmax_backward_(scores.prefix, scores.own, weights.prefix, weights.own, delta, scale)
    grad_prefix_k, grad_k = _gathered(scores, q)
    return Gradients(_weighted(scores, prefix_k, k), grad_prefix_k, grad_prefix_v, grad_k, grad_v)


def fold(x: Tensor, index: Tensor, group: int) -> Tensor:
    """Of flat queries [N, Hq, d] those at positions [b, L], as [H, b, G * L, d]; `group` is G."""
    rows, length = index.shape
    heads = x.shape[1] // group
    taken = x[index].view(rows, length, heads, group, -1).permute(2, 0, 3, 1, 4)
    return taken.reshape(heads, rows, group * length, -1)


def unfold(x: Tensor, group: int) -> Tensor:
    """The inverse of `fold`: [H, b, G * L, d] as [b, L, Hq, d]."""
    heads, rows, _, dim = x.shape
    return x.view(heads, rows, group, -1, dim).permute(1, 3, 0, 2, 4).reshape(rows, -1, heads * group, dim)


def _products(x: Tensor, prefix: Tensor, own: Tensor) -> Weights:
    """x times the keys (or values) of the prefix and of the rows, transposed."""
    heads, rows, queries, dim = x.shape
    shared = torch.bmm(x.reshape(heads, rows * queries, dim), prefix.transpose(1, 2))
    return Weights(shared.view(heads, rows, queries, -1), torch.matmul(x, own.transpose(2, 3)))


def _weighted(weights: Weights, prefix: Tensor, own: Tensor) -> Tensor:
    """Weighted sum over the prefix and over the row's own: [H, b, M, d]."""
    heads, rows, queries, _ = weights.own.shape
    result = torch.matmul(weights.own, own)
    if prefix.shape[1]:
        flat = weights.prefix.reshape(heads, rows * queries, -1)
        result += torch.bmm(flat, prefix).view(result.shape)
    return result


def _gathered(weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    """The transpose of `_weighted`: what each key collects from the queries, [H, P, d] and [H, b, L, d]."""
    heads, rows, queries, dim = x.shape
    flat = weights.prefix.reshape(heads, rows * queries, -1)
    shared = torch.bmm(flat.transpose(1, 2), x.reshape(heads, rows * queries, dim))
    return shared, torch.matmul(weights.own.transpose(2, 3), x)
