"""The sampler's key-value cache: shared prefixes, and a slot for each sequence's own tokens.

A slot outlives its reply: the next turn of the same episode finds it by its tokens and computes only new tokens. The
least recently used slots are evicted first.

Shapes: L layers, H key heads, S slots, C capacity, d head dimension, P prefix tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

CACHE_GROWTH = 128  # slots grow by multiples of this many tokens
MIN_COPIED_TOKENS = 16  # copying fewer is not worth a search
MAX_IDLE_PREFIXES = 16  # with this many prefixes, unused ones are dropped


@dataclass(slots=True, eq=False)
class CachedPrefix:
    """Tokens that sequences share, with keys and values [H, P, d] of each layer."""

    tokens: list[int]
    index: int
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True, eq=False)
class CacheSlot:
    """One cached sequence. `tokens` are all tokens with cached keys, including the prefix."""

    index: int
    prefix: CachedPrefix | None = None
    tokens: list[int] = field(default_factory=list)
    busy: bool = False
    last_used: int = 0

    @property
    def own_length(self) -> int:
        """Number of cached tokens after the prefix."""
        return len(self.tokens) - (len(self.prefix) if self.prefix else 0)

    def is_continued_by(self, prompt: Sequence[int]) -> bool:
        """Return True if the prompt starts with all cached tokens and is longer."""
        length = len(self.tokens)
        tail = max(0, length - 16)
        return (
            0 < length < len(prompt)
            and prompt[tail:length] == self.tokens[tail:]
            and prompt[:tail] == self.tokens[:tail]
        )


class KVCache:
    """Keys and values [L][H, S, C, d], grown as needed, with the state of slots and prefixes."""

    def __init__(self, layers: int, heads: int, dim: int, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = (heads, slots, dim)
        self._layers, self._dtype, self._device = layers, dtype, device
        self._clock = self._needed = 0
        self.version = 0
        """Number of times that the tensors of the slots have been replaced."""
        self.clear()

    def clear(self) -> None:
        """Clear the cache, because the weights have changed."""
        heads, slots, dim = self._shape
        self.capacity = 0
        self.version += 1
        self.slots = [CacheSlot(i) for i in range(slots)]
        self.prefixes: list[CachedPrefix] = []
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

    def find_slot(self, prompt: Sequence[int]) -> CacheSlot | None:
        """Return the idle slot with the longest cached part of this prompt, or None."""
        fitting = [slot for slot in self.slots if not slot.busy and slot.is_continued_by(prompt)]
        return max(fitting, key=lambda slot: len(slot.tokens), default=None)

    def acquire(self, slot: CacheSlot) -> CacheSlot:
        """Mark a slot as in use and return it."""
        self._clock += 1
        slot.busy, slot.last_used = True, self._clock
        return slot

    @property
    def num_idle_slots(self) -> int:
        """Number of slots that no active sequence uses."""
        return sum(not slot.busy for slot in self.slots)

    def evict(self) -> CacheSlot:
        """Return the least recently used idle slot, cleared. There must be one."""
        idle = [slot for slot in self.slots if not slot.busy]
        slot = min(idle, key=lambda slot: (bool(slot.tokens), slot.last_used))
        slot.prefix, slot.tokens = None, []
        return self.acquire(slot)

    def find_prefix(self, prompt: Sequence[int]) -> CachedPrefix | None:
        """Return the longest cached prefix of the prompt that leaves at least one token, or None."""
        fitting = [p for p in self.prefixes if len(p) < len(prompt) and prompt[: len(p)] == p.tokens]
        return max(fitting, key=len, default=None)

    def fill_from_prefixes(self, slot: CacheSlot, prompt: Sequence[int]) -> None:
        """Use the longest cached prefix of the prompt in a cleared slot."""
        slot.prefix = self.find_prefix(prompt)
        slot.tokens = list(slot.prefix.tokens) if slot.prefix else []

    def fill_from_slots(self, slot: CacheSlot, prompt: Sequence[int]) -> None:
        """Copy what another slot has computed of the prompt, if that is much more than this slot has."""
        shared = [(_common_length(other.tokens, prompt[:-1]), other) for other in self.slots]
        length, source = max(shared, key=lambda candidate: candidate[0])
        whole = source.prefix is None or length >= len(source.prefix)
        if whole and length >= len(slot.tokens) + MIN_COPIED_TOKENS:
            self.copy(source, slot, prompt[:length])

    def copy(self, source: CacheSlot, target: CacheSlot, tokens: Sequence[int]) -> None:
        """Copy keys and values of `tokens`, the first of `source` and at least those of its prefix, to `target`."""
        target.prefix, target.tokens = source.prefix, list(tokens)
        length = target.own_length
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                tensor[:, target.index, :length] = tensor[:, source.index, :length]

    def drop_idle_prefixes(self) -> None:
        """Drop prefixes that no slot uses, if there are `MAX_IDLE_PREFIXES` or more."""
        if len(self.prefixes) >= MAX_IDLE_PREFIXES:
            used = {id(slot.prefix) for slot in self.slots}
            self.prefixes = [prefix for prefix in self.prefixes if id(prefix) in used]

    def add_prefix(self, tokens: Sequence[int]) -> CachedPrefix:
        """Add a prefix without keys and values and return it."""
        self._clock += 1
        self.prefixes.append(CachedPrefix(list(tokens), self._clock))
        return self.prefixes[-1]

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


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of tokens at the start that two sequences have in common."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
