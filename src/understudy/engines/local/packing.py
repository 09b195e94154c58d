"""How a micro-batch lies in memory: one flat sequence of tokens without padding, each shared prefix once.

Everything in a transformer but attention works on single tokens, so a model runs on the flat sequence [1, N] as it is.
Attention takes the flat queries, keys and values apart: a prefix attends to itself, and its rows, in blocks of similar
length, attend to [prefix | own]. A block's rows are padded to its longest, which attention alone sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.batch import Batch, Shared
from understudy.engines.local.attention import Gradients, Weights, attend, gradients

PADDING = 0.1  # of a block's longest row, at most


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of similar length: where their own tokens lie in the flat sequence, padded to [b, L]."""

    index: Tensor  # [b, L] flat positions; padding repeats the row's last
    valid: Tensor  # [b, L] bool
    limits: Tensor  # [b, G * L] int32: how many own tokens each folded query sees


@dataclass(frozen=True, slots=True)
class Piece:
    """One shared prefix at flat positions [start, start + length), and the blocks of its rows."""

    start: int
    length: int
    blocks: tuple[Block, ...]


class Packing:
    """The layout of one micro-batch; `attend` is what the model's attention modules call."""

    def __init__(self, batch: Batch, pieces: Sequence[Shared], fold: int, device: torch.device) -> None:
        """`fold` is the number of query heads that share a key head."""
        self.fold = fold
        self._lengths = batch.lengths.tolist()
        self._where: dict[int, tuple[int, int, int]] = {}
        self._tokens: list[Tensor] = []
        self._positions: list[Tensor] = []
        self._size = 0
        self.pieces = tuple(self._piece(batch.tokens, piece, device) for piece in pieces)
        self.tokens = torch.cat(self._tokens)[None].to(device)  # [1, N]
        self.positions = torch.cat(self._positions)[None].to(device)  # [1, N]

    def flat_positions(self, row: int, columns: Tensor) -> Tensor:
        """Where the tokens of a row lie in the flat sequence."""
        start, prefix, own = self._where[row]
        return torch.where(columns < prefix, start + columns, own + columns - prefix)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Causal attention of flat queries [N, Hq, d] over flat keys and values [N, H, d]: [N, Hq, d]."""
        return PackedAttention.apply(q, k, v, self, scale)  # type: ignore[no-any-return, no-untyped-call]

    def _piece(self, tokens: Tensor, piece: Shared, device: torch.device) -> Piece:
        rows = sorted(piece.rows, key=lambda r: -self._lengths[r])
        start = self._append(tokens[rows[0]], 0, piece.prefix)
        for row in rows:
            self._where[row] = (start, piece.prefix, self._append(tokens[row], piece.prefix, self._lengths[row]))
        blocks: list[list[tuple[int, int]]] = []
        for row in rows:
            own = (self._where[row][2], self._lengths[row] - piece.prefix)
            if not blocks or own[1] < (1 - PADDING) * blocks[-1][0][1]:
                blocks.append([])
            blocks[-1].append(own)
        return Piece(start, piece.prefix, tuple(self._block(block, device) for block in blocks))

    def _append(self, row: Tensor, first: int, last: int) -> int:
        """Lay down tokens [first, last) of a row, and tell where."""
        start = self._size
        self._tokens.append(row[first:last])
        self._positions.append(torch.arange(first, last))
        self._size += last - first
        return start

    def _block(self, block: Sequence[tuple[int, int]], device: torch.device) -> Block:
        longest = block[0][1]
        start, length = torch.tensor(block).T[:, :, None]
        column = torch.arange(longest)[None]
        limits = (column + 1).expand(len(block), longest).repeat(1, self.fold)
        index = start + column.minimum(length - 1)
        return Block(index.to(device), (column < length).to(device), limits.to(device, torch.int32).contiguous())


class PackedAttention(torch.autograd.Function):
    """Attention over a packing. Gathers and scatters flat tensors itself, so that no padded copy enters the graph."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, packing: Packing, scale: float) -> Tensor:  # noqa: D102
        out = torch.empty_like(q)
        saved: list[Tensor] = []
        for piece in packing.pieces:
            prefix = slice(piece.start, piece.start + piece.length)
            if piece.length:
                out[prefix] = _prefix(q[prefix], k[prefix], v[prefix], scale)
            shared = _heads_first(k[prefix]), _heads_first(v[prefix])
            for block in piece.blocks:
                result, weights = attend(
                    _fold(q, block, packing.fold), *shared, *_rows(k, v, block), block.limits, scale
                )
                _unfold(result, block, packing.fold, out)
                saved += weights
        ctx.save_for_backward(q, k, v, out, *saved)
        ctx.packing, ctx.scale = packing, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        q, k, v, out, *saved = ctx.saved_tensors
        packing, scale, weights = ctx.packing, ctx.scale, iter(saved)
        grad = grads[0].contiguous()
        grad_q, grad_k, grad_v = (torch.empty_like(x) for x in (q, k, v))
        for piece in packing.pieces:
            prefix = slice(piece.start, piece.start + piece.length)
            shared_k, shared_v = _heads_first(k[prefix]), _heads_first(v[prefix])
            sum_k, sum_v = (torch.zeros_like(x, dtype=torch.float32) for x in (shared_k, shared_v))
            for block in piece.blocks:
                fold = _fold(grad, block, packing.fold).masked_fill_(~_folded_valid(block, packing.fold), 0.0)
                args = _fold(q, block, packing.fold), shared_k, shared_v, *_rows(k, v, block)
                g = gradients(
                    fold, _fold(out, block, packing.fold), Weights(next(weights), next(weights)), *args, scale
                )
                _scatter(g, block, packing.fold, grad_q, grad_k, grad_v)
                sum_k += g.prefix_k
                sum_v += g.prefix_v
            if piece.length:
                own = _prefix_gradients(grad[prefix], q[prefix], k[prefix], v[prefix], scale)
                grad_q[prefix] = own[0]
                grad_k[prefix] = own[1] + sum_k.transpose(0, 1)
                grad_v[prefix] = own[2] + sum_v.transpose(0, 1)
        return grad_q, grad_k, grad_v, None, None


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous()


