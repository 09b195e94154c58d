"""Sampling passes of padded models: each sequence has transformers' own cache, and decoding joins them to one batch.

The caches hold keys and values of full or windowed attention, and the states of convolutions and linear attention. A
batch is padded on the left, so that distances between tokens, and with them windows, stay as they are.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.engines.local.model import LocalModel
from understudy.engines.local.sampling.sequence_cache import CachedPrefix, CacheSlot, SequenceCache
from understudy.engines.local.transfers import to_device

MAX_PREFILL_TOKENS = 4096
"""New tokens of a prefill pass over several sequences, at most."""


@dataclass(slots=True)
class CachedRows:
    """What transformers caches of rows, padded on the left: in layers of `JOINABLE_LAYERS`, or of a single row."""

    cache: Any
    lengths: list[int]
    """The number of cached tokens of each row, without padding."""

    def select(self, rows: Sequence[int]) -> "CachedRows":
        """Return a copy of some rows, with no more padding than they need."""
        if len(self.lengths) == 1:
            return copy.deepcopy(self)
        lengths = [self.lengths[row] for row in rows]
        found = copy.copy(self.cache)
        found.layers = [_select(layer, rows, max(lengths)) for layer in self.cache.layers]
        return CachedRows(found, lengths)


def join_rows(parts: Sequence[CachedRows]) -> CachedRows:
    """Return one batch of the rows of all parts. Its tensors may be those of a single part."""
    if len(parts) == 1:
        return parts[0]
    lengths = [length for part in parts for length in part.lengths]
    found = copy.copy(parts[0].cache)
    found.layers = [_join(layers, max(lengths)) for layers in zip(*(part.cache.layers for part in parts), strict=True)]
    return CachedRows(found, lengths)


def _select(layer: Any, rows: Sequence[int], length: int) -> Any:
    """Return a copy of a layer with some rows, of which the longest has `length` tokens."""
    found = copy.copy(layer)
    if _has_keys(layer):
        width = min(layer.keys.shape[-2], length)
        index = to_device(torch.tensor(rows), layer.keys.device)
        found.keys, found.values = (x[index, :, x.shape[-2] - width :] for x in (layer.keys, layer.values))
    return _with_states(found, lambda states: states[to_device(torch.tensor(rows), states.device)], [layer], length)


def _join(layers: Sequence[Any], length: int) -> Any:
    """Return one layer with the rows of all, of which the longest has `length` tokens."""
    found = copy.copy(layers[0])
    if _has_keys(found):
        width = max(layer.keys.shape[-2] for layer in layers)
        found.keys = torch.cat([F.pad(x.keys, (0, 0, width - x.keys.shape[-2], 0)) for x in layers])
        found.values = torch.cat([F.pad(x.values, (0, 0, width - x.values.shape[-2], 0)) for x in layers])
    return _with_states(found, lambda *states: torch.cat(states), layers, length)


def _has_keys(layer: Any) -> bool:
    return getattr(layer, "keys", None) is not None


def _with_states(found: Any, combine: Any, layers: Sequence[Any], length: int) -> Any:
    """Set a layer's length, and the states that it has besides keys and values."""
    if hasattr(found, "cumulative_length"):
        found.cumulative_length = length
    for name in ("conv_states", "recurrent_states"):
        if hasattr(found, name):
            numbers = getattr(found, name)
            combined = {
                i: None if numbers[i] is None else combine(*(getattr(layer, name)[i] for layer in layers))
                for i in numbers
            }
            setattr(found, name, combined)
    for name in ("is_conv_states_initialized", "is_recurrent_states_initialized", "has_previous_state"):
        if hasattr(found, name):
            setattr(found, name, dict(getattr(found, name)))
    return found


