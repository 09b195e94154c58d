"""Batches as a server takes them, and its log-probabilities as batches have them. No server is asked here.

A server is given the tokens before each one (`inputs`), the tokens themselves (`targets`), and numbers for each of
them: this is the only shift by one. What comes after a row's last trained token is not sent.

Where a server takes means, a row of N trained tokens counts 1 / (N B) of what it should among B rows; its advantages
are multiplied by N B, which makes the loss the sum that it is to be (invariant 5).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from understudy.algorithms import losses
from understudy.algorithms.options import Loss
from understudy.batch import Batch
from understudy.errors import RolloutError

Numbers = list[float]


@dataclass(frozen=True, slots=True)
class Sent:
    """A row of n tokens as a server takes it; `weights` are 1 where a token is trained, and 0."""

    row: int
    inputs: list[int]
    targets: list[int]
    weights: Numbers
    logprobs: Numbers
    advantages: Numbers


def sent(batch: Batch, advantages: Tensor | None = None, *, sums: bool = True) -> list[Sent]:
    """The rows with a trained token. `advantages` [B, T] are those to be summed, whatever the server makes of them."""
    given = torch.zeros_like(batch.logprobs) if advantages is None else advantages * batch.mask
    counts = batch.mask.sum(1)
    rows = counts.nonzero()[:, 0].tolist()
    return [_sent(batch, row, given[row] * (1.0 if sums else float(counts[row]) * len(rows))) for row in rows]


def _sent(batch: Batch, row: int, advantages: Tensor) -> Sent:
    end = int(batch.mask[row].nonzero().max()) + 1
    tokens = batch.tokens[row, :end].tolist()
    mask, logprobs = batch.mask[row, 1:end], batch.logprobs[row, 1:end]
    return Sent(
        row=row,
        inputs=tokens[:-1],
        targets=tokens[1:],
        weights=mask.float().tolist(),
        logprobs=(logprobs * mask).tolist(),
        advantages=advantages[1:end].tolist(),
    )


def received(batch: Batch, rows: Sequence[Sent], logprobs: Sequence[Sequence[float]]) -> Tensor:
    """The server's log-probabilities [B, T] of the trained tokens; 0 elsewhere."""
    found = torch.zeros(batch.tokens.shape)
    for row, told in zip(rows, logprobs, strict=True):
        if len(told) != len(row.targets):
            raise RolloutError(f"the server tells {len(told)} odds of {len(row.targets)} tokens", "engine")
        found[row.row, 1 : len(told) + 1] = torch.tensor(told)
    return found * batch.mask


def coefficients(loss: Loss, logprobs: Tensor, batch: Batch) -> Tensor:
    """The factors [B, T] with which a sum of log-probabilities has the negative gradient of a loss.

    `logprobs` [B, T] are those of the weights as they are.
    """
    assert batch.advantages is not None
    if loss.kind == "nll":
        return batch.advantages * batch.mask
    leaf = logprobs.clone().requires_grad_()
    value, _ = losses.compute(loss, leaf, batch.logprobs, batch.advantages, batch.mask)
    (gradient,) = torch.autograd.grad(value, [leaf])
    return -gradient


def measures(loss: Loss, logprobs: Tensor, batch: Batch) -> dict[str, float]:
    """Sums over the trained tokens, as the local engine tells them."""
    assert batch.advantages is not None
    value, metrics = losses.compute(loss, logprobs, batch.logprobs, batch.advantages, batch.mask)
    return {"loss": float(value)} | {name: float(metric) for name, metric in metrics.items()}
