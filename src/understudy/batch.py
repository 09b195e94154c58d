"""Batch: the tensors of many trajectories, and how they are cut into what a machine can hold.

Index convention: `logprobs[b, t]` is the log-probability of `tokens[b, t]` given `tokens[b, :t]`; `mask[:, 0]` is
False. Rows are padded at the right; engines drop the padding, and compute once what rows begin with (`plan`).
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from understudy.trajectory import Trajectory

MICROBATCH = 64
"""What a micro-batch is taken to cost beyond its tokens, in tokens: plans of few micro-batches are preferred."""


@dataclass(frozen=True)
class Batch:
    """B rows of at most T tokens. The optional tensors are filled by the stage that makes them."""

    tokens: Tensor  # [B, T] int64
    lengths: Tensor  # [B] int64
    mask: Tensor  # [B, T] bool, True where the token was sampled by the policy and is trained on
    logprobs: Tensor  # [B, T] float32, of the policy that sampled
    rewards: Tensor  # [B] float32
    group: Tensor  # [B] int64; rows of one task share a number
    temperature: float = 1.0
    advantages: Tensor | None = None  # [B, T] float32, every mean folded in
    ref_logprobs: Tensor | None = None  # [B, T] float32
    situations: Tensor | None = None  # [B, T] int64, in which a token's reply was begun; -1 where none was
    values: Tensor | None = None  # [B, T] float32, what a critic expects before the token was sampled
    returns: Tensor | None = None  # [B, T] float32, what it should have expected
    value_weights: Tensor | None = None  # [B, T] float32, every mean folded in; 0 where no step begins

    def __len__(self) -> int:
        return len(self.tokens)

    def with_(self, **tensors: Tensor) -> Self:
        """A copy with some tensors replaced."""
        return dataclasses.replace(self, **tensors)  # type: ignore[arg-type]

    def rows(self, index: Sequence[int] | Tensor) -> Self:
        """The rows of `index`, in its order."""
        chosen = torch.as_tensor(index, dtype=torch.int64)
        tensors = {
            f.name: v[chosen] for f in dataclasses.fields(self) if isinstance(v := getattr(self, f.name), Tensor)
        }
        return dataclasses.replace(self, **tensors)  # type: ignore[arg-type]


def collate(
    trajectories: Sequence[Trajectory],
    group: Sequence[int] | None = None,
    pad: int = 0,
    temperature: float = 1.0,
    situations: Sequence[Sequence[int]] | None = None,
) -> Batch:
    """One row a trajectory. Rows of one `group` number are compared with each other; by default each stands alone."""
    lengths = torch.tensor([len(t.tokens) for t in trajectories])
    longest = int(lengths.max()) if len(trajectories) else 0

    def padded(rows: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], dtype=dtype)

    return Batch(
        tokens=padded([t.tokens for t in trajectories], pad, torch.int64),
        lengths=lengths,
        mask=padded([t.mask for t in trajectories], False, torch.bool),
        logprobs=padded([t.logprobs for t in trajectories], 0.0, torch.float32),
        rewards=torch.tensor([t.reward for t in trajectories], dtype=torch.float32),
        group=torch.tensor(list(group) if group is not None else list(range(len(trajectories)))),
        temperature=temperature,
        situations=padded(situations, -1, torch.int64) if situations is not None else None,
    )


@dataclass(frozen=True, slots=True)
class Shared:
    """Rows that share their first `prefix` tokens."""

    rows: tuple[int, ...]
    prefix: int


def shared_prefixes(sequences: Sequence[Sequence[int]], limits: Sequence[int]) -> list[Shared]:
    """Partition sequences so that computing each part's common prefix once saves many tokens.

    Row i shares at most its first `limits[i]` tokens. One level of sharing; parts are neighbours in sorted order.
    """
    order = sorted(range(len(sequences)), key=lambda i: list(sequences[i][: limits[i]]))
    heads = [sequences[i][: limits[i]] for i in order]
    return [Shared(tuple(order[low:high]), n) for low, high, n in _parts(common_prefixes(heads))] if order else []


def _parts(common: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Spans [low, high) of sorted sequences and what each shares, where neighbours i and i + 1 share `common[i]`.

    A span is cut where its neighbours share least, if its two sides save more tokens than the whole. No recursion: as
    many sequences as there are may be alike.
    """
    cuts: dict[tuple[int, int], int] = {}
    todo = [(0, len(common) + 1)]
    while todo:
        low, high = span = todo.pop()
        if high - low > 1:
            cuts[span] = cut = min(range(low, high - 1), key=common.__getitem__)
            todo += [(low, cut + 1), (cut + 1, high)]
    saved: dict[tuple[int, int], int] = {}
    whole: dict[tuple[int, int], int] = {}
    for (low, high), cut in reversed(cuts.items()):  # sides before the span that they are of
        apart = saved.get((low, cut + 1), 0) + saved.get((cut + 1, high), 0)
        together = common[cut] * (high - low - 1)
        saved[low, high] = max(apart, together)
        if together and together >= apart:
            whole[low, high] = common[cut]
    todo = [(0, len(common) + 1)]
    while todo:
        low, high = span = todo.pop()
        if span in whole or span not in cuts:
            yield low, high, whole.get(span, 0)
        else:
            todo += [(cuts[span] + 1, high), (low, cuts[span] + 1)]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def common_prefixes(rows: Sequence[Sequence[int]]) -> list[int]:
    """How many tokens each row shares with the next one."""
    return [_common(a, b) for a, b in itertools.pairwise(rows)]


