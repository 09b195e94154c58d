"""Attention over [prefix shared by many rows | own tokens of each row], without gradients, for the sampler's prefill.

The prefix's keys are multiplied once for all rows, in one matrix product. Query heads that share a key head are folded
into the length.

Shapes: H key heads, b rows, L queries per row, G query heads per key head, P prefix tokens, K own tokens, d and dv
sizes of a key and of a value. Queries [H, b, G * L, d], prefix keys [H, P, d] and values [H, P, dv], own keys [H, b, K,
d] and values [H, b, K, dv]. The result is [H, b, G * L, dv].
"""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from understudy.engines.local.cpu import kernels

MAX_SCORES = 1 << 26
"""Scores that `attend` stores at once on a GPU."""
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


def attend(
    q: Tensor, prefix_k: Tensor, prefix_v: Tensor, k: Tensor, v: Tensor, visible: Visible, spec: AttentionSpec
) -> Tensor:
    """Return the result. On a GPU, compute it for some of the L queries at a time.

    So the memory for scores does not grow with the square of a prompt's length. On a CPU it would change the rounding.
    """
    heads, rows, _, dim = q.shape
    starts, stops = visible
    length = stops.shape[1]
    part = _queries_at_once(q, length, prefix_k.shape[1] + k.shape[2])
    if part >= length:
        return _attend(q, prefix_k, prefix_v, k, v, visible, spec)
    queries = q.view(heads, rows, -1, length, dim)
    found = []
    for at in range(0, length, part):
        now = slice(at, at + part)
        seen = Visible(None if starts is None else starts[:, now], stops[:, now])
        result = _attend(queries[:, :, :, now].flatten(2, 3), prefix_k, prefix_v, k, v, seen, spec)
        found.append(result.view(heads, rows, -1, seen.stops.shape[1], result.shape[-1]))
    return torch.cat(found, 3).flatten(2, 3)


def _queries_at_once(q: Tensor, length: int, keys: int) -> int:
    heads, rows, queries, _ = q.shape
    return length if q.is_cpu else max(1, MAX_SCORES * length // (heads * rows * queries * keys))


def _attend(
    q: Tensor, prefix_k: Tensor, prefix_v: Tensor, k: Tensor, v: Tensor, visible: Visible, spec: AttentionSpec
) -> Tensor:
    heads, rows, queries, _ = q.shape
    flat = q.reshape(heads, rows * queries, -1)
    prefix = torch.bmm(flat, prefix_k.transpose(1, 2)).view(heads, rows, queries, -1)
    own = torch.matmul(q, k.transpose(2, 3))
    sinks = None
    if spec.sinks is not None:
        sinks = spec.sinks.float().view(heads, 1, -1, 1).repeat(1, rows, 1, visible.stops.shape[1])
    limits = visible.stops - prefix.shape[-1]
    kernels.joint_softmax_(prefix, own, limits, spec.scale, visible.starts, spec.softcap, sinks)
    result = torch.matmul(own, v)
    if prefix_v.shape[1]:
        result += torch.bmm(prefix.view(heads, rows * queries, -1), prefix_v).view(result.shape)
    return result
