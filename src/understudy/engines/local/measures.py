"""What an update tells of itself."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

Sums = defaultdict[str, float]
_BY_STEP = frozenset({"loss", "grad_norm", "weight_change", "value_loss", "value_grad_norm"})
_BY_VALUE = frozenset({"value_error", "value_clip_fraction"})
_COUNTS = frozenset({"computed_tokens", "trained_tokens"})


def told(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of an update out of the sums of its optimizer steps.

    They are means over trained tokens, over the critic's decisions (`valued_tokens`) or over steps, or counts.

    The probability ratio is also told apart: of the first step, where the weights are still those that sampled, so that
    it is 1 but for rounding; and of the later ones, where it has moved if the first changed anything.
    """
    sums: Sums = defaultdict(float)
    for step in steps:
        for name, value in step.items():
            sums[name] += value
    valued = sums.pop("valued_tokens", 1.0)
    over = dict.fromkeys(_COUNTS, 1.0) | dict.fromkeys(_BY_STEP, len(steps)) | dict.fromkeys(_BY_VALUE, valued)
    tokens = sums["trained_tokens"]
    found = {name: value / max(1, over.get(name, tokens)) for name, value in sums.items()}
    moving = [step for step in steps if "ratio" in step and step["trained_tokens"]]
    return found | (_ratios(moving) if moving else {})


def _ratios(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    first, *later = steps
    found = {f"first_{name}": first[name] / first["trained_tokens"] for name in ("ratio", "ratio_error")}
    if later:
        tokens = sum(step["trained_tokens"] for step in later)
        found["later_ratio_error"] = sum(step["ratio_error"] for step in later) / tokens
    return found
