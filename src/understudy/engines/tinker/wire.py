"""What is sent to a server, as the client library's own values."""

import math
from collections.abc import Collection, Sequence
from typing import Any

from understudy.engines.base import Sampling
from understudy.engines.local.config import Optimizer
from understudy.engines.tinker.rows import Numbers, Sent

Pass = tuple[str, list[Any], dict[str, float] | None]
"""A loss's name, data, and constants: what a forward and backward pass takes."""
_EPSILON = 1e-8  # of Adam, as PyTorch has it


def prompt(tokens: Sequence[int]) -> Any:
    """Tokens to continue."""
    from tinker import types

    return types.ModelInput.from_ints(list(tokens))


def sampling_params(sampling: Sampling, longest: int, seed: int, stop_tokens: Collection[int]) -> Any:
    """How a reply of at most `longest` tokens is sampled. The API takes stop tokens or strings: it is given tokens."""
    from tinker import types

    return types.SamplingParams(
        max_tokens=longest,
        seed=seed,
        stop=sorted(stop_tokens) or None,
        temperature=sampling.temperature,
        top_k=sampling.top_k or -1,
        top_p=sampling.top_p,
    )


def adam_params(learning_rate: float, optimizer: Optimizer, clips: bool) -> Any:
    """A step of AdamW, as the local engine takes it. Servers that clip take 0 for no limit."""
    from tinker import types

    bounded = clips and math.isfinite(optimizer.max_grad_norm)
    return types.AdamParams(
        learning_rate=learning_rate,
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        eps=_EPSILON,
        weight_decay=optimizer.weight_decay,
        grad_clip_norm=optimizer.max_grad_norm if bounded else 0.0,
    )


def likelihoods(rows: Sequence[Sent]) -> list[Any]:
    """Data to be told the log-probabilities of."""
    return [_datum(row, weights=row.weights) for row in rows]


def clipped(name: str, rows: Sequence[Sent], low: float, high: float) -> Pass:
    """A loss of the server's that clips ratios to `low` … `high`."""
    data = [_datum(row, weights=row.weights, logprobs=row.logprobs, advantages=row.advantages) for row in rows]
    return name, data, {"clip_low_threshold": low, "clip_high_threshold": high}


def linear(rows: Sequence[Sent], *, sums: bool) -> Pass:
    """The sum of log-probabilities, each times its advantage, negated: any loss has such a one of the same gradient.

    Where losses are sums it is the cross entropy with weights. Where that is divided by the sum of the weights, which
    of both signs may come to nothing, it is CISPO with every ratio held to 1, which is divided by trained tokens.
    """
    if sums:
        return "cross_entropy", [_datum(row, weights=row.advantages) for row in rows], None
    return clipped("cispo", rows, 1.0, 1.0)


def _datum(row: Sent, **numbers: Numbers) -> Any:
    from tinker import types

    tensors = {name: types.TensorData(data=values, dtype="float32") for name, values in numbers.items()}
    tensors["target_tokens"] = types.TensorData(data=row.targets, dtype="int64")
    return types.Datum(model_input=prompt(row.inputs), loss_fn_inputs=tensors)