class StateCache(SequenceCache):
    """Slots whose rows are in the batch that is being decoded, or stored alone."""

    def clear(self) -> None:
        """Clear the cache, because the weights have changed."""
        super().clear()
        self._alone: dict[int, CachedRows] = {}
        self._batch = CachedRows(None, [])
        self._batch_slots: list[int] = []

    def rows_of(self, slot: CacheSlot) -> CachedRows:
        """Return a copy of a slot's row."""
        if slot.index in self._batch_slots:
            return self._batch.select([self._batch_slots.index(slot.index)])
        return self._alone[slot.index].select([0])

    def store(self, slot: CacheSlot, rows: CachedRows) -> None:
        """Set the row of a slot."""
        self._forget(slot)
        self._alone[slot.index] = rows

    def take(self, slots: Sequence[CacheSlot]) -> CachedRows:
        """Return the rows of slots as a batch in this order, to be stored again after a forward pass."""
        rows = join_rows([self.rows_of(slot) for slot in slots])
        for slot in slots:
            self._forget(slot)
        return rows

    def take_batch(self, slots: Sequence[CacheSlot]) -> tuple[CachedRows, list[int]]:
        """Return the rows of these slots as a batch, and the place of each slot in it, for a forward pass.

        The batch stays as it is while the slots do. Store what the pass makes of it with `store_batch`.
        """
        wanted = [slot.index for slot in slots]
        if set(wanted) != set(self._batch_slots):
            for row, index in enumerate(self._batch_slots):
                if index >= 0 and index not in wanted:
                    self._alone[index] = self._batch.select([row])
            staying = [row for row, index in enumerate(self._batch_slots) if index in wanted]
            kept = [self._batch_slots[row] for row in staying]
            joining = [index for index in wanted if index not in kept]
            parts = [self._batch.select(staying)] if staying else []
            self._batch = join_rows([*parts, *(self._alone.pop(index) for index in joining)])
            self._batch_slots = kept + joining
        return self._batch, [self._batch_slots.index(index) for index in wanted]

    def store_batch(self, rows: CachedRows) -> None:
        """Replace the batch by what a forward pass has made of it."""
        self._batch = rows

    def evict(self) -> CacheSlot:
        """Return the least recently used idle slot, cleared. There must be one."""
        slot = super().evict()
        self._forget(slot)
        return slot

    def fill_from_prefixes(self, slot: CacheSlot, prompt: Sequence[int]) -> None:
        """Copy the longest cached prefix of the prompt to a cleared slot."""
        prefix = self.find_prefix(prompt)
        if prefix:
            slot.tokens = list(prefix.tokens)
            self.store(slot, prefix.state.select([0]))

    def fill_from_slots(self, slot: CacheSlot, prompt: Sequence[int]) -> None:
        """Copy all that another slot has computed, if the prompt goes on from there and this slot has less.

        A part of it would not do: states of linear attention cannot go back.
        """
        fitting = [other for other in self.slots if other.is_continued_by(prompt)]
        source = max(fitting, key=lambda other: len(other.tokens), default=slot)
        if len(source.tokens) > len(slot.tokens):
            self.copy(source, slot, source.tokens)

    def copy(self, source: CacheSlot, target: CacheSlot, tokens: Sequence[int]) -> None:
        """Copy the row of `source`, which are these tokens, to `target`."""
        target.tokens = list(tokens)
        self.store(target, self.rows_of(source))

    def discard(self, slot: CacheSlot) -> None:
        """Free a slot."""
        slot.busy, slot.tokens = False, []
        self._forget(slot)

    def _forget(self, slot: CacheSlot) -> None:
        self._alone.pop(slot.index, None)
        self._batch_slots = [-1 if index == slot.index else index for index in self._batch_slots]


class PaddedPasses:
    """Passes over batches of sequences, each with its own cache."""

    supports_drafts = False  # states of linear attention cannot go back

    def __init__(self, model: LocalModel, num_slots: int) -> None:
        assert model.padded is not None
        self._forward_pass, self._device = model.padded, model.device
        self.cache = StateCache(num_slots)

    def clear(self) -> None:
        """Clear the cache, because the weights have changed."""
        self.cache.clear()

    def compute_prefix(self, prefix: CachedPrefix) -> None:
        """Compute the cache of a prefix."""
        _, prefix.state = self._forward([prefix.tokens], None)

    def prefill(self, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]]) -> Tensor:
        """Compute the new tokens of slots. Those with as many cached and as many new tokens share a pass."""
        last: dict[int, Tensor] = {}
        sizes = [(len(slot.tokens), len(tokens)) for slot, tokens in zip(slots, new, strict=True)]
        for size in sorted(set(sizes)):
            places = [i for i, found in enumerate(sizes) if found == size]
            while places:
                count = max(1, MAX_PREFILL_TOKENS // size[1]) if self._forward_pass.joins_rows else 1
                part, places = places[:count], places[count:]
                known = self.cache.take([slots[i] for i in part]) if size[0] else None
                hidden, rows = self._forward([new[i] for i in part], known)
                for row, i in enumerate(part):
                    last[i] = hidden[row, -1]
                    self.cache.store(slots[i], rows.select([row]) if len(part) > 1 else rows)
        return torch.stack([last[i] for i in range(len(slots))])

    def decode(self, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]]) -> Tensor:
        """Compute the last token of each slot."""
        if not self._forward_pass.joins_rows:
            return torch.cat([self.prefill([slot], [tokens]) for slot, tokens in zip(slots, new, strict=True)])
        batch, places = self.cache.take_batch(slots)
        tokens = dict(zip(places, new, strict=True))
        hidden, batch = self._forward([tokens[place] for place in range(len(places))], batch)
        self.cache.store_batch(batch)
        return hidden[to_device(torch.tensor(places), hidden.device), -1]

    def _forward(self, new: Sequence[Sequence[int]], known: CachedRows | None) -> tuple[Tensor, CachedRows]:
        """Compute as many new tokens for each row. Return their hidden states [n, q, D], and the rows' caches."""
        tokens = to_device(torch.tensor([list(row) for row in new]), self._device)
        known = known or CachedRows(None, [0] * len(new))
        hidden, cache = self._forward_pass.continue_rows(tokens, known.cache, known.lengths)
        return hidden, CachedRows(cache, [length + tokens.shape[1] for length in known.lengths])
