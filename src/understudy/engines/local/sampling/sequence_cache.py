"""The sequences that the sampler has computed: shared prefixes, and a slot for each sequence's own tokens.

A slot outlives its reply: the next turn of the same episode finds it by its tokens and computes only new tokens. The
least recently used slots are evicted first. Subclasses store what the model has computed.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

MIN_COPIED_TOKENS = 16  # copying fewer is not worth a search
MAX_IDLE_PREFIXES = 16  # with this many prefixes, unused ones are dropped


@dataclass(slots=True, eq=False)
class CachedPrefix:
    """Tokens that sequences share, with keys and values [H, P, d] of each layer."""

    tokens: list[int]
    index: int
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    state: Any = None
    """What a `StateCache` stores in place of keys and values."""

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


class SequenceCache(ABC):
    """The state of slots and prefixes."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._clock = 0
        self.clear()

    def clear(self) -> None:
        """Clear the cache, because the weights have changed."""
        self.slots = [CacheSlot(i) for i in range(self._num_slots)]
        self.prefixes: list[CachedPrefix] = []

    @abstractmethod
    def copy(self, source: CacheSlot, target: CacheSlot, tokens: Sequence[int]) -> None:
        """Copy what is stored of `tokens`, the first of `source` and at least those of its prefix, to `target`."""

    @abstractmethod
    def discard(self, slot: CacheSlot) -> None:
        """Free a slot whose stored numbers may be NaN, so that they reach no later sequence."""

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

    def drop_idle_prefixes(self) -> None:
        """Drop prefixes that no slot uses, if there are `MAX_IDLE_PREFIXES` or more."""
        if len(self.prefixes) >= MAX_IDLE_PREFIXES:
            used = {id(slot.prefix) for slot in self.slots}
            self.prefixes = [prefix for prefix in self.prefixes if id(prefix) in used]

    def add_prefix(self, tokens: Sequence[int]) -> CachedPrefix:
        """Add a prefix of which nothing is computed and return it."""
        self._clock += 1
        self.prefixes.append(CachedPrefix(list(tokens), self._clock))
        return self.prefixes[-1]


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
