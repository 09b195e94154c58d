"""Attention over [prefix shared by many rows | own tokens of each row], forward and backward.

The prefix's keys are multiplied once for all rows, in one matrix product. Query heads that share a key head are folded
into the length. Rows that follow a prefix are prefilled with it, and training uses it where neither a kernel for CPUs
nor one for GPUs fits.

Shapes: H key heads, b rows, L queries per row, G query heads per key head, P prefix tokens, K own tokens, d and dv
sizes of a key and of a value. Queries [H, b, G * L, d], prefix keys [H, P, d] and values [H, P, dv], own keys [H, b, K,
d] and values [H, b, K, dv]. The result is [H, b, G * L, dv].
"""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from understudy.engines.local.cpu import kernels

MAX_SCORES = 1 << 26
"""Scores that `attend_in_parts` stores at once on a GPU."""
_Position = TypeVar("_Position", int, Tensor)


class Visible(NamedTuple):
    """The columns of [prefix | own] that queries see: from `starts` on, and before `stops`, both int32 [b, L]."""

    starts: Tensor | None
    """None if all see the first one."""
    stops: Tensor


class AttentionSpec(NamedTuple):
    """How the attention of a layer weighs tokens, and which of the tokens before it a token sees."""

    scale: float
    """The factor of the products of queries and keys."""
    softcap: float = 0.0
    """Scores s become softcap * tanh(s / softcap) (Gemma 2, arXiv:2408.00118), or stay if it is 0."""
    window: int = 0
    """A token sees itself and the window - 1 tokens before it, or all before it if this is 0."""
    chunk: int = 0
    """A token sees those of its chunk, of which the first one begins at position 0, or all before it if this is 0."""
    sinks: Tensor | None = None
    """[Hq] the score of one more token that has the value 0 (attention sinks, as in gpt-oss)."""

    def visible(self, positions: Tensor, skipped: int = 0) -> Visible:
        """Return the columns that queries at positions [b, L] of their rows see, without the first `skipped` ones."""
        starts = (self.first_visible(positions) - skipped).int() if self.is_local else None
        return Visible(starts, (positions + (1 - skipped)).int())

    def first_visible(self, position: _Position) -> _Position:
        """Return the first position that a token at a position sees. It may be negative."""
        if self.chunk:
            return position // self.chunk * self.chunk
        return position - self.window + 1 if self.window else position * 0

    @property
    def is_local(self) -> bool:
        """Whether a token does not see all tokens before it."""
        return bool(self.window or self.chunk)

    @property
    def is_plain(self) -> bool:
        """Whether this is scaled causal attention and nothing else."""
        return not (self.softcap or self.is_local) and self.sinks is None


class AttentionShape(NamedTuple):
    """The sizes of a layer's attention, and its spec without sinks."""

    query_heads: int
    key_heads: int
    dim: int
    value_dim: int
    spec: AttentionSpec
    has_sinks: bool


class AttentionWeights(NamedTuple):
    """Attention probabilities or their gradients."""

    prefix: Tensor  # [H, b, G * L, P]
    own: Tensor  # [H, b, G * L, K]
    sinks: Tensor | None = None  # [H, b, G, L] fp32


class AttentionGradients(NamedTuple):
    """Gradients of the inputs of `attend`."""

    q: Tensor
    prefix_k: Tensor
    prefix_v: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor | float
    """0 without sinks."""


def attend(
    q: Tensor, prefix_k: Tensor, prefix_v: Tensor, k: Tensor, v: Tensor, visible: Visible, spec: AttentionSpec
) -> tuple[Tensor, AttentionWeights]:
    """Return the result and the probabilities that `attend_backward` needs."""
    weights = attention_weights(q, prefix_k, k, visible, spec)
    return _weighted_sum(weights, prefix_v, v), weights


def attention_weights(
    q: Tensor, prefix_k: Tensor, k: Tensor, visible: Visible, spec: AttentionSpec
) -> AttentionWeights:
    """Return the probabilities of `attend`."""
    prefix, own, _ = _products(q, prefix_k, k)
    sinks = None
    if spec.sinks is not None:
        rows, length = visible.stops.shape
        sinks = spec.sinks.detach().float().view(len(q), 1, -1, 1).repeat(1, rows, 1, length)
    limits = visible.stops - prefix.shape[-1]
    kernels.joint_softmax_(prefix, own, limits, spec.scale, visible.starts, spec.softcap, sinks)
    return AttentionWeights(prefix, own, sinks)


