"""The sampler's three forward passes, each a layout: fill a prefix, prefill new tokens, decode.

Rows that share a prefix stand together, so that the prefix's keys are multiplied once for all of them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from understudy.engines.local import kernels
from understudy.engines.local.attention import attend, fold, unfold
from understudy.engines.local.cache import Cache, Prefix, Slot
from understudy.engines.local.causal import causal

PADDING = 0.3  # of a block's longest row, at most; a block costs more than the padding of a few short rows


class PrefixFill:
    """Tokens that attend to each other causally; their keys and values become a `Prefix`."""

    def __init__(self, prefix: Prefix) -> None:
        self._prefix = prefix

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Plain causal attention, remembering keys and values."""
        self._prefix.keys.append(k.transpose(0, 1).contiguous())
        self._prefix.values.append(v.transpose(0, 1).contiguous())
        return causal(q, k, v, scale)


@dataclass(frozen=True, slots=True)
class Group:
    """Rows [start, stop) of a pass, which share a prefix (or have none)."""

    prefix: Prefix | None
    start: int
    stop: int

    def shared(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The prefix's keys and values at a layer, [H, P, d]; P is 0 where there is none."""
        if self.prefix is None:
            none = like.new_empty(like.shape[1], 0, like.shape[2])
            return none, none
        return self.prefix.keys[layer], self.prefix.values[layer]


def grouped(slots: Sequence[Slot]) -> list[Group]:
    """Neighbouring slots with the same prefix."""
    groups: list[Group] = []
    for i, slot in enumerate(slots):
        if groups and groups[-1].prefix is slot.prefix:
            groups[-1] = Group(slot.prefix, groups[-1].start, i + 1)
        else:
            groups.append(Group(slot.prefix, i, i + 1))
    return groups


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one prefix and of similar length: where their new tokens lie, and what these attend to."""

    rows: Group
    index: Tensor  # [b, L] flat positions of new tokens; padding repeats the row's last
    valid: Tensor  # [b, L] bool
    fresh: Tensor  # flat positions of the new tokens, without padding
    slots: Tensor  # [b]
    limits: Tensor  # [b, G * L] int32: how many of its slot's tokens each folded query sees
    seen: int
    """The most of them."""


class Prefill:
    """Several new tokens a row, one flat sequence. `slots` are ordered by prefix, best with the most new ones first.

    Attention pads rows to the longest of their block; nothing else sees padding.
    """

    def __init__(
        self, cache: Cache, slots: Sequence[Slot], new: Sequence[Sequence[int]], group: int, device: torch.device
    ) -> None:
        """`group` is the number of query heads that share a key head."""
        self._cache, self._group, self._device = cache, group, device
        lengths = [len(tokens) for tokens in new]
        stops = list(itertools.accumulate(lengths))
        self._starts = [stop - length for stop, length in zip(stops, lengths, strict=True)]
        self._blocks = [
            self._block(part, slots[part.start : part.stop], lengths[part.start : part.stop])
            for rows in grouped(slots)
            for part in similar(rows, lengths)
        ]
        filled = [(slot, torch.arange(length)) for slot, length in zip(slots, lengths, strict=True)]
        self._slots = torch.tensor([slot.index for slot in slots]).repeat_interleave(torch.tensor(lengths)).to(device)
        self._columns = torch.cat([slot.own + column for slot, column in filled]).to(device)  # [N]
        self.tokens = torch.tensor([token for tokens in new for token in tokens], device=device)[None]
        self.positions = torch.cat([len(slot.tokens) + column for slot, column in filled])[None].to(device)
        self.last = torch.tensor(stops, device=device) - 1  # [b] flat position of each row's last token

    def _block(self, rows: Group, slots: Sequence[Slot], lengths: Sequence[int]) -> Block:
        length = torch.tensor(lengths)[:, None]
        start = torch.tensor(self._starts[rows.start : rows.stop])[:, None]
        own = torch.tensor([slot.own for slot in slots])[:, None]
        column = torch.arange(max(lengths))[None]
        valid = column < length  # [b, L]
        column = column.minimum(length - 1)
        index, limits = start + column, (own + column + 1).repeat(1, self._group).int()
        numbers = torch.tensor([slot.index for slot in slots])
        index, valid, fresh, numbers, limits = (
            x.to(self._device) for x in (index, valid, index[valid], numbers, limits)
        )
        return Block(rows, index, valid, fresh, numbers, limits, int((own + length).max()))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Store the new keys and values, then attend to [prefix | own]."""
        self._cache.write(layer, self._slots, self._columns, k, v)
        out = torch.empty_like(q)
        for block in self._blocks:
            own_k = self._cache.keys[layer][:, block.slots, : block.seen]
            own_v = self._cache.values[layer][:, block.slots, : block.seen]
            queries = fold(q, block.index, self._group)
            result = attend(queries, *block.rows.shared(layer, k), own_k, own_v, block.limits, scale)[0]
            out[block.fresh] = unfold(result, self._group)[block.valid]
        return out


def similar(rows: Group, lengths: Sequence[int]) -> list[Group]:
    """Neighbours among a group's rows of which none has much less new than the first."""
    found = [Group(rows.prefix, rows.start, rows.start + 1)]
    for i in range(rows.start + 1, rows.stop):
        first = found[-1].start
        if (1 - PADDING) * lengths[first] <= lengths[i] <= lengths[first]:
            found[-1] = Group(rows.prefix, first, i + 1)
        else:
            found.append(Group(rows.prefix, i, i + 1))
    return found


class Decode:
    """The last token of each sequence and guesses at what follows: rows of one token. `slots` are ordered by prefix.

    A guess attends to what stands before it as every row does, because all keys are stored before any row attends.
    """

    def __init__(
        self, cache: Cache, slots: Sequence[Slot], fed: Sequence[Sequence[int]], fold: int, device: torch.device
    ) -> None:
        self._cache, self._fold = cache, fold
        rows = [(slot, i) for slot, tokens in zip(slots, fed, strict=True) for i in range(len(tokens))]
        self._groups = grouped([slot for slot, _ in rows])
        self._slots = torch.tensor([slot.index for slot, _ in rows], device=device)
        self._columns = torch.tensor([slot.own + i for slot, i in rows], device=device)
        self._lengths = (self._columns + 1).to(torch.int32)
        self._slots32 = self._slots.to(torch.int32)
        self.tokens = torch.tensor([token for tokens in fed for token in tokens], device=device)[None]
        self.positions = torch.tensor([len(slot.tokens) + i for slot, i in rows], device=device)[None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Store the new keys and values, then attend to [prefix | own], each row to its exact length."""
        rows, heads, dim = k.shape
        self._cache.write(layer, self._slots, self._columns, k, v)
        folded = q.reshape(rows, heads, self._fold, dim).transpose(0, 1).contiguous()  # [H, b, G, d]
        parts = [self._attend(group, layer, folded, k, scale) for group in self._groups]
        return torch.cat(parts, 1).transpose(0, 1).reshape(rows, -1, dim)

    def _attend(self, group: Group, layer: int, q: Tensor, like: Tensor, scale: float) -> Tensor:
        part = slice(group.start, group.stop)
        heads, rows, _, dim = (x := q[:, part].contiguous()).shape
        prefix_k, prefix_v = group.shared(layer, like)
        flat = x.view(heads, -1, dim)
        scores = torch.bmm(flat, prefix_k.transpose(1, 2)).view(heads, rows, self._fold, -1)
        out = kernels.decode_attention(
            x,
            scores,
            self._cache.keys[layer],
            self._cache.values[layer],
            self._slots32[part],
            self._lengths[part],
            scale,
        )
        if prefix_k.shape[1]:
            out += torch.bmm(scores.view(heads, rows * self._fold, -1), prefix_v).view(out.shape)
        return out.to(q.dtype)
