"""Batches of trajectories as tensors, and their split into microbatches and across ranks.

Index convention: `logprobs[b, t]` is the log-probability of `tokens[b, t]` given `tokens[b, :t]`; `mask[:, 0]` is
False. Rows are padded on the right. Engines drop the padding and compute shared prefixes once (`plan_microbatches`).
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from understudy.core.sampling_masks import SamplingMask
from understudy.core.trajectory import Trajectory

LossOutput = tuple[Tensor, dict[str, Tensor]]
"""A loss to minimise and its metrics, all scalars."""
MICROBATCH_OVERHEAD = 64
"""Fixed cost of a microbatch in tokens. It makes `plan_microbatches` prefer fewer microbatches."""


@dataclass(frozen=True, slots=True)
class SamplingMasks:
    """N sampling masks, one after the other: the ids among which tokens were drawn. Mask 0 is empty: all ids."""

    token_ids: Tensor  # [K] int64
    offsets: Tensor  # [N + 1] int64, where each mask begins, and the end of the last

    @classmethod
    def from_masks(cls, masks: Sequence[SamplingMask]) -> Self:
        """Return the masks, after an empty one."""
        sizes = torch.tensor([0, 0, *map(len, masks)])
        return cls(torch.tensor([i for mask in masks for i in mask], dtype=torch.int64), sizes.cumsum(0))

    def sizes(self, numbers: Tensor) -> Tensor:
        """Return the sizes of the masks with these numbers."""
        return self.offsets[numbers + 1] - self.offsets[numbers]

    def select(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids of the masks with these numbers [M], one mask after the other, and each id's index in [M]."""
        sizes = self.sizes(numbers)
        owner = torch.repeat_interleave(sizes)
        first = self.offsets[numbers] - (sizes.cumsum(0) - sizes)
        return self.token_ids[first[owner] + torch.arange(len(owner))], owner