def attend_in_parts(
    q: Tensor, prefix_k: Tensor, prefix_v: Tensor, k: Tensor, v: Tensor, visible: Visible, spec: AttentionSpec
) -> Tensor:
    """Return the result of `attend`. On a GPU, compute it for some of the L queries at a time.

    So the memory for scores does not grow with the square of a prompt's length. On a CPU it would change the rounding.
    """
    heads, rows, _, dim = q.shape
    starts, stops = visible
    length = stops.shape[1]
    part = _queries_at_once(q, length, prefix_k.shape[1] + k.shape[2])
    if part >= length:
        return attend(q, prefix_k, prefix_v, k, v, visible, spec)[0]
    queries = q.view(heads, rows, -1, length, dim)
    found = []
    for at in range(0, length, part):
        now = slice(at, at + part)
        seen = Visible(None if starts is None else starts[:, now], stops[:, now])
        result, _ = attend(queries[:, :, :, now].flatten(2, 3), prefix_k, prefix_v, k, v, seen, spec)
        found.append(result.view(heads, rows, -1, seen.stops.shape[1], result.shape[-1]))
    return torch.cat(found, 3).flatten(2, 3)


def attend_backward(
    grad: Tensor,
    out: Tensor,
    weights: AttentionWeights,
    q: Tensor,
    prefix_k: Tensor,
    prefix_v: Tensor,
    k: Tensor,
    v: Tensor,
    spec: AttentionSpec,
) -> AttentionGradients:
    """Return the gradients of `attend` for a gradient [H, b, G * L, dv] of its result."""
    delta = kernels.row_dot(grad, out)
    grad_prefix_v, grad_v = _weighted_sum_backward(weights, grad)
    scores = _products(grad, prefix_v, v)
    kernels.joint_softmax_backward_(scores.prefix, scores.own, weights.prefix, weights.own, delta, spec.scale)
    if spec.softcap:
        for each, product in zip(scores[:2], _products(q, prefix_k, k)[:2], strict=True):
            each *= 1 - torch.tanh(product * (spec.scale / spec.softcap)).square()
    sinks: Tensor | float = 0.0
    if weights.sinks is not None:
        sinks = -(weights.sinks * delta.view_as(weights.sinks)).sum((1, 3)).flatten()
    grad_prefix_k, grad_k = _weighted_sum_backward(scores, q)
    return AttentionGradients(_weighted_sum(scores, prefix_k, k), grad_prefix_k, grad_prefix_v, grad_k, grad_v, sinks)


def _queries_at_once(q: Tensor, length: int, keys: int) -> int:
    heads, rows, queries, _ = q.shape
    return length if q.is_cpu else max(1, MAX_SCORES * length // (heads * rows * queries * keys))


def _products(x: Tensor, prefix: Tensor, own: Tensor) -> AttentionWeights:
    """Return x times the transposed keys (or values) of the prefix and of the rows."""
    heads, rows, queries, dim = x.shape
    shared = torch.bmm(x.reshape(heads, rows * queries, dim), prefix.transpose(1, 2))
    return AttentionWeights(shared.view(heads, rows, queries, -1), torch.matmul(x, own.transpose(2, 3)))


def _weighted_sum(weights: AttentionWeights, prefix: Tensor, own: Tensor) -> Tensor:
    """Return the weighted sum over the prefix and the row's own tokens, [H, b, G * L, d]."""
    heads, rows, queries, _ = weights.own.shape
    result = torch.matmul(weights.own, own)
    if prefix.shape[1]:
        flat = weights.prefix.reshape(heads, rows * queries, -1)
        result += torch.bmm(flat, prefix).view(result.shape)
    return result


def _weighted_sum_backward(weights: AttentionWeights, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the transpose of `_weighted_sum`: sums over the queries for each key, [H, P, d] and [H, b, K, d]."""
    heads, rows, queries, dim = x.shape
    flat = weights.prefix.reshape(heads, rows * queries, -1)
    shared = torch.bmm(flat.transpose(1, 2), x.reshape(heads, rows * queries, dim))
    return shared, torch.matmul(weights.own.transpose(2, 3), x)
