"""The sampler's key-value cache: prefixes that sequences share, and a slot for what each sequence has of its own.

A slot outlives the reply it was filled for: the next turn of the same episode finds it by its tokens and computes only
what is new. Slots of episodes that went away are taken over, the longest unused first.

Shapes: L layers, H key heads, S slots, C capacity, d head dimension, P prefix tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

GROWTH = 128  # tokens by which slots grow
KEPT_PREFIXES = 16  # prefixes that may stay although no slot uses them


@dataclass(slots=True, eq=False)
class Prefix:
    """Tokens that sequences share, with their keys and values, one tensor [H, P, d] a layer."""

    tokens: list[int]
    index: int
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence in the cache: `tokens` are all that it has keys for, its prefix included."""

    index: int
    prefix: Prefix | None = None
    tokens: list[int] = field(default_factory=list)
    busy: bool = False
    used: int = 0

    @property
    def own(self) -> int:
        """Cached tokens past the prefix."""
        return len(self.tokens) - (len(self.prefix) if self.prefix else 0)

    def continues(self, prompt: Sequence[int]) -> bool:
        """Whether the prompt goes on from exactly what is cached."""
        length = len(self.tokens)
        tail = max(0, length - 16)
        return (
            0 < length < len(prompt)
            and prompt[tail:length] == self.tokens[tail:]
            and prompt[:tail] == self.tokens[:tail]
        )


class Cache:
    """Keys and values [L][H, S, C, d], grown as needed, and who lives where."""

    def __init__(self, layers: int, heads: int, dim: int, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = (heads, slots, dim)
        self._layers, self._dtype, self._device = layers, dtype, device
        self._clock = self._needed = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        heads, slots, dim = self._shape
        self.capacity = 0
        self.slots = [Slot(i) for i in range(slots)]
        self.prefixes: list[Prefix] = []
        empty = torch.empty(heads, slots, 0, dim, dtype=self._dtype, device=self._device)
        self.keys, self.values = [empty] * self._layers, [empty] * self._layers

    def reserve(self, length: int) -> None:
        """Make room for `length` own tokens in every slot."""
        if length <= self.capacity:
            return
        # What was needed once will be again: to grow is to copy, and leaves holes in memory.
        self.capacity = self._needed = max(self._needed, -(-length // GROWTH) * GROWTH)
        for tensors in (self.keys, self.values):
            for layer in range(self._layers):  # one after the other: old and new ones of all take twice the memory
                tensors[layer] = self._grown(tensors[layer])

    def _grown(self, old: Tensor) -> Tensor:
        heads, slots, filled, dim = old.shape
        new = torch.zeros(heads, slots, self.capacity, dim, dtype=self._dtype, device=self._device)
        new[:, :, :filled] = old
        return new

    def find(self, prompt: Sequence[int]) -> Slot | None:
        """The idle slot with the longest part of this prompt."""
        fitting = [slot for slot in self.slots if not slot.busy and slot.continues(prompt)]
        return max(fitting, key=lambda slot: len(slot.tokens), default=None)

    def take(self, slot: Slot) -> Slot:
        """Mark a slot as in use."""
        self._clock += 1
        slot.busy, slot.used = True, self._clock
        return slot

    def evict(self) -> Slot | None:
        """An idle slot, emptied: the longest unused. None when all are busy."""
        idle = [slot for slot in self.slots if not slot.busy]
        if not idle:
            return None
        slot = min(idle, key=lambda slot: (bool(slot.tokens), slot.used))
        slot.prefix, slot.tokens = None, []
        return self.take(slot)

    def prefix_of(self, prompt: Sequence[int]) -> Prefix | None:
        """The longest cached prefix that this prompt begins with and goes beyond."""
        fitting = [p for p in self.prefixes if len(p) < len(prompt) and prompt[: len(p)] == p.tokens]
        return max(fitting, key=len, default=None)

    def forget_prefixes(self) -> None:
        """Where there are many prefixes, forget those that no slot uses."""
        if len(self.prefixes) >= KEPT_PREFIXES:
            used = {id(slot.prefix) for slot in self.slots}
            self.prefixes = [prefix for prefix in self.prefixes if id(prefix) in used]

    def new_prefix(self, tokens: Sequence[int]) -> Prefix:
        """A prefix to be filled."""
        self._clock += 1
        self.prefixes.append(Prefix(list(tokens), self._clock))
        return self.prefixes[-1]

    def write(self, layer: int, slots: Tensor, columns: Tensor, k: Tensor, v: Tensor) -> None:
        """Store keys and values [N, H, d] at own positions `columns` [N] of `slots` [N]."""
        self.keys[layer][:, slots, columns] = k.transpose(0, 1)
        self.values[layer][:, slots, columns] = v.transpose(0, 1)
