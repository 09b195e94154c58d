"""A user's own advantage estimators and losses, which a config names as `module:attribute`.

def my_advantages(batch): ...                                                  # algorithm.advantage_estimator
def my_loss(logprobs, old_logprobs, advantages, mask, sequence_ids, config): ...         # algorithm.loss.kind
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from understudy.algorithms.batch import Batch, LossOutput
from understudy.algorithms.config import LossConfig, is_custom
from understudy.core.errors import ConfigError
from understudy.core.imports import import_object
from understudy.core.user_code import user_code

AdvantageFunction = Callable[[Batch], Tensor]
"""Returns advantages [B], one for each row, or [B, T], one for each token. `batch` has `rewards`, `group_ids`,
`episode_ids`, `mask`, `logprobs` and `anchor_states`. A row is an episode, or a token sequence of one that has several;
their `episode_ids` are equal."""
LossFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, LossConfig], LossOutput]
"""Returns a loss, which must be a sum over tokens, and a dict of sums over tokens as metrics.

The arguments are `logprobs` (with gradient), `old_logprobs`, `advantages`, `mask` and `sequence_ids`, all [N] for the N
sampled tokens of some sequences, and the config section `algorithm.loss`. `mask` is True everywhere, as the losses of
this package need one. The advantages already contain the loss weights of the tokens.
"""


def custom_advantages(reference: str, batch: Batch) -> Tensor:
    """Return the advantages [B, T] of the function that `reference` names; 0 where `batch.mask` is False.

    Raise ConfigError if the function returns something else than finite numbers [B] or [B, T], and RolloutError if it
    raises an exception.
    """
    with user_code("engine", f"the advantage estimator {reference}"):
        result: Any = _load(reference)(batch)
    if not isinstance(result, Tensor) or result.shape not in (batch.rewards.shape, batch.mask.shape):
        raise ConfigError(
            f"algorithm.advantage_estimator = {reference!r} returned {_describe(result)}; it must return a tensor "
            f"{list(batch.rewards.shape)}, one number for each row, or {list(batch.mask.shape)}, one for each token"
        )
    advantages = (result[:, None] if result.dim() == 1 else result).float() * batch.mask
    if not advantages.isfinite().all():
        raise ConfigError(f"algorithm.advantage_estimator = {reference!r} returned numbers that are not finite")
    return advantages


def custom_loss(
    loss: LossConfig,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor | None,
    sequence_ids: Tensor,
) -> LossOutput:
    """Return the loss of the function that `loss.kind` names, and its metrics.

    The tensors have any one shape; the function gets the tokens of `mask`, or all tokens without a mask. Raise
    ConfigError if it does not return a scalar tensor that depends on `logprobs` and a dict of scalars, and RolloutError
    if it raises an exception.
    """
    tensors = logprobs, old_logprobs, advantages, torch.ones_like(logprobs, dtype=torch.bool), sequence_ids
    tokens = [tensor.flatten() if mask is None else tensor[mask] for tensor in tensors]
    with user_code("engine", f"the loss {loss.kind}"):
        result: Any = _load(loss.kind)(*tokens, loss)
    value, metrics = result if isinstance(result, tuple) and len(result) == 2 else (None, None)
    if not isinstance(value, Tensor) or value.dim() or not isinstance(metrics, dict):
        raise ConfigError(
            f"algorithm.loss.kind = {loss.kind!r} returned {_describe(result)}; it must return a scalar tensor and a "
            "dict of metrics, such as (loss, {})"
        )
    if logprobs.requires_grad and not value.requires_grad:
        raise ConfigError(
            f"algorithm.loss.kind = {loss.kind!r} returned a loss without gradient; compute it from `logprobs`, "
            "without detach() or item()"
        )
    return value, {name: _scalar_metric(loss, name, metric, value.device) for name, metric in metrics.items()}


def validate_custom_functions(estimator: str, loss: LossConfig) -> None:
    """Import the functions that an advantage estimator and a loss name, and try them on a small batch.

    Raise ConfigError if a function cannot be imported, returns something of a wrong shape, or is a loss that is not a
    sum over tokens, and RolloutError if it raises an exception.
    """
    batch = _small_batch()
    if is_custom(estimator):
        custom_advantages(estimator, batch)
    if is_custom(loss.kind):
        _validate_loss_is_sum(loss, batch)


def _validate_loss_is_sum(loss: LossConfig, batch: Batch) -> None:
    """Raise ConfigError if the loss of a batch differs from the sum of the losses of its sequences."""
    old_logprobs = batch.logprobs
    logprobs = (old_logprobs * 0.9).requires_grad_()
    rows = torch.arange(len(batch))[:, None].expand_as(logprobs)
    advantages = (rows + 1.0) * batch.mask
    parts = [slice(0, len(batch)), *(slice(row, row + 1) for row in range(len(batch)))]
    whole, *losses = (
        float(custom_loss(loss, logprobs[i], old_logprobs[i], advantages[i], batch.mask[i], rows[i])[0].detach())
        for i in parts
    )
    if not math.isclose(whole, sum(losses), rel_tol=1e-3, abs_tol=1e-5):
        raise ConfigError(
            f"algorithm.loss.kind = {loss.kind!r} is not a sum over tokens: it returned {whole:.4g} for a batch and "
            f"{sum(losses):.4g} for its sequences one by one; take no mean, because the advantages contain the weights "
            "of algorithm.loss_aggregation"
        )


@functools.cache
def _load(reference: str) -> Callable[..., Any]:
    function = import_object(reference)
    if not callable(function):
        raise ConfigError(f"{reference!r} is a {type(function).__name__} and not a function")
    return function  # type: ignore[no-any-return]


def _small_batch() -> Batch:
    """Return two groups of two episodes with five tokens, two of them sampled."""
    return Batch.from_rows(
        tokens=[[1, 2, 3, 4, 5]] * 4,
        masks=[[False, False, True, False, True]] * 4,
        logprobs=[[0.0, 0.0, -0.5, 0.0, -1.0]] * 4,
        rewards=[0.0, 1.0, 1.0, 1.0],
        group_ids=[0, 0, 1, 1],
        anchor_states=[[-1, -1, 0, -1, 1], [-1, -1, 0, -1, 2], [-1, -1, 3, -1, 4], [-1, -1, 3, -1, 4]],
    )


def _scalar_metric(loss: LossConfig, name: object, metric: object, device: torch.device) -> Tensor:
    if isinstance(metric, int | float):
        return torch.full((), float(metric), device=device)
    if not isinstance(metric, Tensor) or metric.dim():
        raise ConfigError(
            f"algorithm.loss.kind = {loss.kind!r} returned {_describe(metric)} as the metric {name!r}; a metric is a "
            "number or a scalar tensor, a sum over tokens"
        )
    return metric.detach().to(device)


def _describe(result: object) -> str:
    return f"a tensor {list(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
