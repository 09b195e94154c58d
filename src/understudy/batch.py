"""Batch: the tensors of many trajectories, and how they are cut into what a machine can hold.

Index convention: `logprobs[b, t]` is the log-probability of `tokens[b, t]` given `tokens[b, :t]`; `mask[:, 0]` is
False. Rows are padded at the right; engines drop the padding, and compute a prefix that rows share only once (`plan`).
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from understudy.trajectory import Trajectory


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

    def __len__(self) -> int:
        return len(self.tokens)

    def with_(self, **tensors: Tensor) -> Self:
        """A copy with some tensors replaced."""
        return dataclasses.replace(self, **tensors)  # type: ignore[arg-type]

    def rows(self, index: Sequence[int] | Tensor) -> Self:
        """The rows of `index`, in its order."""
        chosen = torch.as_tensor(index)
        tensors = {
            f.name: v[chosen] for f in dataclasses.fields(self) if isinstance(v := getattr(self, f.name), Tensor)
        }
        return dataclasses.replace(self, **tensors)  # type: ignore[arg-type]


def collate(
    trajectories: Sequence[Trajectory],
    group: Sequence[int] | None = None,
    pad: int = 0,
    temperature: float = 1.0,
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
    common = [_common(a, b) for a, b in itertools.pairwise(heads)]
    return [Shared(tuple(order[low:high]), prefix) for low, high, prefix in _parts(common)] if order else []


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


def plan(batch: Batch, budget: int) -> list[list[Shared]]:
    """Micro-batches of at most about `budget` computed tokens, each a list of row groups with a shared prefix.

    Rows of similar length go together. A prefix ends before the first trained token of its rows, so that trained tokens
    are a row's own; it is computed once in each micro-batch that needs it. A single row may exceed the budget.
    """
    lengths = batch.lengths.tolist()
    first = [int(row.nonzero()[0]) if row.any() else n - 1 for row, n in zip(batch.mask, lengths, strict=True)]
    rows = [row[:n] for row, n in zip(batch.tokens.tolist(), lengths, strict=True)]
    pieces: list[Shared] = []
    for part in shared_prefixes(rows, first):
        pieces += _within(part, lengths, budget)
    return _packed(pieces, lengths, budget)


def _within(part: Shared, lengths: Sequence[int], budget: int) -> list[Shared]:
    """Cut one group of rows, sorted by length, where its padded own tokens exceed the budget."""
    pieces: list[list[int]] = []
    for row in sorted(part.rows, key=lambda r: -lengths[r]):
        current = pieces[-1] if pieces else []
        longest = lengths[current[0]] - part.prefix if current else 0
        size = part.prefix + longest * (len(current) + 1)
        if not current or size > budget:
            pieces.append([row])
        else:
            current.append(row)
    return [Shared(tuple(piece), part.prefix if len(piece) > 1 else 0) for piece in pieces]


def _packed(pieces: Sequence[Shared], lengths: Sequence[int], budget: int) -> list[list[Shared]]:
    """First-fit decreasing of pieces into micro-batches."""
    bins: list[tuple[int, list[Shared]]] = []
    for piece in sorted(pieces, key=lambda p: -computed_tokens(p, lengths)):
        size = computed_tokens(piece, lengths)
        for i, (used, content) in enumerate(bins):
            if used + size <= budget:
                bins[i] = (used + size, [*content, piece])
                break
        else:
            bins.append((size, [piece]))
    return [content for _, content in bins]


def computed_tokens(piece: Shared, lengths: Sequence[int]) -> int:
    """Tokens that a forward pass over this piece computes: the prefix once, and what each row has of its own."""
    return piece.prefix + sum(lengths[r] - piece.prefix for r in piece.rows)
