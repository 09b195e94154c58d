"""Metrics of an update."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

MetricSums = defaultdict[str, float]
_BY_STEP = frozenset({"loss", "grad_norm", "relative_weight_change", "value_loss", "value_grad_norm"})
_BY_VALUE = frozenset({"value_mse", "value_clip_fraction"})
_COUNTS = frozenset({"computed_tokens", "distinct_tokens", "trained_tokens"})


def reduce_metrics(step_sums: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of an update from the sums of its optimizer steps.

    Metrics are means over trained tokens, over the critic's decisions (`valued_tokens`) or over steps, or they are
    counts.

    The probability ratio is also reported for the first step and for the later steps. In the first step the weights are
    those that sampled, so the ratio differs from 1 only by rounding.
    """
    sums: MetricSums = defaultdict(float)
    for step in step_sums:
        for name, value in step.items():
            sums[name] += value
    valued = sums.pop("valued_tokens", 1.0)
    over = dict.fromkeys(_COUNTS, 1.0) | dict.fromkeys(_BY_STEP, len(step_sums)) | dict.fromkeys(_BY_VALUE, valued)
    tokens = sums["trained_tokens"]
    found = {name: value / max(1, over.get(name, tokens)) for name, value in sums.items()}
    moving = [step for step in step_sums if "ratio" in step and step["trained_tokens"]]
    return found | (_ratios(moving) if moving else {})


def _ratios(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    first, *later = steps
    found = {f"first_minibatch_{name}": first[name] / first["trained_tokens"] for name in ("ratio", "ratio_mse")}
    if later:
        tokens = sum(step["trained_tokens"] for step in later)
        found["later_minibatch_ratio_mse"] = sum(step["ratio_mse"] for step in later) / tokens
    return found
