"""Converts batches to a server's rows, and the server's log-probabilities to tensors. Nothing is sent here.

A row holds the tokens before each token (`inputs`), the tokens themselves (`targets`), and numbers per target. This is
the only shift by one. Tokens after a row's last trained token are not sent.

Some servers average losses: a row of N trained tokens among B rows has weight 1 / (N B). Its advantages are multiplied
by N B, so that the loss is a sum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from understudy.algorithms import losses
from understudy.algorithms.batch import Batch
from understudy.algorithms.config import LossConfig
from understudy.core.errors import RolloutError

FloatList = list[float]


@dataclass(frozen=True, slots=True)
class TinkerRow:
    """A row of n tokens for a server. `weights` are 1 for trained tokens and 0 for others."""

    row: int
    inputs: list[int]
    targets: list[int]
    weights: FloatList
    logprobs: FloatList
    advantages: FloatList


def to_tinker_rows(batch: Batch, advantages: Tensor | None = None, *, sums_losses: bool = True) -> list[TinkerRow]:
    """Return the rows with trained tokens. `advantages` [B, T] are meant for a summed loss on any server."""
    masked = torch.zeros_like(batch.logprobs) if advantages is None else advantages * batch.mask
    counts = batch.mask.sum(1)
    rows = counts.nonzero()[:, 0].tolist()
    return [_sent(batch, row, masked[row] * (1.0 if sums_losses else float(counts[row]) * len(rows))) for row in rows]


def _sent(batch: Batch, row: int, advantages: Tensor) -> TinkerRow:
    end = int(batch.mask[row].nonzero().max()) + 1
    tokens = batch.tokens[row, :end].tolist()
    mask, logprobs = batch.mask[row, 1:end], batch.logprobs[row, 1:end]
    return TinkerRow(
        row=row,
        inputs=tokens[:-1],
        targets=tokens[1:],
        weights=mask.float().tolist(),
        logprobs=(logprobs * mask).tolist(),
        advantages=advantages[1:end].tolist(),
    )


def to_logprobs(batch: Batch, rows: Sequence[TinkerRow], logprobs: Sequence[Sequence[float]]) -> Tensor:
    """Return the server's log-probabilities [B, T] of the trained tokens. Other entries are 0."""
    aligned = torch.zeros(batch.tokens.shape)
    for row, values in zip(rows, logprobs, strict=True):
        if len(values) != len(row.targets):
            text = f"the server returned {len(values)} log-probabilities for {len(row.targets)} tokens"
            raise RolloutError(text, "engine")
        if not all(map(math.isfinite, values)):
            raise RolloutError("the server returned a log-probability that is not finite", "engine")
        aligned[row.row, 1 : len(values) + 1] = torch.tensor(values)
    return aligned * batch.mask


def linear_coefficients(loss: LossConfig, logprobs: Tensor, batch: Batch) -> Tensor:
    """Return factors [B, T] such that the loss -sum(factors * log-probabilities) has the gradient of `loss`.

    `logprobs` [B, T] are those of the current weights.
    """
    assert batch.advantages is not None
    if loss.kind == "nll":
        return batch.advantages * batch.mask
    leaf = logprobs.clone().requires_grad_()
    value, _ = losses.compute_loss(loss, leaf, batch.logprobs, batch.advantages, batch.mask)
    (gradient,) = torch.autograd.grad(value, [leaf])
    return -gradient


def loss_metrics(loss: LossConfig, logprobs: Tensor, batch: Batch) -> dict[str, float]:
    """Return sums over the trained tokens, like those of the local engine."""
    assert batch.advantages is not None
    value, metrics = losses.compute_loss(loss, logprobs, batch.logprobs, batch.advantages, batch.mask)
    return {"loss": float(value)} | {name: float(metric) for name, metric in metrics.items()}
