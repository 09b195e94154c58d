"""Metrics of an update."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from understudy.algorithms.config import LossConfig
from understudy.engines.local.transfers import read_numbers

MetricSums = defaultdict[str, float]
_BY_STEP = frozenset({"loss", "grad_norm", "relative_weight_change", "value_loss", "value_grad_norm"})
_BY_VALUE = frozenset({"value_mse", "value_clip_fraction"})
_COUNTS = frozenset({"computed_tokens", "distinct_tokens", "trained_tokens"})


@dataclass(slots=True)
class StepMetrics:
    """The metrics of an optimizer step. Numbers on a GPU stay there until `read_metrics`, so no step waits for it."""

    counts: MetricSums = field(default_factory=lambda: MetricSums(float))
    """Sums of numbers that the host knows."""
    sums: list[tuple[str, Tensor]] = field(default_factory=list)
    """Scalars to add, each under its name."""
    norms: dict[str, Tensor] = field(default_factory=dict)
    """Scalars of the whole step, which are equal on all ranks."""


def read_metrics(steps: Sequence[StepMetrics]) -> list[tuple[MetricSums, dict[str, float]]]:
    """Return the sums and the norms of each step, with a single copy from the device."""
    scalars = [x for step in steps for x in (*(value for _, value in step.sums), *step.norms.values())]
    numbers = _read_scalars(scalars)
    metrics = []
    for step in steps:
        sums = MetricSums(float, step.counts)
        for name, _ in step.sums:
            sums[name] += next(numbers)
        metrics.append((sums, {name: next(numbers) for name in step.norms}))
    return metrics


def _read_scalars(scalars: Iterable[Tensor]) -> Iterator[float]:
    vectors = [scalar.reshape(1) for scalar in scalars]
    return (number for (number,) in read_numbers(*vectors)) if vectors else iter(())


def reduce_metrics(step_sums: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of an update from the sums of its optimizer steps.

    Metrics are means over trained tokens, over the critic's decisions (`valued_tokens`) or over the steps that trained
    a token, or they are counts.

    The probability ratio is also reported for the first step and for the later steps. In the first step the weights are
    those that sampled, so the ratio differs from 1 only by rounding.
    """
    sums: MetricSums = defaultdict(float)
    for step in step_sums:
        for name, value in step.items():
            sums[name] += value
    valued, steps = sums.pop("valued_tokens", 1.0), sum(step.get("trained_tokens", 0) > 0 for step in step_sums)
    over = dict.fromkeys(_COUNTS, 1) | dict.fromkeys(_BY_STEP, steps) | dict.fromkeys(_BY_VALUE, valued)
    tokens = sums["trained_tokens"]
    means = {name: value / max(1, over.get(name, tokens)) for name, value in sums.items()}
    moving = [step for step in step_sums if {"ratio", "ratio_mse"} <= step.keys() and step["trained_tokens"]]
    return means | (_ratios(moving) if moving else {})


def exceeds_target_kl(loss: LossConfig, sums: Mapping[str, float]) -> bool:
    """Return whether the mean `approx_kl` of an optimizer step, given its sums, is above `loss.target_kl`, if that is
    set."""
    return 0 < loss.target_kl * sums["trained_tokens"] < sums.get("approx_kl", 0.0)


def skipped_minibatches(loss: LossConfig, count: int) -> dict[str, float]:
    """Return the number of minibatches that `loss.target_kl` skipped as a metric, if it is set."""
    return {"skipped_minibatches": float(count)} if loss.target_kl else {}


def _ratios(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    first, *later = steps
    ratios = {f"first_minibatch_{name}": first[name] / first["trained_tokens"] for name in ("ratio", "ratio_mse")}
    if later:
        tokens = sum(step["trained_tokens"] for step in later)
        ratios["later_minibatch_ratio_mse"] = sum(step["ratio_mse"] for step in later) / tokens
    return ratios
