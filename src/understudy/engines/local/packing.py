"""Memory layout of a microbatch: one flat sequence of tokens without padding, with every shared prefix stored once.

Rows are sorted, so the longest prefix that a row shares with any earlier row is the one it shares with the row before.
Those tokens reuse the positions of the earlier row, and only the others are appended. Everything in a transformer but
attention works on single tokens, so the model runs on the flat sequence [1, N] unchanged. A token that eight episodes
share is one token in every matrix product, forward and backward, and its gradient is the sum over the eight.

There are two layouts. On a GPU, `TreeLayout` computes attention in one kernel, with memory that grows with the number
of tokens. `PackedLayout` does the same on a CPU where the C kernels fit. Elsewhere it splits the flat queries, keys and
values again. A prefix attends to itself. The rows with that prefix attend to [prefix | rest of the row] in blocks of
similar length. Rows are padded to the longest of their block in attention only. Keys that rows share beyond the prefix
are gathered for each row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from understudy.algorithms.batch import Batch, common_prefix_lengths, partition_by_prefix
from understudy.engines.local.attention import (
    AttentionSpec,
    Visible,
    attend,
    attend_backward,
    attention_weights,
)
from understudy.engines.local.cpu import kernels
from understudy.engines.local.cpu.causal import causal_attention, causal_attention_backward
from understudy.engines.local.transfers import to_device
from understudy.engines.local.tree_attention import BLOCK, MIN_TOKENS, attend_tree, tree_mask

MAX_PADDING = 0.1  # maximum share of padding in a block, relative to its longest row


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """Rows of similar length: flat positions of their queries and keys."""

    first: int
    """The least of `row_positions`."""
    index: Tensor  # [b, L] flat positions of the tokens to compute; padding repeats the row's last
    row_positions: Tensor  # [b, L] positions of these tokens in their rows
    valid_mask: Tensor  # [b, L] bool
    positions: Tensor  # [n] flat positions of the tokens to compute, without padding
    places: Tensor  # [n] places of those tokens in the flattened block [b * L]; an index, because masks stop a GPU
    keys: Tensor  # [b, K] flat positions of the row's tokens after the prefix; padding repeats the last


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """A prefix that rows share, and the blocks of those rows."""

    prefix: Tensor  # [P] flat positions
    num_known: int
    """Number of prefix tokens that another group computes."""
    blocks: tuple[PackedBlock, ...]


def pack_rows(batch: Batch, rows: Sequence[int], device: torch.device) -> "PackedLayout | TreeLayout":
    """Return the layout of a microbatch for a device. `rows` are row indices in sorted order, as from
    `plan_microbatches`."""
    return (TreeLayout if device.type == "cuda" else PackedLayout)(batch, rows, device)


class FlatRows:
    """The tokens of rows in one flat sequence of N tokens, on the CPU."""

    def __init__(self, batch: Batch, rows: Sequence[int]) -> None:
        """`rows` are row indices in sorted order, as from `plan_microbatches`."""
        tokens = [batch.tokens[row, : batch.lengths[row]] for row in rows]
        self.texts = [row.tolist() for row in tokens]
        self.known = [0, *common_prefix_lengths(self.texts)]
        """For each row, the number of tokens that an earlier row computes."""
        fresh = list(zip(tokens, self.known, strict=True))
        self.tokens = torch.cat([row[known:] for row, known in fresh])  # [N]
        self.positions = torch.cat([torch.arange(known, len(row)) for row, known in fresh])  # [N]
        self.places: list[Tensor] = []
        """For each row, the flat positions of its tokens: those of the row before for the common prefix, then new
        ones."""
        self.subtree_end = torch.full(self.tokens.shape, len(self.tokens), dtype=torch.int32)
        """[N] For each token, the first later flat position of a token that does not come after it in a row."""
        size = 0
        for text, known in zip(self.texts, self.known, strict=True):
            fresh_places = torch.arange(size, size + len(text) - known)
            if self.places:
                self.subtree_end[self.places[-1][known:]] = size
                fresh_places = torch.cat([self.places[-1][:known], fresh_places])
            self.places.append(fresh_places)
            size += len(text) - known


class TreeLayout:
    """Layout of one microbatch as a tree, for `tree_attention`. The model's attention modules call `attend`.

    The flat sequence is padded to a multiple of 128 tokens. A padding token sees only itself.
    """

    def __init__(self, batch: Batch, rows: Sequence[int], device: torch.device) -> None:
        """`rows` are row indices in sorted order, as from `plan_microbatches`."""
        flat = FlatRows(batch, rows)
        self.num_tokens = len(flat.tokens)  # without padding
        padding = max(MIN_TOKENS, -(-self.num_tokens // BLOCK) * BLOCK) - self.num_tokens
        own_ends = torch.arange(self.num_tokens, self.num_tokens + padding, dtype=torch.int32) + 1
        self.places = _padded(flat.places)  # [R, T] flat positions of each row's tokens, padded
        self.tokens, self.positions = (
            to_device(F.pad(x, (0, padding))[None], device) for x in (flat.tokens, flat.positions)
        )  # [1, N]
        self._subtree_end, self._device = torch.cat([flat.subtree_end, own_ends]), device
        self._row_positions = F.pad(flat.positions, (0, padding))
        self._masks: dict[tuple[int, int], BlockMask] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Return causal attention [N, Hq, dv] of queries [N, Hq, d] over keys [N, H, d] and values [N, H, dv]."""
        return attend_tree(q, k, v, self.mask(spec), spec)

    def mask(self, spec: AttentionSpec) -> BlockMask:
        """Return the mask for a window or chunks, made once."""
        kind = spec.window, spec.chunk
        if kind not in self._masks:
            self._masks[kind] = tree_mask(self._subtree_end, self._row_positions, spec, self._device)
        return self._masks[kind]


