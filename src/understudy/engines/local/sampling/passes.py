"""The sampler's forward passes, and what they store of each sequence."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from understudy.engines.local.model import LocalModel
from understudy.engines.local.sampling.decode_graphs import DecodeGraphs, supports_graphs
from understudy.engines.local.sampling.fused_decoding import FusedDecoding, supports_fused_decoding
from understudy.engines.local.sampling.kv_cache import KVCache
from understudy.engines.local.sampling.layouts import DecodeLayout, PrefillLayout, PrefixFillLayout
from understudy.engines.local.sampling.sequence_cache import CachedPrefix, CacheSlot, SequenceCache
from understudy.engines.local.transfers import to_device


class SamplingPasses(Protocol):
    """Passes of one kind of model, and their cache."""

    supports_drafts: bool
    """Whether `decode` takes draft tokens, of which the last may be dropped afterwards."""

    @property
    def cache(self) -> SequenceCache:
        """What is stored of each sequence."""

    def clear(self) -> None:
        """Clear the cache, because the weights have changed."""

    def compute_prefix(self, prefix: CachedPrefix) -> None:
        """Compute a prefix that has only tokens."""

    def prefill(self, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]]) -> Tensor:
        """Compute the new tokens of each slot. Return the hidden states [S, D] of the last ones."""

    def decode(self, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]]) -> Tensor:
        """Compute the last token and the draft tokens of each slot. Return the hidden states [N, D] of all."""


class FlatPasses:
    """Passes over flat sequences, in which sequences share the keys and values of common prefixes."""

    supports_drafts = True

    def __init__(self, model: LocalModel, num_slots: int) -> None:
        self._model = model
        self.cache = KVCache(num_slots)
        self._graphs = DecodeGraphs(model, self.cache) if supports_graphs(model) else None
        self._fuses = supports_fused_decoding(model)
        self._fused: FusedDecoding | None = None

    def clear(self) -> None:
        """Clear the cache and the recorded passes."""
        self.cache.clear()
        self._fused = None
        if self._graphs:
            self._graphs.clear()

    def compute_prefix(self, prefix: CachedPrefix) -> None:
        """Compute keys and values of a prefix."""
        tokens = to_device(torch.tensor(prefix.tokens), self._model.device)[None]
        positions = torch.arange(len(prefix), device=self._model.device)[None]
        self._model.hidden_states(tokens, positions, PrefixFillLayout(prefix))

    def prefill(self, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]]) -> Tensor:
        """Compute the new tokens of slots, of which those with the same prefix are adjacent."""
        self._reserve(slots, new)
        layout = PrefillLayout(self.cache, slots, new, self._model.device)
        return self._model.hidden_states(layout.tokens, layout.positions, layout)[layout.last]

    def decode(self, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]]) -> Tensor:
        """Compute a few tokens of slots, of which those with the same prefix are adjacent."""
        self._reserve(slots, new)
        if self._graphs:
            return self._graphs.hidden_states(slots, new)
        if self._fuses:
            self._fused = self._fused or FusedDecoding(self._model, self.cache)
            return self._fused.hidden_states(slots, new)
        layout = DecodeLayout(self.cache, slots, new, self._model.device)
        return self._model.hidden_states(layout.tokens, layout.positions, layout)

    def _reserve(self, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]]) -> None:
        self.cache.reserve(max(slot.own_length + len(tokens) for slot, tokens in zip(slots, new, strict=True)))
