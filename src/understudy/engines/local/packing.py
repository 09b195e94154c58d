"""How a micro-batch lies in memory: one flat sequence of tokens without padding, where no beginning of rows is twice.

Rows come sorted, so that each has in common with the one before what it has in common with any before it: those tokens
lie where they lie for that row, and only the others are laid down anew. Everything in a transformer but attention works
on single tokens, so a model runs on the flat sequence [1, N] as it is, and a token that eight episodes share is one
token in every matrix product, forward and backward; its gradient collects what all of them want of it.

Attention takes the flat queries, keys and values apart: a prefix attends to itself, and the rows that begin with it, in
blocks of similar length, attend to [prefix | the rest of the row]. A block's rows are padded to its longest, which
attention alone sees; keys that rows share beyond the prefix are gathered for each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from understudy.batch import Batch, common_prefixes, shared_prefixes
from understudy.engines.local.attention import Weights, attend, fold, gradients, unfold
from understudy.engines.local.causal import causal, causal_gradients

PADDING = 0.1  # of a block's longest row, at most


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of similar length: where what they compute and what they attend to lies in the flat sequence."""

    index: Tensor  # [b, L] flat positions of the tokens that these rows compute; padding repeats the row's last
    valid: Tensor  # [b, L] bool
    fresh: Tensor  # flat positions of the tokens that these rows compute, without padding
    keys: Tensor  # [b, K] flat positions of the row's tokens after the prefix; padding repeats the last
    limits: Tensor  # [b, G * L] int32: how many of those keys each folded query sees


@dataclass(frozen=True, slots=True)
class Piece:
    """A prefix that rows share, and the blocks of those rows."""

    prefix: Tensor  # [P] flat positions
    known: int
    """How many tokens of the prefix are computed elsewhere."""
    blocks: tuple[Block, ...]


