"""Attention layouts of the sampler's three forward passes: fill a prefix, prefill new tokens, decode.

Rows with the same prefix are adjacent, so that the prefix's keys are multiplied once for all of them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from understudy.engines.local.attention import AttentionSpec, attend
from understudy.engines.local.cpu import kernels
from understudy.engines.local.cpu.tree import causal_attention
from understudy.engines.local.sampling.kv_cache import KVCache
from understudy.engines.local.sampling.sequence_cache import CachedPrefix, CacheSlot
from understudy.engines.local.transfers import to_device

MAX_PADDING = 0.3  # maximum padding relative to a block's longest row; more blocks would cost more than padding


class PrefixFillLayout:
    """Tokens with causal attention, whose keys and values become a `CachedPrefix`."""

    def __init__(self, prefix: CachedPrefix) -> None:
        self._prefix = prefix

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Return causal attention and store keys and values."""
        self._prefix.keys.append(k.transpose(0, 1).contiguous())
        self._prefix.values.append(v.transpose(0, 1).contiguous())
        return causal_attention(q, k, v, spec)


@dataclass(frozen=True, slots=True)
class SlotGroup:
    """Adjacent rows [start, stop) with the same prefix, or without one."""

    prefix: CachedPrefix | None
    start: int
    stop: int

    @property
    def prefix_length(self) -> int:
        """The number of tokens P of the prefix."""
        return len(self.prefix or ())

    def prefix_keys_values(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prefix's keys and values at a layer, [H, P, d], of the sizes of flat ones [N, H, d]."""
        if self.prefix is None:
            return k[:0].transpose(0, 1), v[:0].transpose(0, 1)
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
    first: int
    """The least of `row_positions`."""
    max_length: int
    """Maximum number of own tokens of a row, cached and new."""
    index: Tensor  # [b, L] flat positions of new tokens; padding repeats the row's last
    positions: Tensor  # [n] flat positions of the new tokens, without padding
    places: Tensor  # [n] places of those tokens in the flattened block [b * L]; an index, because masks stop a GPU
    slots: Tensor  # [b]
    row_positions: Tensor  # [b, L] positions of the new tokens in their sequences


class PrefillLayout:
    """Several new tokens per row in one flat sequence. `slots` are sorted by prefix, ideally longest rows first.

    Only attention pads, to the longest row of each block.
    """

    def __init__(
        self, cache: KVCache, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]], device: torch.device
    ) -> None:
        self._cache, self._device = cache, device
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
        index, at = start + column, rows.prefix_length + own + column
        numbers = torch.tensor([slot.index for slot in slots])
        parts = index, index[valid], valid.flatten().nonzero()[:, 0], numbers, at
        limits = int(at.min()), int((own + length).max())
        return PrefillBlock(rows, *limits, *(to_device(x, self._device) for x in parts))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Store the new keys and values, then return attention over [prefix | own]."""
        self._cache.write(layer, self._slots, self._columns, k, v)
        out = q.new_empty(*q.shape[:2], v.shape[2])
        group = q.shape[1] // k.shape[1]
        for block in self._blocks:
            unseen = max(0, spec.first_visible(block.first))
            of_prefix = min(unseen, block.slot_group.prefix_length)
            prefix_k, prefix_v = (x[:, of_prefix:] for x in block.slot_group.prefix_keys_values(layer, k, v))
            columns = slice(unseen - of_prefix, block.max_length)
            own_k, own_v = (x[layer][:, block.slots, columns] for x in (self._cache.keys, self._cache.values))
            queries, visible = kernels.gather_heads(q, block.index, group), spec.visible(block.row_positions, unseen)
            result = attend(queries, prefix_k, prefix_v, own_k, own_v, visible, spec)
            kernels.scatter_heads_(out, block.positions, result, block.places, group)
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
        self, cache: KVCache, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]], device: torch.device
    ) -> None:
        self._cache = cache
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
        self._groups = [
            (group, max(columns[group.start : group.stop]) + 1, min(columns[group.start : group.stop]))
            for group in group_by_prefix([slot for slot, _ in rows])
        ]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Store the new keys and values, then return attention over [prefix | own], with the exact length of each
        row."""
        rows, heads, dim = k.shape
        self._cache.write(layer, self._slots, self._columns, k, v)
        folded = q.reshape(rows, heads, -1, dim).transpose(0, 1).contiguous()  # [H, b, G, d]
        starts, _ = spec.visible(self.positions[0])
        sinks = None if spec.sinks is None else spec.sinks.float().contiguous()
        parts = []
        for group, longest, shortest in self._groups:
            part = slice(group.start, group.stop)
            x, prefix = folded[:, part].contiguous(), group.prefix_keys_values(layer, k, v)
            unseen = min(max(0, spec.first_visible(group.prefix_length + shortest)), group.prefix_length)
            prefix_k, prefix_v = (each[:, unseen:] for each in prefix)
            scores = torch.bmm(x.flatten(1, 2), prefix_k.transpose(1, 2)).view(*x.shape[:3], -1)
            out = kernels.decode_attention(
                x,
                scores,
                self._cache.keys[layer],
                self._cache.values[layer],
                self._slots32[part],
                self._lengths[part],
                longest,
                spec.scale,
                None if starts is None else starts[part] - unseen,
                spec.softcap,
                sinks,
            )
            if prefix_k.shape[1]:
                out += torch.bmm(scores.flatten(1, 2), prefix_v).view(out.shape)
            parts.append(out.to(q.dtype))
        return torch.cat(parts, 1).transpose(0, 1).reshape(rows, -1, v.shape[2])