class PackedLayout:
    """Layout of one microbatch in blocks. The model's attention modules call `attend`."""

    def __init__(self, batch: Batch, rows: Sequence[int], device: torch.device) -> None:
        """`rows` are row indices in sorted order, as from `plan_microbatches`."""
        self._device = device
        flat = FlatRows(batch, rows)
        self._known, self._places = flat.known, flat.places
        self._subtree_end, self._row_positions = flat.subtree_end, flat.positions.int()
        self.num_tokens = len(flat.tokens)
        self.places = _padded(flat.places)  # [R, T] flat positions of each row's tokens, padded
        self.tokens, self.positions = (to_device(x[None], device) for x in (flat.tokens, flat.positions))  # [1, N]
        self._texts = flat.texts

    @cached_property
    def prefix_groups(self) -> tuple[PrefixGroup, ...]:
        """The rows by their common prefixes, for attention without the kernels."""
        parts = partition_by_prefix(self._texts, [len(text) for text in self._texts])
        return tuple(self._piece(part.rows, part.prefix_length) for part in parts)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Return causal attention [N, Hq, dv] of queries [N, Hq, d] over keys [N, H, d] and values [N, H, dv]."""
        if kernels.fits_tree_attention(q, k, v):
            window = (self._row_positions, spec.first_visible(self._row_positions)) if spec.is_local else None
            scores = kernels.TreeScores(spec.scale, self._subtree_end, window, spec.softcap)
            return CpuTreeAttention.apply(q, k, v, spec.sinks, scores)  # type: ignore[no-any-return, no-untyped-call]
        return PackedAttention.apply(q, k, v, spec.sinks, self, spec)  # type: ignore[no-any-return, no-untyped-call]

    def _piece(self, rows: Sequence[int], prefix: int) -> PrefixGroup:
        """Return the group of rows with a common prefix. Rows without further tokens to compute are in no block."""
        known = min(prefix, self._known[rows[0]])
        first = {row: max(prefix, self._known[row]) for row in rows}
        own = {row: len(self._places[row]) - first[row] for row in rows}
        blocks: list[list[int]] = []
        for row in sorted((row for row in rows if own[row]), key=lambda r: -own[r]):
            if not blocks or own[row] < (1 - MAX_PADDING) * own[blocks[-1][0]]:
                blocks.append([])
            blocks[-1].append(row)
        shared = to_device(self._places[rows[0]][:prefix], self._device)
        return PrefixGroup(shared, known, tuple(self._block(block, prefix, first) for block in blocks))

    def _block(self, rows: Sequence[int], prefix: int, first: Mapping[int, int]) -> PackedBlock:
        keys = [self._places[row][prefix:] for row in rows]
        own = [self._places[row][first[row] :] for row in rows]
        lengths = torch.tensor([len(places) for places in own])[:, None]
        column = torch.arange(int(lengths.max()))[None]
        starts = torch.tensor([first[row] for row in rows])[:, None]
        index, valid, at = _padded(own), column < lengths, starts + column.minimum(lengths - 1)
        places = valid.flatten().nonzero()[:, 0]
        parts = index, at, valid, index[valid], places, _padded(keys)
        return PackedBlock(int(starts.min()), *(to_device(part, self._device) for part in parts))


def _padded(rows: Sequence[Tensor]) -> Tensor:
    """Return rows of flat positions as [b, longest], padded by repeating the last position of each row."""
    longest = max(map(len, rows))
    return torch.stack([torch.cat([row, row[-1:].expand(longest - len(row))]) for row in rows])


class CpuTreeAttention(torch.autograd.Function):
    """Attention over a tree of tokens by one call of the C kernels. It stores a number per query head and token."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scores: kernels.TreeScores
    ) -> Tensor:
        out, lse = kernels.tree_attention(q, k, v, scores, sinks)
        ctx.save_for_backward(out, lse, q, k, v, sinks)
        ctx.scores = scores
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        out, lse, q, k, v, sinks = ctx.saved_tensors
        return *kernels.tree_attention_backward(grads[0], out, lse, q, k, v, ctx.scores, sinks), None


