"""The tokens that a sampler's filters kept: those among which each token was drawn."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from understudy.core.sampling_masks import SamplingMask
from understudy.engines.local.transfers import read_numbers


class KeptTokens(NamedTuple):
    """The kept tokens of S rows, one row after the other."""

    counts: Tensor  # [S] int64
    token_ids: Tensor  # [counts.sum()] int64, ascending in each row

    def tuples(self) -> list[SamplingMask]:
        """Return the kept tokens of each row."""
        return split_masks(*read_numbers(*self))


def split_masks(counts: Sequence[float], token_ids: Sequence[float]) -> list[SamplingMask]:
    """Return the kept tokens of each row from the numbers of `KeptTokens`."""
    ids = map(int, token_ids)
    return [tuple(itertools.islice(ids, int(count))) for count in counts]


def keep_tokens(logits: Tensor, kept: Tensor, tokens: Tensor, temperature: float | Tensor) -> tuple[Tensor, KeptTokens]:
    """Return the log-probabilities [S] of tokens [S] over the kept ones of logits [S, V], and the kept ones.

    `kept` [S, V] is True at these. A sampled token that rounding left out is added, in place. `temperature` is a number
    or one for each row, [S, 1].
    """
    kept.scatter_(-1, tokens[:, None], True)
    every = (logits.double() / temperature).masked_fill(~kept, -torch.inf).log_softmax(-1)
    return every.gather(-1, tokens[:, None])[:, 0].float(), KeptTokens(kept.sum(-1), kept.nonzero()[:, 1])