class Packing:
    """The layout of one micro-batch; `attend` is what the model's attention modules call."""

    def __init__(self, batch: Batch, rows: Sequence[int], group: int, device: torch.device) -> None:
        """`rows` are numbers of rows in sorted order, as `plan` gives them.

        `group` is the number of query heads that share a key head.
        """
        self.group, self._device = group, device
        tokens = [batch.tokens[row, : batch.lengths[row]] for row in rows]
        texts = [row.tolist() for row in tokens]
        self._known = [0, *common_prefixes(texts)]  # of each row, how many tokens an earlier one computes
        self._places = self._lay_down([len(text) for text in texts])
        self.places = _padded(self._places)  # [R, T] where each row's tokens lie in the flat sequence; padded
        fresh = list(zip(tokens, self._known, strict=True))
        self.tokens = torch.cat([row[known:] for row, known in fresh])[None].to(device)  # [1, N]
        self.positions = torch.cat([torch.arange(known, len(row)) for row, known in fresh])[None].to(device)  # [1, N]
        self.pieces = tuple(
            self._piece(p.rows, p.prefix) for p in shared_prefixes(texts, [len(text) for text in texts])
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Causal attention of flat queries [N, Hq, d] over flat keys and values [N, H, d]: [N, Hq, d]."""
        return PackedAttention.apply(q, k, v, self, scale)  # type: ignore[no-any-return, no-untyped-call]

    def _lay_down(self, lengths: Sequence[int]) -> list[Tensor]:
        """Flat positions of each row's tokens: those of the row before, as far as they are the same, and new ones."""
        places: list[Tensor] = []
        size = 0
        for length, known in zip(lengths, self._known, strict=True):
            fresh = torch.arange(size, size + length - known)
            places.append(torch.cat([places[-1][:known], fresh]) if places else fresh)
            size += length - known
        return places

    def _piece(self, rows: Sequence[int], prefix: int) -> Piece:
        """Rows that share a prefix; those that compute nothing beyond what is known are in no block."""
        known = min(prefix, self._known[rows[0]])
        first = {row: max(prefix, self._known[row]) for row in rows}
        own = {row: len(self._places[row]) - first[row] for row in rows}
        blocks: list[list[int]] = []
        for row in sorted((row for row in rows if own[row]), key=lambda r: -own[r]):
            if not blocks or own[row] < (1 - PADDING) * own[blocks[-1][0]]:
                blocks.append([])
            blocks[-1].append(row)
        shared = self._places[rows[0]][:prefix].to(self._device)
        return Piece(shared, known, tuple(self._block(block, prefix, first) for block in blocks))

    def _block(self, rows: Sequence[int], prefix: int, first: Mapping[int, int]) -> Block:
        keys = [self._places[row][prefix:] for row in rows]
        own = [self._places[row][first[row] :] for row in rows]
        lengths = torch.tensor([len(places) for places in own])[:, None]
        column = torch.arange(int(lengths.max()))[None]
        seen = torch.tensor([first[row] - prefix for row in rows])[:, None] + column.minimum(lengths - 1) + 1
        limits = seen.repeat(1, self.group).to(self._device, torch.int32)
        index, valid = _padded(own).to(self._device), (column < lengths).to(self._device)
        return Block(index, valid, index[valid], _padded(keys).to(self._device), limits)


def _padded(rows: Sequence[Tensor]) -> Tensor:
    """Rows of flat positions as [b, longest]; the last of each is repeated."""
    longest = max(map(len, rows))
    return torch.stack([torch.cat([row, row[-1:].expand(longest - len(row))]) for row in rows])


class PackedAttention(torch.autograd.Function):
    """Attention over a packing. Gathers and scatters flat tensors itself, so that no padded copy enters the graph."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, packing: Packing, scale: float) -> Tensor:  # noqa: D102
        out = torch.empty_like(q)
        saved: list[Tensor] = []
        for piece in packing.pieces:
            prefix_k, prefix_v = k[piece.prefix], v[piece.prefix]
            if len(fresh := piece.prefix[piece.known :]):
                out[fresh] = causal(q[fresh], prefix_k, prefix_v, scale)
            shared = _heads_first(prefix_k), _heads_first(prefix_v)
            for block in piece.blocks:
                queries = fold(q, block.index, packing.group)
                result, weights = attend(queries, *shared, *_rows(k, v, block), block.limits, scale)
                out[block.fresh] = unfold(result, packing.group)[block.valid]
                saved += weights
        ctx.save_for_backward(q, k, v, out, *saved)
        ctx.packing, ctx.scale = packing, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        q, k, v, out, *saved = ctx.saved_tensors
        packing, scale, weights = ctx.packing, ctx.scale, iter(saved)
        grad = grads[0].contiguous()
        grad_q = torch.empty_like(q)
        sums = Sums(k)
        for piece in packing.pieces:
            prefix_k, prefix_v = k[piece.prefix], v[piece.prefix]
            shared = _heads_first(prefix_k), _heads_first(prefix_v)
            for block in piece.blocks:
                at = block.index, packing.group
                wanted = fold(grad, *at).masked_fill_(~_folded_valid(block, packing.group), 0.0)
                args = fold(q, *at), *shared, *_rows(k, v, block)
                g = gradients(wanted, fold(out, *at), Weights(next(weights), next(weights)), *args, scale)
                grad_q[block.fresh] = unfold(g.q, packing.group)[block.valid]
                sums.add(piece.prefix, g.prefix_k.transpose(0, 1), g.prefix_v.transpose(0, 1))
                sums.add(block.keys, g.k.permute(1, 2, 0, 3), g.v.permute(1, 2, 0, 3))
            if len(fresh := piece.prefix[piece.known :]):
                grad_q[fresh], *own = causal_gradients(grad[fresh], q[fresh], prefix_k, prefix_v, scale)
                sums.add(piece.prefix, *own)
        return grad_q, sums.k.to(k.dtype), sums.v.to(v.dtype), None, None


class Sums:
    """Gradients of flat keys and values, in float32: a key collects from every row that it is part of."""

    def __init__(self, like: Tensor) -> None:
        self.k, self.v = (torch.zeros_like(like, dtype=torch.float32) for _ in range(2))

    def add(self, index: Tensor, k: Tensor, v: Tensor) -> None:
        """Add [..., H, d] at flat positions [...], which may repeat."""
        for total, part in ((self.k, k), (self.v, v)):
            total.index_add_(0, index.flatten(), part.flatten(0, -3).float())


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous()


def _rows(k: Tensor, v: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Keys and values of a block's rows after the prefix, [H, b, K, d]."""
    return k[block.keys].permute(2, 0, 1, 3).contiguous(), v[block.keys].permute(2, 0, 1, 3).contiguous()


def _folded_valid(block: Block, group: int) -> Tensor:
    return block.valid.repeat(1, group)[None, :, :, None]