class PackedAttention(torch.autograd.Function):
    """Attention over a packed layout. It gathers and scatters flat tensors, so no padded copy enters the graph.

    The backward pass computes the probabilities again. Storing them would take more memory than all else in long
    episodes, and save hardly any time.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, packing: PackedLayout, spec: AttentionSpec
    ) -> Tensor:
        out = q.new_empty(*q.shape[:2], v.shape[2])
        group = q.shape[1] // k.shape[1]
        for piece in packing.prefix_groups:
            prefix_k, prefix_v = k[piece.prefix], v[piece.prefix]
            if len(fresh := piece.prefix[piece.num_known :]):
                out[fresh] = causal_attention(q[fresh], prefix_k, prefix_v, spec)
            shared = _heads_first(prefix_k), _heads_first(prefix_v)
            for block in piece.blocks:
                unseen, keys, visible = _seen_keys(piece, block, spec)
                queries = kernels.gather_heads(q, block.index, group)
                shared_k, shared_v = (x[:, unseen:] for x in shared)
                result, _ = attend(queries, shared_k, shared_v, *_rows(k, v, keys), visible, spec)
                kernels.scatter_heads_(out, block.positions, result, block.places, group)
        ctx.save_for_backward(q, k, v, out)
        ctx.packing, ctx.spec = packing, spec
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        q, k, v, out = ctx.saved_tensors
        packing: PackedLayout = ctx.packing
        spec: AttentionSpec = ctx.spec
        grad = grads[0].contiguous()
        grad_q = torch.empty_like(q)
        group = q.shape[1] // k.shape[1]
        sums = GradientSums(q, k, v)
        for piece in packing.prefix_groups:
            prefix_k, prefix_v = k[piece.prefix], v[piece.prefix]
            shared = _heads_first(prefix_k), _heads_first(prefix_v)
            for block in piece.blocks:
                at = block.index, group
                unseen, keys, visible = _seen_keys(piece, block, spec)
                queries, rows = kernels.gather_heads(q, *at), _rows(k, v, keys)
                shared_k, shared_v = (x[:, unseen:] for x in shared)
                weights = attention_weights(queries, shared_k, rows[0], visible, spec)
                wanted, result = kernels.gather_heads(grad, *at, block.valid_mask), kernels.gather_heads(out, *at)
                g = attend_backward(wanted, result, weights, queries, shared_k, shared_v, *rows, spec)
                kernels.scatter_heads_(grad_q, block.positions, g.q, block.places, group)
                sums.add(piece.prefix[None, unseen:], g.prefix_k[:, None], g.prefix_v[:, None])
                sums.add(keys, g.k, g.v)
                sums.sinks += g.sinks
            if len(fresh := piece.prefix[piece.num_known :]):
                grad_q[fresh], grad_k, grad_v, grad_sinks = causal_attention_backward(
                    grad[fresh], q[fresh], prefix_k, prefix_v, spec
                )
                sums.add_prefix(piece.prefix, grad_k, grad_v)
                sums.sinks += grad_sinks
        sinks = None if spec.sinks is None else sums.sinks.to(spec.sinks.dtype)
        return grad_q, sums.k.to(k.dtype), sums.v.to(v.dtype), sinks, None, None


class GradientSums:
    """Gradients of flat keys and values and of the sinks in float32, summed over all rows that contain a key."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.k, self.v = (torch.zeros_like(x, dtype=torch.float32) for x in (k, v))
        self.sinks = q.new_zeros(q.shape[1], dtype=torch.float32)

    def add(self, index: Tensor, k: Tensor, v: Tensor) -> None:
        """Add [H, b, K, d] at flat positions [b, K], which may repeat."""
        kernels.add_heads_(self.k, index, k)
        kernels.add_heads_(self.v, index, v)

    def add_prefix(self, index: Tensor, k: Tensor, v: Tensor) -> None:
        """Add [P, H, d] at flat positions [P]. These may be fp32, for which a bf16 run has compiled no kernels."""
        self.k.index_add_(0, index, k.float())
        self.v.index_add_(0, index, v.float())


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous()


def _seen_keys(piece: PrefixGroup, block: PackedBlock, spec: AttentionSpec) -> tuple[int, Tensor, Visible]:
    """Leave out the keys that no query of a block sees.

    Return how many first ones of the prefix these are, the flat positions of the rows' other keys after the prefix [b,
    K], and which of all these keys each query sees.
    """
    unseen = max(0, spec.first_visible(block.first))
    of_prefix = min(unseen, len(piece.prefix))
    return of_prefix, block.keys[:, unseen - of_prefix :], spec.visible(block.row_positions, unseen)


def _rows(k: Tensor, v: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values at flat positions [b, K], [H, b, K, d]."""
    return kernels.gather_heads(k, index, 1), kernels.gather_heads(v, index, 1)