def plan(batch: Batch, budget: int) -> list[list[int]]:
    """Micro-batches of at most `budget` computed tokens, each a list of rows in sorted order.

    Within a micro-batch what rows begin with alike is computed once, however far that goes: a group's prompt, and also
    replies and results that episodes share. The cuts are those that compute least. A single row may exceed the budget.
    """
    order, lengths, common = _in_order(batch)
    return [order[low:high] for low, high in _cuts(lengths, common, budget)]


def shares(batch: Batch, count: int) -> list[list[int]]:
    """All rows in `count` parts, in sorted order: the largest part computes as few tokens as can be; some may be empty.

    Within a part what rows begin with alike can be computed once, as in `plan`.
    """
    order, lengths, common = _in_order(batch)
    low, high = max(lengths, default=0), sum(lengths)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_filled(lengths, common, middle)) <= count else (middle + 1, high)
    spans = _filled(lengths, common, low)
    return [order[start:stop] for start, stop in spans] + [[] for _ in range(count - len(spans))]


def _in_order(batch: Batch) -> tuple[list[int], list[int], list[int]]:
    """The rows' numbers as they are sorted, their lengths, and how many tokens each shares with the next one."""
    rows = [row[:n] for row, n in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    ordered = [rows[i] for i in order]
    return order, [len(row) for row in ordered], common_prefixes(ordered)


def _filled(lengths: Sequence[int], common: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Spans that compute up to `budget` tokens, each begun where the one before is full; no row may exceed it."""
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


def _cuts(lengths: Sequence[int], common: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """The spans that compute least in all, where row i and row i + 1 share `common[i]` tokens.

    The first row of a span computes all its tokens, each later one those that it does not share with the one before.
    """
    least, begins = [0], [0]
    for high in range(1, len(lengths) + 1):
        low, size = high - 1, lengths[high - 1]
        best, begin = least[low] + size + MICROBATCH, low
        while low and (size := size + lengths[low - 1] - common[low - 1]) <= budget:
            low -= 1
            if (total := least[low] + size + MICROBATCH) < best:
                best, begin = total, low
        least.append(best)
        begins.append(begin)
    spans = []
    high = len(lengths)
    while high:
        spans.append((begins[high], high))
        high = begins[high]
    return spans[::-1]
