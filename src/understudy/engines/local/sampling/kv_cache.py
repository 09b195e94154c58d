"""The sampler's key-value cache of models that run on flat sequences.

Shapes: H key heads, S slots, C capacity, d size of a key or value, P prefix tokens.
"""

from collections.abc import Sequence

from torch import Tensor

from understudy.engines.local.sampling.sequence_cache import CacheSlot, SequenceCache

CACHE_GROWTH = 128  # slots grow by multiples of this many tokens


class KVCache(SequenceCache):
    """Keys and values [H, S, C, d] of each layer, grown as needed, with the state of slots and prefixes."""

    def __init__(self, slots: int) -> None:
        self._needed = 0
        self.version = 0
        """Number of times that the tensors of the slots have been replaced."""
        super().__init__(slots)

    def clear(self) -> None:
        """Clear the cache, because the weights have changed."""
        self.capacity = 0
        self.version += 1
        super().clear()
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def reserve(self, length: int) -> None:
        """Grow every slot to at least `length` own tokens."""
        if length <= self.capacity:
            return
        # Remember the largest capacity after `clear`: growing copies tensors and fragments memory.
        self.capacity = self._needed = max(self._needed, -(-length // CACHE_GROWTH) * CACHE_GROWTH)
        self.version += 1
        for tensors in (self.keys, self.values):
            for layer in tensors:  # one layer at a time, so that only one is in memory twice
                tensors[layer] = self._grown(tensors[layer])

    def _grown(self, old: Tensor) -> Tensor:
        heads, slots, filled, dim = old.shape
        new = old.new_zeros(heads, slots, self.capacity, dim)
        new[:, :, :filled] = old
        return new

    def copy(self, source: CacheSlot, target: CacheSlot, tokens: Sequence[int]) -> None:
        """Copy keys and values of `tokens`, the first of `source` and at least those of its prefix, to `target`."""
        target.prefix, target.tokens = source.prefix, list(tokens)
        length = target.own_length
        for tensors in (self.keys, self.values):
            for tensor in tensors.values():
                tensor[:, target.index, :length] = tensor[:, source.index, :length]

    def discard(self, slot: CacheSlot) -> None:
        """Free a slot and overwrite its keys and values, which may be NaN and would reach a later sequence."""
        slot.busy, slot.prefix, slot.tokens = False, None, []
        for tensors in (self.keys, self.values):
            for tensor in tensors.values():
                tensor[:, slot.index] = 0

    def write(self, layer: int, slots: Tensor, columns: Tensor, k: Tensor, v: Tensor) -> None:
        """Store keys and values [N, H, d] at own positions `columns` [N] of `slots` [N]."""
        for tensors, new in ((self.keys, k), (self.values, v)):
            if layer not in tensors:  # each layer may have sizes of its own, which only its tensors tell
                tensors[layer] = self._grown(new.new_empty(new.shape[1], len(self.slots), 0, new.shape[2]))
            tensors[layer][:, slots, columns] = new.transpose(0, 1)
