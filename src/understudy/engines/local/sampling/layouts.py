"""Attention layouts of the sampler's three forward passes: fill a prefix, prefill new tokens, decode.

Rows with the same prefix are adjacent, so that the prefix's keys are multiplied once for all of them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from understudy.engines.local.attention import attend_in_parts
from understudy.engines.local.cpu import kernels
from understudy.engines.local.cpu.causal import causal_attention
from understudy.engines.local.sampling.kv_cache import KVCache
from understudy.engines.local.sampling.sequence_cache import CachedPrefix, CacheSlot
from understudy.engines.local.transfers import to_device

MAX_PADDING = 0.3  # maximum padding relative to a block's longest row; more blocks would cost more than padding


class PrefixFillLayout:
    """Tokens with causal attention, whose keys and values become a `CachedPrefix`."""

    def __init__(self, prefix: CachedPrefix) -> None:
        self._prefix = prefix

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Return causal attention and store keys and values."""
        self._prefix.keys.append(k.transpose(0, 1).contiguous())
        self._prefix.values.append(v.transpose(0, 1).contiguous())
        return causal_attention(q, k, v, scale)


@dataclass(frozen=True, slots=True)
class SlotGroup:
    """Adjacent rows [start, stop) with the same prefix, or without one."""

    prefix: CachedPrefix | None
    start: int
    stop: int

    def prefix_keys_values(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prefix's keys and values at a layer, [H, P, d]. Without a prefix P is 0."""
        if self.prefix is None:
            none = like.new_empty(like.shape[1], 0, like.shape[2])
            return none, none
        return self.prefix.keys[layer], self.prefix.values[layer]


def group_by_prefix(slots: Sequence[CacheSlot]) -> list[SlotGroup]:
    """Return groups of adjacent slots with the same prefix."""
    groups: list[SlotGroup] = []
    for i, slot in enumerate(slots):
        if groups and groups[-1].prefix is slot.prefix:
            groups[-1] = SlotGroup(slot.prefix, groups[-1].start, i + 1)
        else:
            groups.append(SlotGroup(slot.prefix, i, i + 1))
    return groups


@dataclass(frozen=True, slots=True)
class PrefillBlock:
    """Rows of similar length with the same prefix: positions of their new tokens, and how far these attend."""

    slot_group: SlotGroup
    index: Tensor  # [b, L] flat positions of new tokens; padding repeats the row's last
    positions: Tensor  # [n] flat positions of the new tokens, without padding
    places: Tensor  # [n] places of those tokens in the flattened block [b * L]; an index, because masks stop a GPU
    slots: Tensor  # [b]
    limits: Tensor  # [b, G * L] int32: number of its slot's own tokens that each folded query sees
    max_length: int
    """Maximum number of own tokens of a row, cached and new."""


class PrefillLayout:
    """Several new tokens per row in one flat sequence. `slots` are sorted by prefix, ideally longest rows first.

    Only attention pads, to the longest row of each block.
    """

    def __init__(
        self, cache: KVCache, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]], group: int, device: torch.device
    ) -> None:
        """`group` is the number of query heads per key head."""
        self._cache, self._group, self._device = cache, group, device
        lengths = [len(tokens) for tokens in new]
        stops = list(itertools.accumulate(lengths))
        self._starts = [stop - length for stop, length in zip(stops, lengths, strict=True)]
        self._blocks = [
            self._block(part, slots[part.start : part.stop], lengths[part.start : part.stop])
            for rows in group_by_prefix(slots)
            for part in split_by_length(rows, lengths)
        ]
        filled = [(slot, torch.arange(length)) for slot, length in zip(slots, lengths, strict=True)]
        rows = torch.stack(
            [
                torch.tensor([slot.index for slot in slots]).repeat_interleave(torch.tensor(lengths)),
                torch.cat([slot.own_length + column for slot, column in filled]),
                torch.tensor([token for tokens in new for token in tokens]),
                torch.cat([len(slot.tokens) + column for slot, column in filled]),
            ]
        )
        self._slots, self._columns, tokens, positions = to_device(rows, device).unbind()  # [N] each
        self.tokens, self.positions = tokens[None], positions[None]
        self.last = to_device(torch.tensor(stops) - 1, device)  # [b] flat position of each row's last token

    def _block(self, rows: SlotGroup, slots: Sequence[CacheSlot], lengths: Sequence[int]) -> PrefillBlock:
        length = torch.tensor(lengths)[:, None]
        start = torch.tensor(self._starts[rows.start : rows.stop])[:, None]
        own = torch.tensor([slot.own_length for slot in slots])[:, None]
        column = torch.arange(max(lengths))[None]
        valid = column < length  # [b, L]
        column = column.minimum(length - 1)
        index, limits = start + column, (own + column + 1).repeat(1, self._group).int()
        numbers = torch.tensor([slot.index for slot in slots])
        positions, places = index[valid], valid.flatten().nonzero()[:, 0]
        index, positions, places, numbers, limits = (
            to_device(x, self._device) for x in (index, positions, places, numbers, limits)
        )
        return PrefillBlock(rows, index, positions, places, numbers, limits, int((own + length).max()))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Store the new keys and values, then return attention over [prefix | own]."""
        self._cache.write(layer, self._slots, self._columns, k, v)
        out = torch.empty_like(q)
        for block in self._blocks:
            own_k = self._cache.keys[layer][:, block.slots, : block.max_length]
            own_v = self._cache.values[layer][:, block.slots, : block.max_length]
            queries = kernels.gather_heads(q, block.index, self._group)
            prefix = block.slot_group.prefix_keys_values(layer, k)
            result = attend_in_parts(queries, *prefix, own_k, own_v, block.limits, scale)
            kernels.scatter_heads_(out, block.positions, result, block.places, self._group)
        return out


def split_by_length(slot_group: SlotGroup, lengths: Sequence[int]) -> list[SlotGroup]:
    """Split a group into adjacent rows of similar length."""
    parts = [SlotGroup(slot_group.prefix, slot_group.start, slot_group.start + 1)]
    for i in range(slot_group.start + 1, slot_group.stop):
        first = parts[-1].start
        if (1 - MAX_PADDING) * lengths[first] <= lengths[i] <= lengths[first]:
            parts[-1] = SlotGroup(slot_group.prefix, first, i + 1)
        else:
            parts.append(SlotGroup(slot_group.prefix, i, i + 1))
    return parts


class DecodeLayout:
    """The last token of each sequence and its draft tokens, one row per token. `slots` are sorted by prefix.

    A draft token attends to all tokens before it, because all keys are stored before attention runs.
    """

    def __init__(
        self, cache: KVCache, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]], group: int, device: torch.device
    ) -> None:
        self._cache, self._fold = cache, group
        rows = [(slot, i) for slot, tokens in zip(slots, new, strict=True) for i in range(len(tokens))]
        columns = [slot.own_length + i for slot, i in rows]
        table = torch.tensor(
            [
                [slot.index for slot, _ in rows],
                columns,
                [token for tokens in new for token in tokens],
                [len(slot.tokens) + i for slot, i in rows],
            ]
        )
        self._slots, self._columns, tokens, positions = to_device(table, device).unbind()  # [N] each
        self._lengths, self._slots32 = (self._columns + 1).int(), self._slots.int()
        self.tokens, self.positions = tokens[None], positions[None]
        groups = group_by_prefix([slot for slot, _ in rows])
        self._groups = [(group, max(columns[group.start : group.stop]) + 1) for group in groups]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Store the new keys and values, then return attention over [prefix | own], with the exact length of each
        row."""
        rows, heads, dim = k.shape
        self._cache.write(layer, self._slots, self._columns, k, v)
        folded = q.reshape(rows, heads, self._fold, dim).transpose(0, 1).contiguous()  # [H, b, G, d]
        parts = [self._attend(group, longest, layer, folded, k, scale) for group, longest in self._groups]
        return torch.cat(parts, 1).transpose(0, 1).reshape(rows, -1, dim)

    def _attend(self, group: SlotGroup, longest: int, layer: int, q: Tensor, like: Tensor, scale: float) -> Tensor:
        part = slice(group.start, group.stop)
        heads, rows, _, dim = (x := q[:, part].contiguous()).shape
        prefix_k, prefix_v = group.prefix_keys_values(layer, like)
        flat = x.view(heads, -1, dim)
        scores = torch.bmm(flat, prefix_k.transpose(1, 2)).view(heads, rows, self._fold, -1)
        out = kernels.decode_attention(
            x,
            scores,
            self._cache.keys[layer],
            self._cache.values[layer],
            self._slots32[part],
            self._lengths[part],
            longest,
            scale,
        )
        if prefix_k.shape[1]:
            out += torch.bmm(scores.view(heads, rows * self._fold, -1), prefix_v).view(out.shape)
        return out.to(q.dtype)
