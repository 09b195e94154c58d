"""Memory layout of a microbatch: one flat sequence of tokens without padding, with every shared prefix stored once.

Rows are sorted, so the longest prefix that a row shares with any earlier row is the one it shares with the row before.
Those tokens reuse the positions of the earlier row, and only the others are appended. Everything in a transformer but
attention works on single tokens, so the model runs on the flat sequence [1, N] unchanged. A token that eight episodes
share is one token in every matrix product, forward and backward, and its gradient is the sum over the eight.

On a GPU, `GpuTree` computes attention with `flex_attention`; elsewhere, `PlainTree` by the C kernels or by the formula.
Both store no scores.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from understudy.algorithms.batch import Batch, common_prefix_lengths
from understudy.engines.local.attention import AttentionSpec
from understudy.engines.local.cpu.tree import tree_attention
from understudy.engines.local.transfers import to_device
from understudy.engines.local.tree_attention import BLOCK, MIN_TOKENS, attend_tree, tree_mask


def pack_rows(batch: Batch, rows: Sequence[int], device: torch.device) -> "PlainTree | GpuTree":
    """Return the layout of a microbatch for a device. `rows` are row indices in sorted order, as from
    `plan_microbatches`."""
    return (GpuTree if device.type == "cuda" else PlainTree)(batch, rows, device)


class FlatRows:
    """The tokens of rows in one flat sequence of N tokens, on the CPU."""

    def __init__(self, batch: Batch, rows: Sequence[int]) -> None:
        """`rows` are row indices in sorted order, as from `plan_microbatches`."""
        tokens = [batch.tokens[row, : batch.lengths[row]] for row in rows]
        texts = [row.tolist() for row in tokens]
        shared = [0, *common_prefix_lengths(texts)]  # for each row, the number of tokens that an earlier row computes
        fresh = list(zip(tokens, shared, strict=True))
        self.tokens = torch.cat([row[known:] for row, known in fresh])  # [N]
        self.positions = torch.cat([torch.arange(known, len(row)) for row, known in fresh])  # [N]
        self.places: list[Tensor] = []
        """For each row, the flat positions of its tokens: those of the row before for the common prefix, then new
        ones."""
        self.subtree_end = torch.full(self.tokens.shape, len(self.tokens), dtype=torch.int32)
        """[N] For each token, the first later flat position of a token that does not come after it in a row."""
        size = 0
        for text, known in zip(texts, shared, strict=True):
            fresh_places = torch.arange(size, size + len(text) - known)
            if self.places:
                self.subtree_end[self.places[-1][known:]] = size
                fresh_places = torch.cat([self.places[-1][:known], fresh_places])
            self.places.append(fresh_places)
            size += len(text) - known


class GpuTree:
    """Layout of one microbatch on a GPU. The model's attention modules call `attend`.

    The flat sequence is padded to a multiple of 128 tokens. A padding token sees only itself.
    """

    def __init__(self, batch: Batch, rows: Sequence[int], device: torch.device) -> None:
        """`rows` are row indices in sorted order, as from `plan_microbatches`."""
        flat = FlatRows(batch, rows)
        self.num_tokens = len(flat.tokens)  # without padding
        padding = max(MIN_TOKENS, -(-self.num_tokens // BLOCK) * BLOCK) - self.num_tokens
        own_ends = torch.arange(self.num_tokens, self.num_tokens + padding, dtype=torch.int32) + 1
        self.places = _padded(flat.places)  # [R, T] flat positions of each row's tokens, padded
        self.tokens, self.positions = (
            to_device(F.pad(x, (0, padding))[None], device) for x in (flat.tokens, flat.positions)
        )  # [1, N]
        self._subtree_end, self._device = torch.cat([flat.subtree_end, own_ends]), device
        self._row_positions = F.pad(flat.positions, (0, padding))
        self._masks: dict[tuple[int, int], BlockMask] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Return causal attention [N, Hq, dv] of queries [N, Hq, d] over keys [N, H, d] and values [N, H, dv]."""
        return attend_tree(q, k, v, self.mask(spec), spec)

    def mask(self, spec: AttentionSpec) -> BlockMask:
        """Return the mask for a window or chunks, made once."""
        kind = spec.window, spec.chunk
        if kind not in self._masks:
            self._masks[kind] = tree_mask(self._subtree_end, self._row_positions, spec, self._device)
        return self._masks[kind]


class PlainTree:
    """Layout of one microbatch on a CPU or on MPS. The model's attention modules call `attend`."""

    def __init__(self, batch: Batch, rows: Sequence[int], device: torch.device) -> None:
        """`rows` are row indices in sorted order, as from `plan_microbatches`."""
        flat = FlatRows(batch, rows)
        self.num_tokens = len(flat.tokens)
        self.places = _padded(flat.places)  # [R, T] flat positions of each row's tokens, padded
        self.tokens, self.positions = (to_device(x[None], device) for x in (flat.tokens, flat.positions))  # [1, N]
        self._subtree_end, self._row_positions = (
            to_device(x, device) for x in (flat.subtree_end, flat.positions.int())
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Return causal attention [N, Hq, dv] of queries [N, Hq, d] over keys [N, H, d] and values [N, H, dv]."""
        return tree_attention(q, k, v, self._subtree_end, self._row_positions, spec)


def _padded(rows: Sequence[Tensor]) -> Tensor:
    """Return rows of flat positions as [b, longest], padded by repeating the last position of each row."""
    longest = max(map(len, rows))
    return torch.stack([torch.cat([row, row[-1:].expand(longest - len(row))]) for row in rows])
