"""The sampler's three forward passes, each a layout: fill a prefix, prefill new tokens, decode.

Rows that share a prefix stand together, so that the prefix's keys are multiplied once for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.engines.local import kernels
from understudy.engines.local.attention import attend
from understudy.engines.local.cache import Cache, Prefix, Slot


class PrefixFill:
    """Tokens that attend to each other causally; their keys and values become a `Prefix`."""

    def __init__(self, prefix: Prefix) -> None:
        self._prefix = prefix

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Plain causal attention, remembering keys and values."""
        q, k, v = (x.transpose(0, 1).contiguous() for x in (q, k, v))
        self._prefix.keys.append(k)
        self._prefix.values.append(v)
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, scale=scale, enable_gqa=True)
        return out[0].transpose(0, 1)


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


class Prefill:
    """Several new tokens a row, one flat sequence without padding. `slots` are ordered by prefix."""

    def __init__(
        self, cache: Cache, slots: Sequence[Slot], new: Sequence[Sequence[int]], fold: int, device: torch.device
    ) -> None:
        self._cache, self._fold = cache, fold
        self._groups = grouped(slots)
        lengths = torch.tensor([len(tokens) for tokens in new])[:, None]
        own = torch.tensor([slot.own for slot in slots])[:, None]
        cached = torch.tensor([len(slot.tokens) for slot in slots])[:, None]
        start = lengths.cumsum(0) - lengths
        column = torch.arange(int(lengths.max()))[None]
        valid = column < lengths  # [b, T]
        column = column.minimum(lengths - 1)  # padding repeats the row's last token, in attention alone
        self._index = (start + column).to(device)  # [b, T] flat positions
        self._valid = valid.to(device)
        self._slots = torch.tensor([slot.index for slot in slots], device=device)
        self._flat_slots = self._slots.repeat_interleave(lengths[:, 0].to(device))  # [N]
        self._flat_columns = (own + column)[valid].to(device)  # [N]
        self._limits = (own + column + 1).repeat(1, fold).to(device, torch.int32).contiguous()
        self._seen = int((own + lengths).max())
        self.tokens = torch.tensor([token for tokens in new for token in tokens], device=device)[None]
        self.positions = (cached + column)[valid][None].to(device)
        self.last = (start + lengths - 1)[:, 0].to(device)  # [b] flat position of each row's last token

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Store the new keys and values, then attend to [prefix | own]."""
        self._cache.write(layer, self._flat_slots, self._flat_columns, k, v)
        rows, length = self._index.shape
        heads, dim = k.shape[1:]
        folded = q[self._index].view(rows, length, heads, self._fold, dim).permute(2, 0, 3, 1, 4)
        folded = folded.reshape(heads, rows, -1, dim)
        own_k = self._cache.keys[layer][:, self._slots, : self._seen]
        own_v = self._cache.values[layer][:, self._slots, : self._seen]
        parts = [self._attend(g, layer, folded, k, own_k, own_v, scale) for g in self._groups]
        out = torch.cat(parts, 1).view(heads, rows, self._fold, length, dim)
        return out.permute(1, 3, 0, 2, 4).reshape(rows, length, -1, dim)[self._valid]

    def _attend(self, group: Group, layer: int, q: Tensor, like: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        part = slice(group.start, group.stop)
        shared = group.shared(layer, like)
        return attend(q[:, part].contiguous(), *shared, k[:, part], v[:, part], self._limits[part], scale)[0]


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
