"""Decoding passes on an NVIDIA GPU as CUDA graphs.

A decoding pass is a thousand or more small operations, and the host takes much longer to start them than the GPU to
compute them. So a pass is recorded once for each number of rows, and later replayed by one call (PyTorch's docs, "CUDA
semantics: CUDA graphs"). A recorded pass reads its inputs from one table at a fixed address. The table is also what
`decode_kernel` reads, so the number of prefixes and their lengths are not part of the recording.
"""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from understudy.engines.local.attention import AttentionSpec
from understudy.engines.local.model import LocalModel
from understudy.engines.local.nf4 import Nf4Linear
from understudy.engines.local.sampling.kv_cache import KVCache
from understudy.engines.local.sampling.sequence_cache import CacheSlot

MIN_ROWS = 8
"""Passes are recorded for powers of two of rows from this one on. Spare rows repeat the last one."""
COLUMN, TOKEN, POSITION, PREFIXES = 3, 4, 5, 6
"""Rows of the table after slot, own length and prefix length. From `PREFIXES` on there are two for each layer."""


def supports_graphs(model: LocalModel) -> bool:
    """Return True if decoding passes of this model can be recorded.

    Sharded weights move in memory, rotary angles that depend on the longest position are chosen by the host, and the
    kernels of 4-bit weights have not been tried.
    """
    rope = getattr(model.config, "rope_parameters", None) or {}
    return (
        model.device.type == "cuda"
        and torch.version.cuda is not None
        and find_spec("triton") is not None
        and model.fsdp_shards is None
        and not any(isinstance(module, Nf4Linear) for module in model.network.modules())
        and rope.get("rope_type", "default") not in ("dynamic", "longrope")
    )


class DecodeGraphs:
    """Recorded decoding passes of a model. They are recorded again after the cache's tensors have been replaced."""

    def __init__(self, model: LocalModel, cache: KVCache) -> None:
        self._model, self._cache = model, cache
        self._version = cache.version
        self._recorded: dict[int, _RecordedPass] = {}

    def clear(self) -> None:
        """Free the memory of all recorded passes."""
        self._recorded = {}

    def hidden_states(self, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]]) -> Tensor:
        """Return the hidden states [N, D] of the new tokens of each slot, in order, and store their keys and values.

        The result lies in memory that the next call overwrites.
        """
        if self._version != self._cache.version:
            self.clear()
            self._version = self._cache.version
        columns = self._columns(slots, new)
        size = max(MIN_ROWS, 1 << (len(columns) - 1).bit_length())
        table = torch.tensor([*columns, *[columns[-1]] * (size - len(columns))]).T.contiguous().pin_memory()
        if size not in self._recorded:
            self._recorded[size] = _RecordedPass(self._model, self._cache, table)
        return self._recorded[size].replay(table)[: len(columns)]

    def _columns(self, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the column of the table for each new token."""
        columns = []
        for slot, tokens in zip(slots, new, strict=True):
            prefix = slot.prefix
            addresses = [0] * (2 * self._model.config.num_hidden_layers)
            if prefix:
                pairs = zip(prefix.keys, prefix.values, strict=True)
                addresses = [x.data_ptr() for pair in pairs for x in pair]
            length, own = len(slot.tokens), slot.own_length
            for i, token in enumerate(tokens):
                columns.append([slot.index, own + i + 1, len(prefix or ()), own + i, token, length + i, *addresses])
        return columns


class _RecordedPass:
    """A decoding pass for one number of rows, as a CUDA graph."""

    def __init__(self, model: LocalModel, cache: KVCache, table: Tensor) -> None:
        self._cache = cache
        self._table = torch.empty_like(table, device=model.device)
        self._table.copy_(table, non_blocking=True)
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._forward(model)  # libraries allocate and compile in the first pass, which cannot be recorded
            stream.synchronize()
            self._graph.capture_begin(capture_error_mode="thread_local")
            self._hidden = self._forward(model)
            self._graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def replay(self, table: Tensor) -> Tensor:
        """Compute the pass for a table in pinned memory. Return the hidden states [N, D] of all its rows."""
        self._table.copy_(table, non_blocking=True)
        self._graph.replay()
        return self._hidden

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Store the new keys and values, then return attention over prefix and own tokens."""
        from understudy.engines.local.sampling.decode_kernel import decode_rows

        table = self._table
        self._cache.write(layer, table[0], table[COLUMN], k, v)
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        prefixes = table[PREFIXES + 2 * layer : PREFIXES + 2 * layer + 2]
        return decode_rows(q, keys, values, table[:3], prefixes, spec)

    def _forward(self, model: LocalModel) -> Tensor:
        return model.hidden_states(self._table[TOKEN, None], self._table[POSITION, None], self)
