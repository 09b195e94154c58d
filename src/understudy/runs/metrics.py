"""Names of metrics: `prefix/name`. Trackers group metrics by prefix.

    rollout/            episodes, reward, success_rate, turns, tokens, replies/<kind>, stop/<reason>,
                        fault/<component>, user/, judge/
    train/              loss, learning rate, gradient norm, entropy, KL, ratios
    eval/<domain>/      success_rate, reward, noop_success_rate
    eval/ood/<domain>/  the same on the domains of `eval.ood_domains`
    eval/<name>/<domain>/  the same on a test set of `data.tests`
    test/<domain>/      the same if `eval.split` is test
    time/               seconds, tokens per second, peak memory
    health/<check>      1 if the check found an issue, else 0
    certify/            differences between sampler and trainer

Engines and phases report names without prefixes. Only this module adds them.
"""

from collections.abc import Mapping
from typing import Literal, TypeVar

METRICS_FILE = "metrics.jsonl"
"""A run's metrics: one JSON record per line, with its step and its kind. Records are only appended."""
RecordKind = Literal["train", "eval"]
"""Source of a record: a training step, or an evaluation of the weights after it."""
V = TypeVar("V")

PREFIXES = frozenset(("rollout", "train", "eval", "test", "time", "health", "certify"))
_NAMES = {
    "reward": "rollout/reward",
    "success_rate": "rollout/success_rate",
    "episodes": "rollout/episodes",
    "groups": "rollout/groups",
    "zero_variance_groups": "rollout/zero_variance_groups",
    "skipped_tasks": "rollout/skipped_tasks",
    "turns": "rollout/turns",
    "response_tokens": "rollout/response_tokens",
    "episode_tokens": "rollout/episode_tokens",
    "sequences": "rollout/sequences",
    "tool_exceptions": "rollout/tool_exceptions",
    "loss": "train/loss",
    "nll_loss": "train/nll_loss",
    "peak_memory_gib": "time/peak_memory_gib",
}
_ROLLOUT_GROUPS = ("replies", "stop")


def add_prefixes(metrics: Mapping[str, V]) -> dict[str, V]:
    """Return the metrics under their full names. `step` keeps its name."""
    return {name if name == "step" else prefixed_name(name): value for name, value in metrics.items()}


def prefixed_name(name: str) -> str:
    """Return the full name of a metric.

    A full name is returned unchanged. Other names get a prefix by `_NAMES`, then by their first or last part, else
    `train/`.
    """
    group = name.partition("/")[0]
    if name in _NAMES:
        return _NAMES[name]
    if group in PREFIXES and group != name:
        return name
    if group in _ROLLOUT_GROUPS:
        return f"rollout/{name}"
    if name.endswith(("seconds", "_per_second")):
        return f"time/{name}"
    return f"rollout/{name}" if name.startswith("reward") else f"train/{name}"
