"""Converts values to the client library's types."""

import math
from collections.abc import Collection, Sequence
from typing import Any

from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import OptimizerConfig
from understudy.engines.tinker.rows import FloatList, TinkerRow

LossRequest = tuple[str, list[Any], dict[str, float] | None]
"""Name, data and constants of a loss for a forward and backward pass."""


def to_model_input(tokens: Sequence[int]) -> Any:
    """Return a prompt."""
    from tinker import types

    return types.ModelInput.from_ints(list(tokens))


def to_sampling_params(sampling: SamplingParams, max_tokens: int, seed: int, stop_tokens: Collection[int]) -> Any:
    """Return sampling parameters. The API takes either stop tokens or stop strings; stop tokens are sent."""
    from tinker import types

    return types.SamplingParams(
        max_tokens=max_tokens,
        seed=seed,
        stop=sorted(stop_tokens) or None,
        temperature=sampling.temperature,
        top_k=sampling.top_k or -1,
        top_p=sampling.top_p,
    )


def to_adam_params(learning_rate: float, optimizer: OptimizerConfig, clips_gradients: bool) -> Any:
    """Return the parameters of an AdamW step like the local engine's. Servers that clip take 0 as no limit."""
    from tinker import types

    bounded = clips_gradients and math.isfinite(optimizer.max_grad_norm)
    return types.AdamParams(
        learning_rate=learning_rate,
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        grad_clip_norm=optimizer.max_grad_norm if bounded else 0.0,
    )


def logprob_data(rows: Sequence[TinkerRow]) -> list[Any]:
    """Return the data of a request for log-probabilities."""
    return [_datum(row, weights=row.weights) for row in rows]


def clipped_loss(name: str, rows: Sequence[TinkerRow], low: float, high: float) -> LossRequest:
    """Return a loss of the server that clips ratios to `low` … `high`."""
    data = [_datum(row, weights=row.weights, logprobs=row.logprobs, advantages=row.advantages) for row in rows]
    return name, data, {"clip_low_threshold": low, "clip_high_threshold": high}


def linear_loss(rows: Sequence[TinkerRow], *, sums_losses: bool) -> LossRequest:
    """Return the loss -sum(advantage * log-probability). With `linear_coefficients` it has the gradient of any loss.

    A server that sums losses computes it as weighted cross entropy. Other servers divide cross entropy by the sum of
    the weights, which may be 0 because weights have both signs. For them the loss is CISPO with all ratios clipped to
    1, which they divide by the number of trained tokens.
    """
    if sums_losses:
        return "cross_entropy", [_datum(row, weights=row.advantages) for row in rows], None
    return clipped_loss("cispo", rows, 1.0, 1.0)


def _datum(row: TinkerRow, **numbers: FloatList) -> Any:
    from tinker import types

    tensors = {name: types.TensorData(data=values, dtype="float32") for name, values in numbers.items()}
    tensors["target_tokens"] = types.TensorData(data=row.targets, dtype="int64")
    return types.Datum(model_input=to_model_input(row.inputs), loss_fn_inputs=tensors)