def _rows(k: Tensor, v: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Own keys and values of a block's rows, [H, b, L, d]."""
    return k[block.index].permute(2, 0, 1, 3).contiguous(), v[block.index].permute(2, 0, 1, 3).contiguous()


def _fold(x: Tensor, block: Block, fold: int) -> Tensor:
    """Flat [N, Hq, d] to a block's [H, b, G * L, d]."""
    rows, length = block.index.shape
    heads = x.shape[1] // fold
    return (
        x[block.index]
        .view(rows, length, heads, fold, -1)
        .permute(2, 0, 3, 1, 4)
        .reshape(heads, rows, fold * length, -1)
    )


def _folded_valid(block: Block, fold: int) -> Tensor:
    return block.valid.repeat(1, fold)[None, :, :, None]


def _unfold(x: Tensor, block: Block, fold: int, into: Tensor) -> None:
    """The inverse of `_fold`, written to the flat positions that are not padding."""
    heads, rows, _, dim = x.shape
    unfolded = x.view(heads, rows, fold, -1, dim).permute(1, 3, 0, 2, 4).reshape(rows, -1, heads * fold, dim)
    into[block.index[block.valid]] = unfolded[block.valid]


def _scatter(g: Gradients, block: Block, fold: int, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor) -> None:
    """Write a block's own gradients to their flat positions."""
    _unfold(g.q, block, fold, grad_q)
    flat = block.index[block.valid]
    grad_k[flat] = g.k.permute(1, 2, 0, 3)[block.valid]
    grad_v[flat] = g.v.permute(1, 2, 0, 3)[block.valid]


def _prefix(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """A prefix attends to itself, causally: [P, Hq, d]."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)[0].transpose(0, 1)


def _prefix_gradients(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, ...]:
    """Through a second forward pass: it is short, and keeps no scores between the passes."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    with torch.enable_grad():
        out = _prefix(q, k, v, scale)
    return torch.autograd.grad(out, (q, k, v), grad)
