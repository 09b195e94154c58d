"""Attention over [prefix shared by many rows | own tokens of each row], forward and backward.

The prefix's keys are multiplied once for all rows, in one matrix product. Query heads that share a key head are folded
into the length. Training, prefill and decoding use the same products, so sampler and trainer round alike.

Shapes: H key heads, b rows, M queries per row (query heads of a group x positions), P prefix tokens, L own tokens, d
head dimension. Queries [H, b, M, d], prefix keys and values [H, P, d], own keys and values [H, b, L, d]. `limits` [b,
M] is the number of own tokens that each query sees (the causal mask). The result is [H, b, M, d].
"""

from typing import NamedTuple

import torch
from torch import Tensor

from understudy.engines.local.cpu import kernels

MAX_SCORES = 1 << 26
"""Scores that `attend_in_parts` stores at once on a GPU."""


class AttentionWeights(NamedTuple):
    """Attention probabilities or their gradients."""

    prefix: Tensor  # [H, b, M, P]
    own: Tensor  # [H, b, M, L]


class AttentionGradients(NamedTuple):
    """Gradients of the inputs of `attend`."""

    q: Tensor
    prefix_k: Tensor
    prefix_v: Tensor
    k: Tensor
    v: Tensor


def attend(
    q: Tensor, prefix_k: Tensor, prefix_v: Tensor, k: Tensor, v: Tensor, limits: Tensor, scale: float
) -> tuple[Tensor, AttentionWeights]:
    """Return the result and the probabilities that `attend_backward` needs."""
    weights = attention_weights(q, prefix_k, k, limits, scale)
    return _weighted_sum(weights, prefix_v, v), weights


def attention_weights(q: Tensor, prefix_k: Tensor, k: Tensor, limits: Tensor, scale: float) -> AttentionWeights:
    """Return the probabilities of `attend`."""
    weights = _products(q, prefix_k, k)
    kernels.joint_softmax_(weights.prefix, weights.own, limits, scale)
    return weights


def attend_in_parts(
    q: Tensor, prefix_k: Tensor, prefix_v: Tensor, k: Tensor, v: Tensor, limits: Tensor, scale: float
) -> Tensor:
    """Return the result of `attend`. On a GPU, compute it for some of the M queries at a time.

    So the memory for scores does not grow with the square of a prompt's length. On a CPU it would change the rounding.
    """
    part = _queries_at_once(q, prefix_k.shape[1] + k.shape[2])
    found = [
        attend(x, prefix_k, prefix_v, k, v, seen, scale)[0]
        for x, seen in zip(torch.split(q, part, 2), torch.split(limits, part, 1), strict=True)
    ]
    return torch.cat(found, 2) if len(found) > 1 else found[0]


def attend_backward(
    grad: Tensor,
    out: Tensor,
    weights: AttentionWeights,
    q: Tensor,
    prefix_k: Tensor,
    prefix_v: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
) -> AttentionGradients:
    """Return the gradients of `attend` for a gradient [H, b, M, d] of its result."""
    delta = kernels.row_dot(grad, out)
    grad_prefix_v, grad_v = _weighted_sum_backward(weights, grad)
    scores = _products(grad, prefix_v, v)
    kernels.joint_softmax_backward_(scores.prefix, scores.own, weights.prefix, weights.own, delta, scale)
    grad_prefix_k, grad_k = _weighted_sum_backward(scores, q)
    return AttentionGradients(_weighted_sum(scores, prefix_k, k), grad_prefix_k, grad_prefix_v, grad_k, grad_v)


def _queries_at_once(q: Tensor, keys: int) -> int:
    heads, rows, queries, _ = q.shape
    return queries if q.is_cpu else max(1, MAX_SCORES // (heads * rows * keys))


def _products(x: Tensor, prefix: Tensor, own: Tensor) -> AttentionWeights:
    """Return x times the transposed keys (or values) of the prefix and of the rows."""
    heads, rows, queries, dim = x.shape
    shared = torch.bmm(x.reshape(heads, rows * queries, dim), prefix.transpose(1, 2))
    return AttentionWeights(shared.view(heads, rows, queries, -1), torch.matmul(x, own.transpose(2, 3)))


def _weighted_sum(weights: AttentionWeights, prefix: Tensor, own: Tensor) -> Tensor:
    """Return the weighted sum over the prefix and the row's own tokens, [H, b, M, d]."""
    heads, rows, queries, _ = weights.own.shape
    result = torch.matmul(weights.own, own)
    if prefix.shape[1]:
        flat = weights.prefix.reshape(heads, rows * queries, -1)
        result += torch.bmm(flat, prefix).view(result.shape)
    return result


def _weighted_sum_backward(weights: AttentionWeights, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the transpose of `_weighted_sum`: sums over the queries for each key, [H, P, d] and [H, b, L, d]."""
    heads, rows, queries, dim = x.shape
    flat = weights.prefix.reshape(heads, rows * queries, -1)
    shared = torch.bmm(flat.transpose(1, 2), x.reshape(heads, rows * queries, dim))
    return shared, torch.matmul(weights.own.transpose(2, 3), x)
