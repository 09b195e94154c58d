"""The sampler's key-value cache of models that run on flat sequences.

Shapes: L layers, H key heads, S slots, C capacity, d head dimension, P prefix tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from understudy.engines.local.sampling.sequence_cache import CacheSlot, SequenceCache

CACHE_GROWTH = 128  # slots grow by multiples of this many tokens


class KVCache(SequenceCache):
    """Keys and values [L][H, S, C, d], grown as needed, with the state of slots and prefixes."""

    def __init__(self, layers: int, heads: int, dim: int, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = (heads, slots, dim)
        self._layers, self._dtype, self._device = layers, dtype, device
        self._needed = 0
        self.version = 0
        """Number of times that the tensors of the slots have been replaced."""
        super().__init__(slots)

    def clear(self) -> None:
        """Clear the cache, because the weights have changed."""
        heads, slots, dim = self._shape
        self.capacity = 0
        self.version += 1
        super().clear()
        empty = torch.empty(heads, slots, 0, dim, dtype=self._dtype, device=self._device)
        self.keys, self.values = [empty] * self._layers, [empty] * self._layers

    def reserve(self, length: int) -> None:
        """Grow every slot to at least `length` own tokens."""
        if length <= self.capacity:
            return
        # Remember the largest capacity after `clear`: growing copies tensors and fragments memory.
        self.capacity = self._needed = max(self._needed, -(-length // CACHE_GROWTH) * CACHE_GROWTH)
        self.version += 1
        for tensors in (self.keys, self.values):
            for layer in range(self._layers):  # one layer at a time, so that only one is in memory twice
                tensors[layer] = self._grown(tensors[layer])

    def _grown(self, old: Tensor) -> Tensor:
        heads, slots, filled, dim = old.shape
        new = torch.zeros(heads, slots, self.capacity, dim, dtype=self._dtype, device=self._device)
        new[:, :, :filled] = old
        return new

    def copy(self, source: CacheSlot, target: CacheSlot, tokens: Sequence[int]) -> None:
        """Copy keys and values of `tokens`, the first of `source` and at least those of its prefix, to `target`."""
        target.prefix, target.tokens = source.prefix, list(tokens)
        length = target.own_length
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                tensor[:, target.index, :length] = tensor[:, source.index, :length]

    def discard(self, slot: CacheSlot) -> None:
        """Free a slot and overwrite its keys and values, which may be NaN and would reach a later sequence."""
        slot.busy, slot.prefix, slot.tokens = False, None, []
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                tensor[:, slot.index] = 0

    def write(self, layer: int, slots: Tensor, columns: Tensor, k: Tensor, v: Tensor) -> None:
        """Store keys and values [N, H, d] at own positions `columns` [N] of `slots` [N]."""
        self.keys[layer][:, slots, columns] = k.transpose(0, 1)
        self.values[layer][:, slots, columns] = v.transpose(0, 1)