@dataclass(frozen=True)
class Batch:
    """B token sequences of at most T tokens, the rows. The stage that computes an optional tensor sets it with
    `replace`. An episode has one row for each of its sequences; all have its reward.
    """

    tokens: Tensor  # [B, T] int64
    lengths: Tensor  # [B] int64
    mask: Tensor  # [B, T] bool, True where the token was sampled by the policy and is trained on
    logprobs: Tensor  # [B, T] float32, of the policy that sampled the tokens
    rewards: Tensor  # [B] float32
    group_ids: Tensor  # [B] int64, the number of each row's group
    episode_ids: Tensor  # [B] int64, the number of each row's episode
    temperature: float = 1.0
    mask_numbers: Tensor | None = None  # [B, T] int64, the number of each token's mask in `sampling_masks`
    sampling_masks: SamplingMasks | None = None  # log-probabilities are those over the tokens of a mask
    advantages: Tensor | None = None  # [B, T] float32, token weights included
    ref_logprobs: Tensor | None = None  # [B, T] float32
    anchor_states: Tensor | None = None  # [B, T] int64, the state in which the token's reply started; -1 if none
    values: Tensor | None = None  # [B, T] float32, the critic's estimate before the token
    returns: Tensor | None = None  # [B, T] float32, the critic's targets
    value_weights: Tensor | None = None  # [B, T] float32, weights of the value loss; 0 where no action starts

    @classmethod
    def from_rows(
        cls,
        tokens: Sequence[Sequence[int]],
        masks: Sequence[Sequence[bool]],
        logprobs: Sequence[Sequence[float]] | None = None,
        rewards: Sequence[float] | None = None,
        group_ids: Sequence[int] | None = None,
        episode_ids: Sequence[int] | None = None,
        *,
        pad_id: int = 0,
        temperature: float = 1.0,
        anchor_states: Sequence[Sequence[int]] | None = None,
        sampling_masks: Sequence[Sequence[SamplingMask]] = (),
    ) -> Self:
        """Return a batch of rows of token ids, padded on the right with `pad_id`.

        `masks`, `logprobs` and `anchor_states` have one entry per token. Log-probabilities and rewards default to 0.
        `sampling_masks` has those of each row's sampled tokens, or none for a row. Estimators compare episodes with the
        same group id. By default every row is its own episode, and its own group.
        Raise ValueError if a row's mask has another length than its tokens.
        """
        sizes = [len(row) for row in tokens]
        if sizes != [len(row) for row in masks]:
            raise ValueError(f"rows of {sizes} tokens have masks of {[len(row) for row in masks]} entries")
        longest = max(sizes, default=0)

        def padded(rows: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
            return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], dtype=dtype)

        known: dict[SamplingMask, int] = {(): 0}
        numbers = [
            _spread([known.setdefault(one, len(known)) for one in of_row], mask)
            for of_row, mask in zip(sampling_masks, masks, strict=bool(sampling_masks))
        ]
        has_masks = len(known) > 1
        return cls(
            tokens=padded(tokens, pad_id, torch.int64),
            lengths=torch.tensor(sizes),
            mask=padded(masks, False, torch.bool),
            logprobs=padded([[0.0] * n for n in sizes] if logprobs is None else logprobs, 0.0, torch.float32),
            rewards=torch.tensor([0.0] * len(sizes) if rewards is None else rewards, dtype=torch.float32),
            group_ids=torch.tensor(list(range(len(sizes)) if group_ids is None else group_ids)),
            episode_ids=torch.tensor(list(range(len(sizes)) if episode_ids is None else episode_ids)),
            temperature=temperature,
            anchor_states=None if anchor_states is None else padded(anchor_states, -1, torch.int64),
            mask_numbers=padded(numbers, 0, torch.int64) if has_masks else None,
            sampling_masks=SamplingMasks.from_masks([*known][1:]) if has_masks else None,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def episode_rows(self) -> list[list[int]]:
        """Return the rows of each episode, in the order of their first rows."""
        rows: dict[int, list[int]] = {}
        for row, episode in enumerate(self.episode_ids.tolist()):
            rows.setdefault(episode, []).append(row)
        return list(rows.values())

    def replace(self, **tensors: Tensor) -> Self:
        """Return a copy with the given tensors replaced."""
        return dataclasses.replace(self, **tensors)  # type: ignore[arg-type]

    def select(self, indices: Sequence[int] | Tensor) -> Self:
        """Return the rows at `indices`, in that order."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        tensors: dict[str, Tensor] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                tensors[field.name] = value[index]
        return dataclasses.replace(self, **tensors)  # type: ignore[arg-type]


def _spread(numbers: Sequence[int], mask: Sequence[bool]) -> list[int]:
    """Return the numbers of a row's sampled tokens for all its tokens, with 0 for the others. They may be none."""
    own = iter(numbers or [0] * sum(mask))
    return [next(own) if sampled else 0 for sampled in mask]


def collate(
    trajectories: Sequence[Trajectory],
    group_ids: Sequence[int] | None = None,
    pad_id: int = 0,
    temperature: float = 1.0,
    anchor_states: Sequence[Sequence[int]] | None = None,
) -> Batch:
    """Return a batch with one row for each sequence of each trajectory (see `Batch.from_rows`).

    `group_ids` has one entry per trajectory, `anchor_states` one per row. Raise ValueError for one without a score.
    """
    numbers = [number for number, trajectory in enumerate(trajectories) for _ in trajectory.sequences]
    rows = [sequence for trajectory in trajectories for sequence in trajectory.sequences]
    return Batch.from_rows(
        [row.tokens for row in rows],
        [row.mask for row in rows],
        [row.logprobs for row in rows],
        [trajectories[number].reward for number in numbers],
        numbers if group_ids is None else [group_ids[number] for number in numbers],
        numbers,
        pad_id=pad_id,
        temperature=temperature,
        anchor_states=anchor_states,
        sampling_masks=[row.sampling_masks for row in rows],
    )


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Rows whose first `prefix_length` tokens are equal."""

    rows: tuple[int, ...]
    prefix_length: int


def partition_by_prefix(sequences: Sequence[Sequence[int]], max_prefixes: Sequence[int]) -> list[SharedPrefix]:
    """Return a partition of `sequences` into parts with a common prefix, so that few tokens are computed.

    The tokens of a common prefix are computed once per part instead of once per row. Row i shares at most its first
    `max_prefixes[i]` tokens. There is one level of sharing, and each part is contiguous in sorted order.
    """
    if not sequences:
        return []
    order = sorted(range(len(sequences)), key=lambda i: list(sequences[i][: max_prefixes[i]]))
    prefixes = [sequences[i][: max_prefixes[i]] for i in order]
    spans = _prefix_spans(common_prefix_lengths(prefixes))
    return [SharedPrefix(tuple(order[low:high]), length) for low, high, length in spans]


def _prefix_spans(common: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (low, high, prefix length) for spans [low, high) of sorted sequences.

    Sequences i and i + 1 share `common[i]` tokens. A span is cut at its smallest common prefix if the two halves save
    more tokens than the uncut span. This is iterative because the depth can reach the number of sequences.
    """
    cuts: dict[tuple[int, int], int] = {}
    stack = [(0, len(common) + 1)]
    while stack:
        span = stack.pop()
        low, high = span
        if high - low > 1:
            cut = min(range(low, high - 1), key=common.__getitem__)
            cuts[span] = cut
            stack += [(low, cut + 1), (cut + 1, high)]
    saved: dict[tuple[int, int], int] = {}
    uncut: dict[tuple[int, int], int] = {}
    for (low, high), cut in reversed(cuts.items()):  # the reversed order visits both halves before their span
        saved_if_cut = saved.get((low, cut + 1), 0) + saved.get((cut + 1, high), 0)
        saved_if_uncut = common[cut] * (high - low - 1)
        saved[low, high] = max(saved_if_cut, saved_if_uncut)
        if saved_if_uncut and saved_if_uncut >= saved_if_cut:
            uncut[low, high] = common[cut]
    stack = [(0, len(common) + 1)]
    while stack:
        span = stack.pop()
        low, high = span
        if span in uncut or span not in cuts:
            yield low, high, uncut.get(span, 0)
        else:
            stack += [(cuts[span] + 1, high), (low, cuts[span] + 1)]


def _common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix of `a` and `b`."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def common_prefix_lengths(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the length of the common prefix of each row and the next one; one entry fewer than `rows`."""
    return [_common_prefix_length(a, b) for a, b in itertools.pairwise(rows)]


def plan_microbatches(batch: Batch, max_tokens: int) -> list[list[int]]:
    """Return microbatches of at most `max_tokens` computed tokens, each a list of row indices in sorted order.

    A microbatch computes a common prefix of its rows once: the prompt of a group, and replies and tool results that
    episodes share. The split minimises the total of computed tokens. A row longer than `max_tokens` is a microbatch of
    its own.
    """
    order, lengths, common = _sort_rows(batch)
    return [order[low:high] for low, high in _cheapest_spans(lengths, common, max_tokens)]


def count_distinct_tokens(batch: Batch) -> int:
    """Return the number of tokens that one microbatch of all rows computes: a common prefix counts once."""
    _, lengths, common = _sort_rows(batch)
    return sum(lengths) - sum(common)


def split_across_ranks(batch: Batch, num_parts: int) -> list[list[int]]:
    """Return all row indices in `num_parts` lists, in sorted order; some lists may be empty.

    The split minimises the computed tokens of the largest part. A part computes a common prefix of its rows once, as in
    `plan_microbatches`.
    """
    order, lengths, common = _sort_rows(batch)
    low = max(lengths, default=0)
    high = sum(lengths)
    while low < high:
        middle = (low + high) // 2
        if len(_greedy_spans(lengths, common, middle)) <= num_parts:
            high = middle
        else:
            low = middle + 1
    spans = _greedy_spans(lengths, common, low)
    return [order[start:stop] for start, stop in spans] + [[] for _ in range(num_parts - len(spans))]


def _sort_rows(batch: Batch) -> tuple[list[int], list[int], list[int]]:
    """Return the row indices sorted by tokens, the rows' lengths, and the common prefix lengths of neighbours."""
    rows = [row[:n] for row, n in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    ordered = [rows[i] for i in order]
    return order, [len(row) for row in ordered], common_prefix_lengths(ordered)


def _greedy_spans(lengths: Sequence[int], common: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Return spans of at most `budget` computed tokens, filled one after the other. No row may exceed `budget`."""
    spans: list[tuple[int, int]] = []
    size = 0
    for row, length in enumerate(lengths):
        size += length - (common[row - 1] if row else 0)
        if spans and size <= budget:
            spans[-1] = (spans[-1][0], row + 1)
        else:
            spans.append((row, row + 1))
            size = length
    return spans


def _cheapest_spans(lengths: Sequence[int], common: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Return the spans of at most `budget` computed tokens with the lowest total cost, by dynamic programming.

    Rows i and i + 1 share `common[i]` tokens. The first row of a span computes all its tokens; each later row computes
    the tokens that it does not share with the row before it.
    """
    costs = [0]  # costs[high] is the lowest cost of the rows before `high`
    starts = [0]  # starts[high] is the first row of the last span of that solution
    for high in range(1, len(lengths) + 1):
        low = high - 1
        size = lengths[low]
        best = costs[low] + size + MICROBATCH_OVERHEAD
        start = low
        while low:
            size += lengths[low - 1] - common[low - 1]
            if size > budget:
                break
            low -= 1
            total = costs[low] + size + MICROBATCH_OVERHEAD
            if total < best:
                best = total
                start = low
        costs.append(best)
        starts.append(start)
    spans = []
    high = len(lengths)
    while high:
        spans.append((starts[high], high))
        high = starts[high]
    return spans[::-1]
