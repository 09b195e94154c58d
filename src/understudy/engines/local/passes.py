"""The sampler's three forward passes, each a layout: fill a prefix, prefill new tokens, decode one token a row.

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
    """Several new tokens a row, padded to the longest. `slots` are ordered by prefix."""

    def __init__(self, cache: Cache, slots: Sequence[Slot], new: Sequence[Sequence[int]], fold: int, device: torch.device) -> None:
        self._cache, self._fold = cache, fold
        self._groups = grouped(slots)
        longest = max(len(tokens) for tokens in new)
        self._shape = (len(slots), longest)
        lengths = torch.tensor([len(tokens) for tokens in new])[:, None]
        own = torch.tensor([slot.own for slot in slots])[:, None]
        prefix = torch.tensor([len(slot.tokens) - slot.own for slot in slots])[:, None]
        column = torch.arange(longest)[None].minimum(lengths - 1)  # padding repeats the last token, and is written nowhere
        padded = torch.tensor([[*tokens, *[tokens[-1]] * (longest - len(tokens))] for tokens in new])
        valid = torch.arange(longest)[None] < lengths
        self._slots = torch.tensor([slot.index for slot in slots], device=device)
        self._columns = (own + column).to(device)  # [b, T]
        self._valid = valid.to(device)
        self._limits = (own + column + 1).repeat(1, fold).to(device, torch.int32).contiguous()
        self.seen = int((own + lengths).max())
        self.tokens = padded.reshape(1, -1).to(device)
        self.positions = (prefix + own + column).reshape(1, -1).to(device)
        self.last = (torch.arange(len(slots)) * longest + lengths[:, 0] - 1).to(device)  # [b] flat index of the last token

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Store the new keys and values, then attend to [prefix | own]."""
        rows, length = self._shape
        heads, dim = k.shape[1:]
        valid = self._valid.reshape(-1)
        slots = self._slots[:, None].expand(rows, length).reshape(-1)[valid]
        self._cache.write(layer, slots, self._columns.reshape(-1)[valid], k[valid], v[valid])
        folded = q.reshape(rows, length, heads, self._fold, dim).permute(2, 0, 3, 1, 4).reshape(heads, rows, -1, dim)
        own_k = self._cache.keys[layer][:, self._slots, : self.seen]
        own_v = self._cache.values[layer][:, self._slots, : self.seen]
        parts = [self._attend(g, layer, folded, k, own_k, own_v, scale) for g in self._groups]
        out = torch.cat(parts, 1).view(heads, rows, self._fold, length, dim)
        return out.permute(1, 3, 0, 2, 4).reshape(rows * length, -1, dim)

    def _attend(self, group: Group, layer: int, q: Tensor, like: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        part = slice(group.start, group.stop)
        shared = group.shared(layer, like)
        return attend(q[:, part].contiguous(), *shared, k[:, part], v[:, part], self._limits[part], scale)[0]


class Decode:
    """One new token a row. `slots` are ordered by prefix."""

    def __init__(self, cache: Cache, slots: Sequence[Slot], tokens: Sequence[int], fold: int, device: torch.device) -> None:
        self._cache, self._fold = cache, fold
        self._groups = grouped(slots)
        self._slots = torch.tensor([slot.index for slot in slots], device=device)
        self._columns = torch.tensor([slot.own for slot in slots], device=device)
        self._lengths = (self._columns + 1).to(torch.int32)
        self._slots32 = self._slots.to(torch.int32)
        self.tokens = torch.tensor(tokens, device=device)[None]
        self.positions = torch.tensor([len(slot.tokens) for slot in slots], device=device)[None]

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
